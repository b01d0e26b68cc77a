package simverbs

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// compQueue is a completion queue. The device enters completions under Fabric.mu, the
// owner polls without it; mu guards the ring between them.
type compQueue struct {
	object
	dev   *device
	ch    *compChannel
	depth int

	count  atomic.Int64 // entries in ring, so that an empty poll takes no lock
	dead   atomic.Bool  // destroyed: late completions vanish
	broken atomic.Bool  // it cannot be polled any more

	mu      sync.Mutex
	ring    []cqEntry // grows up to depth
	head    int
	armed   bool
	overrun bool // since the last poll

	held []cqEntry // guarded by Fabric.mu: entered when the CQ is armed
}

// cqEntry is a completion and what polling it frees.
type cqEntry struct {
	wc    verbs.WC
	send  bool
	qp    *queuePair // a send under the Spec model: polling frees
	sqEnd uint64     // the slots of qp up to here

	unpolled *atomic.Int64 // counts it until it is polled; nil if it is not counted
}

func (d *device) CreateCQ(depth int, ch verbs.CompChannel) (verbs.CQ, error) {
	const op = "ibv_create_cq"
	if err := d.enterAlive(op, &d.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	if depth < 1 || depth > d.nic.attr.MaxCQE {
		return nil, &verbs.Error{Op: op, Object: d.name, Errno: syscall.EINVAL,
			Hint: fmt.Sprintf("%d entries, the device allows 1 to %d", depth, d.nic.attr.MaxCQE)}
	}
	cq := &compQueue{dev: d, depth: d.f.roundCQ(depth)}
	cq.ring = make([]cqEntry, min(cq.depth, 64))
	from := []*object{&d.object}
	if ch != nil {
		c, ok := ch.(*compChannel)
		if !ok || c.dev != d || c.gone {
			return nil, &verbs.Error{Op: op, Object: d.name, Errno: syscall.EINVAL, Hint: "channel of another device"}
		}
		cq.ch = c
		from = append(from, &c.object)
	}
	cq.born("CQ", "CQ of "+d.name, from...)
	d.nic.cqs = append(d.nic.cqs, cq)
	return cq, nil
}

// Depth is the number of entries after rounding.
func (cq *compQueue) Depth() int { return cq.depth }

func (cq *compQueue) Poll(wc []verbs.WC) (int, error) {
	switch {
	case cq.dead.Load():
		return 0, &verbs.Error{Op: "ibv_poll_cq", Object: cq.name, Errno: syscall.EBADF, Hint: "it was destroyed before"}
	case cq.broken.Load():
		return 0, &verbs.Error{Op: "ibv_poll_cq", Object: cq.name, Errno: syscall.EIO, Hint: "planned fault"}
	case cq.count.Load() == 0:
		return 0, nil
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	n := min(len(wc), int(cq.count.Load()))
	for i := range wc[:n] {
		e := &cq.ring[cq.head]
		wc[i] = e.wc
		if e.qp != nil {
			e.qp.free(e.sqEnd)
			e.qp = nil
		}
		if e.unpolled != nil {
			e.unpolled.Add(-1)
		}
		if cq.head++; cq.head == len(cq.ring) {
			cq.head = 0
		}
	}
	cq.count.Add(int64(-n))
	cq.overrun = cq.overrun && n == 0
	return n, nil
}

// push enters a completion. Fabric.mu is held.
func (cq *compQueue) push(e cqEntry) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.dead.Load() {
		return
	}
	n := int(cq.count.Load())
	if n == cq.depth {
		if !cq.overrun {
			cq.overrun = true
			cq.dev.events.push(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: cq})
		}
		return
	}
	if n == len(cq.ring) {
		cq.grow()
	}
	at := cq.head + n
	if at >= len(cq.ring) {
		at -= len(cq.ring)
	}
	cq.ring[at] = e
	cq.count.Add(1)
	cq.dev.f.stats.Completions++
	if cq.armed {
		cq.armed = false
		if cq.ch != nil && !cq.dev.f.losesEvent() {
			cq.ch.wake(wakeEvent)
		}
	}
}

func (cq *compQueue) grow() {
	ring := make([]cqEntry, min(cq.depth, 4*len(cq.ring)))
	copied := copy(ring, cq.ring[cq.head:])
	copy(ring[copied:], cq.ring[:cq.head])
	cq.ring, cq.head = ring, 0
}

func (cq *compQueue) Arm() error {
	if err := cq.dev.enterAlive("ibv_req_notify_cq", &cq.object); err != nil {
		return err
	}
	defer cq.dev.f.mu.Unlock()
	cq.releaseHeld()
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.armed = true
	return nil
}

func (cq *compQueue) isArmed() bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.armed
}

// releaseHeld enters the completions that were kept for this moment. Fabric.mu
// is held.
func (cq *compQueue) releaseHeld() {
	held := cq.held
	cq.held = nil
	for _, e := range held {
		cq.push(e)
	}
}

func (cq *compQueue) Destroy() error {
	if err := cq.dev.enter("ibv_destroy_cq", &cq.object); err != nil {
		return err
	}
	defer cq.dev.f.mu.Unlock()
	if err := cq.die("ibv_destroy_cq"); err != nil {
		return err
	}
	cq.dead.Store(true)
	n := cq.dev.nic
	n.cqs = slices.DeleteFunc(n.cqs, func(other *compQueue) bool { return other == cq })
	return nil
}

// compChannel delivers completion events. flags and ring are all there is to
// Wait: set a flag, ring once.
type compChannel struct {
	object
	dev   *device
	flags atomic.Uint32
	ring  chan struct{}
}

const (
	wakeEvent uint32 = 1 << iota
	wakeCall
)

func (d *device) CreateCompChannel() (verbs.CompChannel, error) {
	if err := d.enterAlive("ibv_create_comp_channel", &d.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	c := &compChannel{dev: d, ring: make(chan struct{}, 1)}
	c.born("channel", "channel of "+d.name, &d.object)
	return c, nil
}

func (c *compChannel) wake(flag uint32) {
	c.flags.Or(flag)
	signal(c.ring)
}

func (c *compChannel) Wake() { c.wake(wakeCall) }

func (c *compChannel) Wait(timeout time.Duration) (verbs.WakeReason, error) {
	var expired <-chan time.Time
	for {
		switch flags := c.flags.Swap(0); {
		case flags&wakeCall != 0:
			return verbs.WakeCall, nil
		case flags&wakeEvent != 0:
			return verbs.WakeEvent, nil
		case timeout == 0:
			return verbs.WakeTimeout, nil
		}
		if timeout > 0 && expired == nil {
			t := time.NewTimer(timeout)
			defer t.Stop()
			expired = t.C
		}
		select {
		case <-c.ring:
		case <-expired:
			timeout = 0
		}
	}
}

func (c *compChannel) Destroy() error {
	if err := c.dev.enter("ibv_destroy_comp_channel", &c.object); err != nil {
		return err
	}
	defer c.dev.f.mu.Unlock()
	return c.die("ibv_destroy_comp_channel")
}
