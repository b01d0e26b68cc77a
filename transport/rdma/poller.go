package rdma

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
)

// pollBatch is how many completions one crossing brings at most.
const pollBatch = 64

// poller takes the completions of one CQ, on a goroutine of its own that is
// never locked to a thread, or on that of a caller who waits for a reply and
// has nobody beside him (help.go). Fields without a note are of who holds turn.
//
// stop ends it; the CQ and channel are destroyed after the goroutine is gone.
type poller struct {
	dev   *device
	cq    verbs.CQ
	ch    verbs.CompChannel
	table []atomic.Pointer[endpoint] // written by who makes or destroys an endpoint
	done  chan struct{}              // closed when the goroutine ends

	shared atomic.Pointer[sharedRecvs] // nil until an endpoint shares; set with dev.mu held
	sends  *sharedSends                // there if shared is; set before

	// turn is never taken with dev.mu or Fabric.mu held: a handler that runs on the poller
	// may take these, for statistics. The poller itself takes no lock that is held across a
	// command to the kernel.
	turn    sync.Mutex
	helpers atomic.Int32  // callers who poll: the goroutine leaves it to them
	vacant  chan struct{} // one token: the goroutine is wanted
	resting *time.Timer   // of the goroutine

	wcs     [pollBatch]verbs.WC
	batch   []*endpoint // touched by the present batch
	owing   []*endpoint // with a few receives to be posted when nothing else is to be done
	stopped bool

	mu      sync.Mutex
	work    []func()
	over    bool // the goroutine has ended
	hasWork atomic.Bool

	links  atomic.Int32 // connected, up to the end of their teardown
	asleep atomic.Bool  // for longer than safetyTick: who posts a send wakes it

	places []place // dev.mu: free ones of table
	room   int     // dev.mu: entries of the CQ that no endpoint needs

	naps, ticks atomic.Uint64 // sleeps, and those that the safety tick ended
}

// place is a free index of a poller's table, and the generation that the next
// endpoint there begins with.
type place struct {
	index      uint16
	generation uint32
}

// cqDepth is the number of entries a CQ is asked for: 85 links of default
// depth, or 7423 that share. More links need more pollers.
const cqDepth = 1<<15 - 1

func startPoller(d *device) (*poller, error) {
	ch, err := d.ctx.CreateCompChannel()
	if err != nil {
		return nil, &SetupError{d.name, "create a completion channel", err}
	}
	depth := cqDepth
	if d.attr.MaxCQE > 0 {
		depth = min(depth, d.attr.MaxCQE)
	}
	cq, err := d.ctx.CreateCQ(depth, ch)
	if err != nil {
		ch.Destroy()
		return nil, &SetupError{d.name, fmt.Sprintf("create a CQ of %d entries", depth), err}
	}
	p := &poller{dev: d, cq: cq, ch: ch, room: cq.Depth(), done: make(chan struct{}), vacant: make(chan struct{}, 1), resting: time.NewTimer(restTime)}
	places := min(p.room/d.cfg.slots(d.sharing()), wrid.MaxEndpoints)
	p.table = make([]atomic.Pointer[endpoint], places)
	for i := range places {
		p.places = append(p.places, place{index: uint16(i)})
	}
	go p.run()
	return p, nil
}

// do runs fn on the poller's goroutine, between two batches; or here, once that
// goroutine has ended, for what comes late to a link of a closed device.
func (p *poller) do(fn func()) {
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		fn()
		return
	}
	defer p.mu.Unlock()
	p.work = append(p.work, fn)
	p.hasWork.Store(true)
	p.resume()
	p.ch.Wake() // the channel is there while the goroutine is
}

// sync returns when the present batch is over: what was true for the poller
// before is forgotten.
func (p *poller) sync() {
	passed := make(chan struct{})
	p.do(func() { close(passed) })
	<-passed
}

// empty returns when all that was in the CQ before is taken in.
func (p *poller) empty() {
	passed := make(chan struct{})
	p.do(func() {
		defer close(passed)
		for range p.cq.Depth()/pollBatch + 1 {
			if p.poll() < pollBatch {
				return
			}
		}
	})
	<-passed
}

func (p *poller) stop() error {
	p.do(func() { p.stopped = true })
	<-p.done
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.turn.Lock()
	defer p.turn.Unlock()
	p.runWork() // what came too late for the goroutine
	if s := p.shared.Load(); s != nil {
		if err := errors.Join(s.close(), p.sends.close()); err != nil {
			return err
		}
	}
	if err := p.cq.Destroy(); err != nil {
		return err
	}
	return p.ch.Destroy()
}

func (p *poller) run() {
	defer close(p.done)
	pace := newPace(p.dev.cfg.Poll, p.dev.cfg.Spin)
	start := time.Now()
	clock := func() time.Duration { return time.Since(start) }
	for {
		stopped, worked := p.round()
		switch {
		case stopped:
			return
		case worked:
			pace.worked()
			// Callers and handlers that the batch woke are runnable on this P:
			// let them run before anything else.
			runtime.Gosched()
			continue
		case p.helpers.Load() > 0:
			p.rest()
			continue
		}
		switch pace.nothing(p.links.Load() > 0, clock) {
		case yield:
			runtime.Gosched()
		case sleep:
			if p.nap(pace.tick) {
				pace.worked()
			} else {
				pace.quiet()
			}
		}
	}
}

