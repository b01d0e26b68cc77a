// Package rdma makes fast links between two processes over RC queue pairs. It
// implements transport.Fabric, transport.Half and transport.Link.
//
// docs/rdma-link.md shows what belongs to what, the life of a link and the way
// of a frame. The files follow it: fabric and device hold what is shared,
// endpoint is one QP with its memory, half connects it, link with send and
// recv carries frames, poller takes completions, teardown ends a link. What
// can be wrong without a device is in pure cores: pace, gid, and the packages
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
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/ibverbs"
)

// Fabric makes links over the RDMA devices of this machine. Devices are opened
// when first asked for; why one cannot be used is what Usable returns. All
// methods may be called from any goroutine.
//
// Close ends the links that are left, waits for them, then closes the devices.
type Fabric struct {
	cfg      Config
	cfgErr   error
	provider verbs.Provider

	mu      sync.Mutex // guards what follows; held while a device is opened
	devices map[string]*device
	closed  bool
	closing sync.WaitGroup // broken devices

	stale atomic.Uint64 // completions that belong to no endpoint any more
	rnr   atomic.Uint64
	lost  atomic.Uint64 // drains that timed out
}

// New returns a fabric. It never fails: a bad configuration is reported by
// Usable and Prepare, and by Config.Validate.
func New(cfg Config) *Fabric { return NewOn(ibverbs.Provider(), cfg) }

// NewOn is New for the devices of p. Only packages below this one can name a
// provider: it is how their tests put a simulated device under a Fabric.
func NewOn(p verbs.Provider, cfg Config) *Fabric {
	return &Fabric{cfg: cfg, cfgErr: cfg.Validate(), provider: p, devices: map[string]*device{}}
}

// Kind returns transport.RDMA.
func (f *Fabric) Kind() transport.Kind { return transport.RDMA }

// Usable returns why no link can start at the local address, or nil. It asks
// the devices each time.
func (f *Fabric) Usable(local net.Addr) error {
	_, _, err := f.route(local)
	return err
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
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.close())
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
	if f.closed {
		return nil, candidate{}, net.ErrClosed
	}
	names, err := f.names()
	if err != nil {
		return nil, candidate{}, err
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
	failed := joined(errs...)
	if len(all) == 0 && failed != nil {
		return nil, candidate{}, failed // no GID was looked at
	}
	from, err := chooseGID(all, addr, f.cfg.GIDIndex)
	if err != nil {
		return nil, candidate{}, joined(failed, err)
	}
	d := f.devices[from.device]
	return d, from, d.setup()
}

func (f *Fabric) names() ([]string, error) {
	if f.cfg.Device != "" {
		return []string{f.cfg.Device}, nil
	}
	names, err := f.provider.Devices()
	if err == nil && len(names) == 0 {
		err = &verbs.UnavailableError{Reason: "this machine has no RDMA device"}
	}
	return names, err
}

// open returns an open device. One that broke is closed and opened again once
// its last link is gone. f.mu is held.
func (f *Fabric) open(name string) (*device, error) {
	if d := f.devices[name]; d != nil {
		if d.broken() == nil {
			return d, nil
		}
		if !d.idle() {
			return nil, d.broken()
		}
		delete(f.devices, name)
		f.closing.Go(func() { d.close() }) // it is broken: what can be released is
	}
	d, err := openDevice(f, name)
	if err != nil {
		return nil, err
	}
	f.devices[name] = d
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
