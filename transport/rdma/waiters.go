package rdma

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
)

// fifo is a list of slots of a ring, linked by sendSlot.next. Its owner is the flusher.
type fifo struct{ head, tail int32 }

var emptyFIFO = fifo{-1, -1}

func (f *fifo) empty() bool { return f.head < 0 }

func (f *fifo) push(r *sendRing, slot uint32) {
	r.at(slot).next = -1
	if f.empty() {
		f.head = int32(slot)
	} else {
		r.at(uint32(f.tail)).next = int32(slot)
	}
	f.tail = int32(slot)
}

func (f *fifo) pop(r *sendRing) (slot uint32, ok bool) {
	if f.empty() {
		return 0, false
	}
	slot = uint32(f.head)
	f.head = r.at(slot).next
	return slot, true
}

// waiters are callers that found no slot, a queue for each class. Slots that
// come free are handed to them in the order they came, and to the classes in
// turn. n is read without the lock: who frees a slot does so before it looks,
// who waits counts itself before it looks for a slot again.
type waiters struct {
	n      atomic.Int32
	mu     sync.Mutex
	queues [3][]*waiter
	turn   int
}

type waiter struct{ slot chan uint32 }

// serve hands free slots to waiters until one or the other run out.
func (w *waiters) serve(take func(transport.Class) (uint32, bool)) {
	if w.n.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for vain := 0; vain < len(w.queues); {
		class := w.turn
		w.turn = (w.turn + 1) % len(w.queues)
		if len(w.queues[class]) == 0 {
			vain++
			continue
		}
		slot, ok := take(transport.Class(class))
		if !ok {
			vain++
			continue
		}
		vain = 0
		first := w.queues[class][0]
		w.queues[class] = slices.Delete(w.queues[class], 0, 1)
		w.n.Add(-1)
		first.slot <- slot
	}
}

// leave takes a waiter out, unless it has been served.
func (w *waiters) leave(class transport.Class, me *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.queues[class], me)
	if i < 0 {
		return false
	}
	w.queues[class] = slices.Delete(w.queues[class], i, i+1)
	w.n.Add(-1)
	return true
}

// await waits for a slot, the end of ctx, or of the link.
func (l *link) await(ctx context.Context, class transport.Class) (uint32, error) {
	r := l.send
	w := &r.waiting
	me := &waiter{slot: make(chan uint32, 1)}
	w.mu.Lock()
	w.queues[class] = append(w.queues[class], me)
	w.n.Add(1)
	w.mu.Unlock()
	r.serve()
	if r.share != nil && class != transport.Control && ctx.Err() == nil && r.share.of.more() {
		r.serve()
	}
	select { // what is free now, whatever ctx says
	case slot := <-me.slot:
		return slot, nil
	default:
	}

	if r.share != nil && class != transport.Control && !r.share.open(class) {
		l.stats.creditStalls.Add(1)
	}
	var err error
	select {
	case slot := <-me.slot:
		return slot, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-l.dying:
		err = l.dead()
	}
	if !w.leave(class, me) {
		l.Discard(transport.Slot{Token: uint64(<-me.slot)})
	}
	l.gaveBack() // a claim that was granted or tried for it
	return 0, err
}