// round does what is to be done on the goroutine, and takes one batch.
func (p *poller) round() (stopped, worked bool) {
	p.turn.Lock()
	if p.hasWork.Load() {
		p.runWork()
	}
	stopped, worked = p.stopped, p.poll() > 0
	if !worked {
		p.repostOwed()
	}
	p.turn.Unlock() // not deferred, which costs as much as an empty poll
	return stopped, worked
}

func (p *poller) runWork() {
	p.mu.Lock()
	work := p.work
	p.work = nil
	p.hasWork.Store(false)
	p.mu.Unlock()
	for _, fn := range work {
		fn()
	}
}

// poll takes one batch, if there is one, and returns how many. turn is held.
func (p *poller) poll() int {
	n, err := p.cq.Poll(p.wcs[:])
	if err != nil {
		p.broken()
		return 0
	}
	if n == 0 {
		return 0
	}
	for i := range p.wcs[:n] {
		p.dispatch(&p.wcs[i])
	}
	if s := p.shared.Load(); s != nil && len(s.again) >= enough(len(s.all)) {
		s.repost()
	}
	for _, ep := range p.batch {
		n := ep.touched
		ep.touched = 0
		ep.endBatch(n)
	}
	p.batch = p.batch[:0]
	return n
}

// owe has receives of an endpoint posted again when the goroutine finds nothing else
// to do.
func (p *poller) owe(ep *endpoint) {
	if !ep.owed {
		ep.owed = true
		p.owing = append(p.owing, ep)
	}
}

// repostOwed posts those, and the shared ones that wait for more.
func (p *poller) repostOwed() {
	if s := p.shared.Load(); s != nil {
		s.repost()
	}
	for _, ep := range p.owing {
		ep.owed = false
		if l := ep.link.Load(); l != nil {
			l.repost()
			if l.sendable() { // CREDIT may be due
				l.flush()
			}
		}
	}
	p.owing = p.owing[:0]
}

// touch counts a completion of an endpoint, and has it end its batch.
func (p *poller) touch(ep *endpoint) {
	if ep.touched == 0 {
		p.batch = append(p.batch, ep)
	}
	ep.touched++
}

// dispatch finds the endpoint of a completion. Of an endpoint that is gone, or
// of an earlier life, it is counted and dropped (case 9).
func (p *poller) dispatch(wc *verbs.WC) {
	id := wrid.ID(wc.ID)
	if s := p.shared.Load(); id.Kind() == wrid.Shared && s != nil {
		s.came(wc)
		return
	}
	var ep *endpoint
	if int(id.Endpoint()) < len(p.table) {
		ep = p.table[id.Endpoint()].Load()
	}
	if ep == nil || uint32(id.Generation()) != ep.generation.Load()%wrid.Generations {
		p.dev.fabric.stale.Add(1)
		return
	}
	p.touch(ep)
	var slot uint32
	var known bool
	switch id.Kind() {
	case wrid.Send:
		known = ep.send.complete(id.Position())
	case wrid.Recv:
		slot, known = ep.recv.complete(id)
	}
	switch {
	case !known:
		p.dev.fabric.stale.Add(1)
	case wc.Status != verbs.WCSuccess:
		ep.failed(wc)
	case id.Kind() == wrid.Recv:
		ep.received(arrival{slot, ep.recv.frame(slot, int(wc.ByteLen))})
	}
}

// nap sleeps until a completion, a call of do or wake, or the tick, and says
// whether it was none of the tick. A completion that came before the CQ was
// armed raises no event: poll again (case 33).
func (p *poller) nap(tick time.Duration) bool {
	if err := p.cq.Arm(); err != nil {
		p.broken()
	}
	if tick > safetyTick {
		p.asleep.Store(true) // before the look at what is outstanding
		defer p.asleep.Store(false)
		if p.outstanding() {
			tick = safetyTick
		}
	}
	if stopped, worked := p.round(); stopped || worked {
		return true
	}
	if tick == idleTick {
		tick = untilWhole(idleTick)
	}
	p.naps.Add(1)
	why, err := p.ch.Wait(tick)
	if err != nil {
		p.broken()
		time.Sleep(safetyTick)
	}
	if why == verbs.WakeTimeout {
		p.ticks.Add(1)
	}
	return why != verbs.WakeTimeout
}

// broken ends all links of the poller, and the use of the device.
func (p *poller) broken() {
	p.dev.event(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: p.cq})
}

// outstanding says that a completion or the peer's credit is waited for. It takes
// the turn, for a caller may poll while the goroutine is about to sleep.
func (p *poller) outstanding() bool {
	p.turn.Lock()
	defer p.turn.Unlock()
	for i := range p.table {
		ep := p.table[i].Load()
		if ep == nil {
			continue
		}
		if l := ep.link.Load(); ep.sealed || l != nil && l.send.outstanding() {
			return true
		}
	}
	return false
}

// join counts a link that is about to be connected.
func (p *poller) join() {
	if p.links.Add(1) == 1 {
		p.ch.Wake()
	}
}

// sent tells a poller in a long sleep that a send was posted.
func (p *poller) sent() {
	if p.asleep.Load() && p.asleep.Swap(false) {
		p.ch.Wake()
	}
}
