package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// refillDelay keeps the making of QPs away from the handshake that one was drawn
// for: they took the processor from it for longer than all else it needs (rxe
// under emulation).
const refillDelay = 50 * time.Millisecond

// device is an open RDMA device and all that its links share: a PD, pollers,
// and a warm pool of endpoints per port.
//
// A goroutine waits for asynchronous events from open to close. close ends in
// the order pools, links, pollers, quarantined memory, PD, events, context:
// each needs those after it.
type device struct {
	fabric *Fabric
	name   string
	cfg    Config // defaults filled in
	ctx    verbs.Device
	attr   verbs.DeviceAttr
	events sync.WaitGroup // the event goroutine, and that of fail
	fault  atomic.Pointer[cause]
	gids   gidTables

	tellsLast atomic.Bool // it has told of a last receive: it does of each

	// mu guards what follows. It is held across commands to the kernel, while pd, pollers
	// and what endpoints share are made, so a poller does not wait for it. Who has it does not
	// take a poller's turn.
	mu         sync.Mutex
	pd         verbs.PD
	pollers    []*poller
	warm       map[uint8]*pool.Warm[*endpoint] // by port
	endpoints  map[*endpoint]struct{}          // created and not yet destroyed
	numbers    map[uint32]*endpoint            // of these, by QP number, which is another's once the QP is destroyed
	gone       sync.Cond                       // an endpoint left endpoints
	quarantine []*rings
	dedicated  int // endpoints with slots of their own
	closed     bool
}

func openDevice(f *Fabric, name string) (*device, error) {
	ctx, err := f.provider.Open(name)
	if err != nil {
		return nil, &SetupError{name, "open the device", err}
	}
	attr, err := ctx.Query()
	if err != nil {
		return nil, joined(&SetupError{name, "query the device", err}, ctx.Close())
	}
	d := &device{
		fabric: f, name: name, cfg: f.cfg.withDefaults(&attr), ctx: ctx, attr: attr,
		warm: map[uint8]*pool.Warm[*endpoint]{}, endpoints: map[*endpoint]struct{}{}, numbers: map[uint32]*endpoint{},
	}
	d.gone.L = &d.mu
	d.events.Add(1)
	go d.watch()
	return d, nil
}

// candidates lists the GIDs of the device's ports, or of one port.
func (d *device) candidates(only uint8) ([]candidate, error) {
	if only > d.attr.Ports {
		return nil, &SetupError{d.name, fmt.Sprintf("query port %d", only), fmt.Errorf("the device has %d", d.attr.Ports)}
	}
	var all []candidate
	for n := range int(d.attr.Ports) {
		port := uint8(n + 1)
		if only != 0 && port != only {
			continue
		}
		pa, err := d.ctx.QueryPort(port)
		if err != nil {
			return all, &SetupError{d.name, fmt.Sprintf("query port %d", port), err}
		}
		gids, err := d.gids.of(d.ctx, port)
		if err != nil {
			return all, &SetupError{d.name, fmt.Sprintf("read the GIDs of port %d", port), err}
		}
		for _, g := range gids {
			all = append(all, candidate{device: d.name, port: port, attr: pa, entry: g})
		}
	}
	return all, nil
}

// setup makes PD and pollers, unless they are there.
func (d *device) setup() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	if d.pd == nil {
		pd, err := d.ctx.AllocPD()
		if err != nil {
			return &SetupError{d.name, "allocate a protection domain", err}
		}
		d.pd = pd
	}
	for len(d.pollers) < d.cfg.Pollers {
		p, err := startPoller(d)
		if err != nil {
			return err
		}
		d.pollers = append(d.pollers, p)
	}
	return nil
}

// prepare takes an endpoint for a link that leaves by the given GID.
func (d *device) prepare(ctx context.Context, from candidate) (transport.Half, error) {
	w, err := d.warmPool(from.port)
	if err != nil {
		return nil, err
	}
	for {
		ep, _, err := w.Get(ctx)
		if err != nil {
			return nil, err
		}
		if ep.spoiled.Load() == nil {
			return newHalf(ep, from), nil
		}
		go ep.release("spoiled in the pool", false)
	}
}

