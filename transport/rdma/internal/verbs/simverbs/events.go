package simverbs

import (
	"sync"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// eventQueue holds the asynchronous events of an open device. It has its own
// lock, taken after Fabric.mu and CQ locks.
type eventQueue struct {
	ring chan struct{} // of one: something may be there

	mu         sync.Mutex
	events     []verbs.AsyncEvent
	interrupts int
}

func (q *eventQueue) push(e verbs.AsyncEvent) {
	q.mu.Lock()
	q.events = append(q.events, e)
	q.mu.Unlock()
	signal(q.ring)
}

// take removes the next event, or one interrupt if there is none.
func (q *eventQueue) take() (e verbs.AsyncEvent, err error, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.events) > 0:
		e = q.events[0]
		q.events = q.events[1:]
	case q.interrupts > 0:
		q.interrupts--
		err = verbs.ErrInterrupted
	default:
		return e, nil, false
	}
	if len(q.events) > 0 || q.interrupts > 0 {
		signal(q.ring)
	}
	return e, err, true
}

func (d *device) AsyncEvent() (verbs.AsyncEvent, error) {
	for {
		if e, err, ok := d.events.take(); ok {
			return e, err
		}
		<-d.events.ring
	}
}

func (d *device) Interrupt() {
	d.events.mu.Lock()
	d.events.interrupts++
	d.events.mu.Unlock()
	signal(d.events.ring)
}

// raise gives the event to all who opened the device. Fabric.mu is held.
func (n *nic) raise(e verbs.AsyncEvent) {
	for _, d := range n.open {
		d.events.push(e)
	}
}

// signal makes the next or current receive from a channel of one return.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
