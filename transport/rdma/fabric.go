// Package rdma makes fast links between two processes over RC queue pairs. It
// implements transport.Fabric, transport.Half and transport.Link.
//
// docs/rdma-link.md shows what belongs to what, the life of a link and the way
// of a frame. The files follow it: fabric and device hold what is shared, changes
// looks after devices that come and go; endpoint is one QP with its memory, shared
// and sharedsend what those without have in common; half connects it, link ends it,
// with send and recv it carries frames; poller takes completions. What
// can be wrong without a device is in pure cores: pace, gid, breaker, and the packages
// internal/ring, internal/credit, internal/wrid, internal/qpstate.
package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Fabric makes links over the RDMA devices of this machine. Devices are opened
// when first asked for; why one cannot be used is what Usable returns. All
// methods may be called from any goroutine.
//
// One goroutine, the lookout, watches over them while the fabric is used.
//
// Close ends the lookout, then the links that are left, waits for them, and
// closes the devices.
type Fabric struct {
	cfg      Config
	cfgErr   error
	provider verbs.Provider
	breakers breakers
	lookout  lookout
	paths    paths

	mu      sync.Mutex // guards what follows; held while a device is opened, and not where a poller's turn is taken
	devices map[string]*device
	past    Stats // counted on devices that are closed
	closed  bool
	closing sync.WaitGroup // broken devices

	stale atomic.Uint64 // completions that belong to no endpoint any more
	rnr   atomic.Uint64
	lost  atomic.Uint64 // drains that timed out
	lives lives
}

// New returns a fabric. It never fails: a bad configuration is reported by
// Usable and Prepare, and by Config.Validate.
func New(cfg Config) *Fabric { return NewOn(cfg.Provider.provider(), cfg) }

// NewOn is New for the devices of p. Only packages below this one can name a
// provider: it is how their tests put a simulated device under a Fabric.
func NewOn(p verbs.Provider, cfg Config) *Fabric {
	return &Fabric{
		cfg: cfg, cfgErr: cfg.Validate(), provider: p,
		devices: map[string]*device{}, breakers: newBreakers(), lookout: newLookout(),
	}
}

var _ transport.Watcher = (*Fabric)(nil)

// Kind returns transport.RDMA.
func (f *Fabric) Kind() transport.Kind { return transport.RDMA }

// Usable returns why no link can start at the local address, or nil. It asks
// the devices each time, and starts to fill the warm pool of the port. A
// *BreakerError says when links will be tried again.
func (f *Fabric) Usable(local net.Addr) error {
	d, from, err := f.route(local)
	if err == nil {
		_, err = d.warmPool(from.port)
	}
	return err
}

// Prewarm opens the devices and fills the warm pools of all active ports with
// a RoCE v2 GID, before the first session asks for a link: else that makes its
// QP on the way. It returns when they are full, or why one could not be filled.
func (f *Fabric) Prewarm(ctx context.Context) error {
	if f.cfgErr != nil {
		return f.cfgErr
	}
	f.mu.Lock()
	all, err := f.survey()
	type place struct {
		d    *device
		port uint8
	}
	places := map[place]bool{}
	for _, c := range all {
		if c.entry.Type == verbs.GIDRoCEv2 && c.active() {
			places[place{f.devices[c.device], c.port}] = true
		}
	}
	f.mu.Unlock()
	errs := []error{err}
	for p := range places {
		errs = append(errs, p.d.prewarm(ctx, p.port))
	}
	return joined(errs...)
}

// Prepare takes a QP in INIT with its receives posted, from the warm pool or
// made on the spot.
func (f *Fabric) Prepare(ctx context.Context, local net.Addr) (transport.Half, error) {
	d, from, err := f.route(local)
	if err != nil {
		return nil, err
	}
	return d.prepare(ctx, from)
}

// Close ends all links, waits until their memory is released, and closes the
// devices. Only the first call does something.
func (f *Fabric) Close() error {
	f.mu.Lock()
	devices := f.devices
	f.devices = nil
	f.closed = true
	f.mu.Unlock()
	f.stopLookout()
	var errs []error
	for _, d := range devices {
		errs = append(errs, f.retire(d))
	}
	f.closing.Wait()
	return errors.Join(errs...)
}

// route finds the device, port and GID that a link from the local address
// leaves by, and makes the device ready.
func (f *Fabric) route(local net.Addr) (*device, candidate, error) {
	if f.cfgErr != nil {
		return nil, candidate{}, f.cfgErr
	}
	addr, err := ipOf(local)
	if err != nil {
		return nil, candidate{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all, failed := f.survey()
	if len(all) == 0 && failed != nil {
		return nil, candidate{}, failed // no GID was looked at
	}
	from, err := chooseGID(all, addr, f.cfg.GIDIndex)
	if err != nil && failed == nil { // perhaps the event that the address came is still on its way
		for _, d := range f.devices {
			d.gids.forget()
		}
		all, failed = f.survey()
		from, err = chooseGID(all, addr, f.cfg.GIDIndex)
	}
	if err != nil {
		return nil, candidate{}, joined(failed, err)
	}
	if err := f.breakers.check(from.device); err != nil {
		return nil, candidate{}, err
	}
	d := f.devices[from.device]
	return d, from, d.setup()
}

// survey opens the devices that are not open yet, and reads the GIDs that links
// may leave by. The error is of devices that could not be read. f.mu is held.
func (f *Fabric) survey() ([]candidate, error) {
	if f.closed {
		return nil, net.ErrClosed
	}
	f.startLookout()
	names, err := f.names()
	if err != nil {
		return nil, err
	}
	var all []candidate
	var errs []error
	for _, name := range names {
		d, err := f.open(name)
		if err == nil {
			var some []candidate
			some, err = d.candidates(f.cfg.Port)
			all = append(all, some...)
		}
		errs = append(errs, err)
	}
	return all, joined(errs...)
}

// names lists the devices to look at, at most lookInterval old where all are.
// f.mu is held.
func (f *Fabric) names() ([]string, error) {
	if f.cfg.Device != "" {
		return []string{f.cfg.Device}, nil
	}
	l := &f.lookout
	if len(l.listed) > 0 {
		return l.listed, nil
	}
	names, err := f.provider.Devices()
	if err == nil && len(names) == 0 {
		err = &verbs.UnavailableError{Reason: "this machine has no RDMA device", NoDevice: true}
	}
	l.listed = names
	return names, err
}

// open returns an open device, opened anew where it broke. f.mu is held. The
// lookout and ports come here without a look at closed.
func (f *Fabric) open(name string) (*device, error) {
	if f.closed {
		return nil, net.ErrClosed
	}
	if d := f.devices[name]; d != nil {
		if d.broken() == nil {
			return d, nil
		}
		f.drop(d)
	}
	d, err := openDevice(f, name)
	if err != nil {
		return nil, err
	}
	f.devices[name] = d
	delete(f.lookout.lost, name)
	return d, nil
}

// ipOf is the IP address of a control connection's end.
func ipOf(addr net.Addr) (netip.Addr, error) {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr(), nil
	case nil:
	default:
		if ap, err := netip.ParseAddrPort(a.String()); err == nil {
			return ap.Addr(), nil
		}
	}
	return netip.Addr{}, &AddrError{Addr: addr}
}

// AddrError is a local address that is none of IP.
type AddrError struct{ Addr net.Addr }

func (e *AddrError) Error() string {
	if e.Addr == nil {
		return "rdma: the control connection has no local address"
	}
	return "rdma: the control connection's local address is " + e.Addr.String() + ", expected an IP address and port"
}