// prewarm fills the pool of a port.
func (d *device) prewarm(ctx context.Context, port uint8) error {
	if err := d.setup(); err != nil {
		return err
	}
	w, err := d.warmPool(port)
	if err != nil {
		return err
	}
	return w.Fill(ctx)
}

func (d *device) warmPool(port uint8) (*pool.Warm[*endpoint], error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, net.ErrClosed
	}
	if w := d.warm[port]; w != nil {
		return w, nil
	}
	w, err := pool.NewWarm(pool.WarmConfig[*endpoint]{
		Size:       d.cfg.Warm,
		RefillRate: d.cfg.RefillRate, RefillDelay: refillDelay,
		Make: func(context.Context) (*endpoint, error) { return d.newEndpoint(port) },
		Drop: func(ep *endpoint) { ep.release("left the warm pool", false) },
	})
	if err == nil {
		d.warm[port] = w
	}
	return w, err
}

// recycle gives an endpoint that is in INIT again back to its pool.
func (d *device) recycle(ep *endpoint) {
	d.mu.Lock()
	w := d.warm[ep.port]
	d.mu.Unlock()
	w.Put(ep)
}

// admit gives an endpoint a place in the table of the poller with most room in
// its CQ, if there is enough for all completions at once (case 38), and a
// generation that nothing at that place had.
func (d *device) admit(ep *endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	best := d.pollers[0]
	for _, p := range d.pollers[1:] {
		if p.room > best.room {
			best = p
		}
	}
	ep.shares = d.sharing() && (d.dedicated >= d.cfg.Dedicated || best.room < d.cfg.slots(false))
	if ep.shares && best.shared.Load() == nil {
		if err := best.share(); err != nil {
			if best.room < d.cfg.slots(false) {
				return err
			}
			ep.shares = false // it has such queues in name only
		}
	}
	need, last := d.cfg.slots(ep.shares), len(best.places)-1
	if last < 0 || best.room < need {
		return &FullError{Device: d.name, QPs: len(d.endpoints), Depth: best.cq.Depth(), Need: need}
	}
	ep.poller, ep.index = best, best.places[last].index
	ep.generation.Store(best.places[last].generation)
	best.places = best.places[:last]
	best.room -= need
	if !ep.shares {
		d.dedicated++
	}
	return nil
}

// dismiss gives an endpoint's place back.
func (d *device) dismiss(ep *endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ep.poller.places = append(ep.poller.places, place{ep.index, ep.generation.Load() + 1})
	ep.poller.room += d.cfg.slots(ep.shares)
	if !ep.shares {
		d.dedicated--
	}
}

func (d *device) add(ep *endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[ep] = struct{}{}
	d.numbers[ep.qp.Num()] = ep
}

// unname forgets the number of a QP that is about to be destroyed.
func (d *device) unname(ep *endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.numbers, ep.qp.Num())
}

// remove forgets an endpoint whose QP is destroyed. lost is memory that must
// wait for the device to close, or nil.
func (d *device) remove(ep *endpoint, lost *rings) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.endpoints, ep)
	if lost != nil {
		d.quarantine = append(d.quarantine, lost)
	}
	d.gone.Broadcast()
}

// links lists the links there are, of one port or, for 0, of all.
func (d *device) links(port uint8) []*link {
	d.mu.Lock()
	defer d.mu.Unlock()
	var links []*link
	for ep := range d.endpoints {
		if l := ep.link.Load(); l != nil && (port == 0 || ep.port == port) {
			links = append(links, l)
		}
	}
	return links
}

// byNumber is the endpoint of a QP number, nil if there is none.
func (d *device) byNumber(qpn uint32) *endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.numbers[qpn]
}

func (d *device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// broken is why the device cannot be used any more, or nil.
func (d *device) broken() error {
	if c := d.fault.Load(); c != nil {
		return c.err
	}
	return nil
}

// fail ends all links because the device cannot be used any more, and has the
// fabric close it. The first cause counts. For the breaker it is one fault, however
// many links end by it, unless the device was removed. It never waits: pollers call it.
func (d *device) fail(why error) {
	c := &cause{err: why}
	if !d.fault.CompareAndSwap(nil, c) {
		return
	}
	if ClassOf(why) != RemotePath {
		d.fabric.breakers.fault(d.name, why)
	}
	d.events.Go(func() {
		d.endLinks(c)
		d.fabric.rouse()
	})
}

// endLinks ends the links there are.
func (d *device) endLinks(why *cause) {
	for _, l := range d.links(0) {
		l.end(why)
	}
}

// watch waits for asynchronous events.
func (d *device) watch() {
	defer d.events.Done()
	for {
		e, err := d.ctx.AsyncEvent()
		if errors.Is(err, verbs.ErrInterrupted) {
			return
		}
		if err != nil {
			d.fail(&SetupError{d.name, "wait for asynchronous events", err})
			return
		}
		d.event(e)
	}
}

// event ends what an event concerns, or says that something came up. It comes
// in any order, twice, or for what is gone.
func (d *device) event(e verbs.AsyncEvent) {
	why := &EventError{Device: d.name, Event: e}
	switch e.Type {
	case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
		ep := d.byNumber(e.QPNum)
		if ep == nil {
			return
		}
		ep.spoiled.Store(why) // before the look at its link: it may be getting one
		if l := ep.link.Load(); l != nil {
			l.fail(why, false)
		}
	case verbs.EventCQErr, verbs.EventSRQErr, verbs.EventDeviceFatal:
		// A CQ that overran has lost completions: nothing on it can go on. Nor
		// can those who receive from a queue that gives nothing any more.
		d.fail(why)
	case verbs.EventQPLastWQEReached:
		if ep := d.byNumber(e.QPNum); ep != nil {
			d.tellsLast.Store(true)
			select {
			case ep.tookLast <- struct{}{}:
			default:
			}
		}
	case verbs.EventPortErr:
		d.gids.forget()
		for _, l := range d.links(e.Port) {
			l.fail(why, true)
		}
	case verbs.EventPortActive, verbs.EventGIDChange, verbs.EventLIDChange, verbs.EventPKeyChange, verbs.EventClientReregister:
		d.gids.forget()
		d.failStrays(e.Port, why)
		d.fabric.came()
	}
}

// failStrays ends the links of a port whose GID is not where it was when they
// were made: what they send has a wrong source, or none.
func (d *device) failStrays(port uint8, why error) {
	links := d.links(port)
	if len(links) == 0 {
		return
	}
	all, err := d.candidates(port)
	if err != nil {
		return // the next of them that sends finds out
	}
	for _, l := range links {
		if from := l.from.Load(); from != nil && !slices.ContainsFunc(all, from.same) {
			l.fail(why, true)
		}
	}
}

// close releases everything. It waits for the links, each of which has a
// bounded time to drain, and for halves, which their holders end. A link that
// is being connected finds the device closed, or is found here.
func (d *device) close() error {
	d.mu.Lock()
	d.closed = true
	pools := d.warm
	d.mu.Unlock()
	for _, w := range pools {
		w.Close()
	}
	why := &cause{err: net.ErrClosed, reuse: true}
	if fault := d.fault.Load(); fault != nil {
		why = fault // which fail may be about to tell them
	}
	d.endLinks(why)
	d.mu.Lock()
	for len(d.endpoints) > 0 {
		d.gone.Wait()
	}
	d.mu.Unlock()

	var errs []error
	for _, p := range d.pollers {
		errs = append(errs, p.stop())
	}
	for _, r := range d.quarantine {
		errs = append(errs, r.free())
	}
	if d.pd != nil {
		errs = append(errs, d.pd.Dealloc())
	}
	d.ctx.Interrupt()
	d.events.Wait()
	return errors.Join(append(errs, d.ctx.Close())...)
}
