package rdma

import (
	"context"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// A frame is sent in five stages:
//
//  1. Reserve takes a free slot, or waits for one. In parallel, lock-free.
//  2. The caller encodes its payload into the slot. In parallel.
//  3. Commit writes the header, but for the credit and its sum, and publishes
//     the slot. In parallel, lock-free; here the order of frames is decided.
//  4. Flush: the flusher seals headers and posts all published frames that credit
//     allows, up to sendBatch in one crossing. One at a time: who gets the lock
//     of the ring. Who does not get it leaves, for the holder looks again
//     after it let go.
//  5. The completion of a signalled frame frees its slot and all before it. On
//     the poller.

// sendBatch is how many frames one crossing posts at most. The last is
// signalled, hence at least each 32nd, the last before idle, and the one that
// takes the last slot; and a drained ring has a completion for its last entry.
const sendBatch = 32

// Reserve claims a slot. See transport.Link.
func (l *link) Reserve(ctx context.Context, class transport.Class, n int) (transport.Slot, error) {
	if n < 0 || n > l.maxPayload {
		return transport.Slot{}, &transport.TooLargeError{Size: n, Max: l.maxPayload}
	}
	if err := l.dead(); err != nil {
		return transport.Slot{}, err
	}
	if class == transport.Control && n > wire.MaxPing {
		class = transport.Small // what little a session has to say that is so long
	}
	r := l.send
	// Who finds others waiting goes behind them; frames of the link have
	// slots of their own.
	ok := false
	var slot uint32
	if class == transport.Control || r.waiting.n.Load() == 0 && (r.share == nil || r.share.of.waiting.Load() == 0) {
		slot, ok = r.take(class)
	}
	if !ok {
		var err error
		if slot, err = l.await(ctx, class); err != nil {
			return transport.Slot{}, err
		}
	}
	e := r.at(slot)
	e.length = uint32(n)
	return transport.Slot{Payload: e.mem[wire.HeaderSize:][:n:n], Token: uint64(slot), Ref: l}, nil
}

// Discard gives a slot back.
func (l *link) Discard(s transport.Slot) {
	r := l.send
	r.unused(uint32(s.Token))
	r.put(uint32(s.Token))
	r.serve()
	if l.sendable() {
		l.flush() // a CREDIT frame may have waited for it
	}
	l.gaveBack()
}

// Commit publishes the frame. See transport.Link.
func (l *link) Commit(s transport.Slot, h *wire.Header) error {
	r, slot := l.send, uint32(s.Token)
	if err := l.dead(); err != nil {
		return err
	}
	l.draft(slot, *h)
	r.published.Push(slot)
	l.gaveBack()
	return nil
}

// draft completes the frame in a slot, but for what it is sealed with.
func (l *link) draft(slot uint32, h wire.Header) {
	r := l.send
	e := r.at(slot)
	h.Length, h.Epoch = e.length, l.epoch
	if l.sums && h.Kind.InLane() {
		h.Flags |= wire.Sum
	}
	if h.Length == 0 {
		h.Flags &^= wire.Sum
	}
	e.class, e.length = classOf(h.Kind), uint32(h.FrameSize())
	frame := e.mem[:e.length]
	h.Draft(frame)
	if h.Flags&wire.Sum != 0 {
		end := wire.HeaderSize + int(h.Length)
		putSum(frame[end:], frame[wire.HeaderSize:end])
	}
}

// gaveBack tells a teardown under way that a slot may have come back. One that is over
// does not hear it: the slot is taken here.
func (l *link) gaveBack() {
	if l.dead() != nil {
		select {
		case l.send.returned <- struct{}{}:
		default:
		}
		l.send.collectLate()
	}
}

// flush posts what can be posted, unless somebody else is at it.
func (l *link) flush() {
	r := l.send
	for r.mu.TryLock() {
		l.pump()
		r.mu.Unlock()
		if !l.sendable() {
			return
		}
	}
}

// sendable says that a flush would post something.
func (l *link) sendable() bool {
	r := l.send
	if l.dead() != nil {
		return false
	}
	stuck := r.stuck.Load()
	return r.published.Ready() ||
		stuck&(1<<credit.Data) != 0 && credit.Data.In(r.room(l.window)) ||
		stuck&(1<<credit.Link) != 0 && credit.Link.In(r.room(l.window)) ||
		l.creditDue()
}

// creditDue says that a CREDIT frame is owed and can be sent.
func (l *link) creditDue() bool {
	r := l.send
	return l.grants.Due() && credit.Credit.In(r.room(l.window)) && !(r.owing.Load() && r.reserved.Empty() && (r.share != nil || r.free.Empty()))
}

// pump posts all that may be posted. The flush lock is held.
func (l *link) pump() {
	r := l.send
	for l.dead() == nil {
		start := r.posted.Load()
		n := l.gather(start)
		if n == 0 && l.creditDue() {
			if slot, ok := r.takeForCredit(); ok {
				r.at(slot).length = 0
				l.draft(slot, wire.Header{Kind: wire.Credit})
				r.order[start&r.mask] = slot
				n = 1
			}
		}
		if n > 0 {
			l.window.Take(n)
			l.post(start, n)
		}
		if n < sendBatch { // what was published meanwhile is the next flush's
			return
		}
	}
}

// gather takes the frames that leave next, a batch at most, into order, from
// start on. The order is that of Commit, except that frames of the link pass
// those of lanes that wait for credit.
func (l *link) gather(start uint32) (n uint32) {
	r := l.send
	for room := r.room(l.window); n < sendBatch; n++ {
		slot, ok := r.next(room - n)
		if !ok {
			l.stall()
			break
		}
		r.order[(start+n)&r.mask] = slot
	}
	return n
}

// next picks the frame that leaves next, if there is room for one.
func (r *sendRing) next(room uint32) (slot uint32, ok bool) {
	lane, own := &r.queues[credit.Data], &r.queues[credit.Link]
	for {
		if slot, ok = r.published.Pop(); !ok {
			break
		}
		e := r.at(slot)
		if lane.empty() && own.empty() && e.class.In(room) {
			return slot, true // as most do
		}
		e.ticket = r.ticket
		r.ticket++
		r.queues[e.class].push(r, slot)
	}
	mayLane := !lane.empty() && credit.Data.In(room)
	mayOwn := !own.empty() && credit.Link.In(room)
	if mayLane && mayOwn {
		mayLane = int32(r.at(uint32(lane.head)).ticket-r.at(uint32(own.head)).ticket) < 0
	}
	switch {
	case mayLane:
		return lane.pop(r)
	case mayOwn:
		return own.pop(r)
	}
	return 0, false
}

func classOf(k wire.Kind) credit.Class {
	if k.InLane() {
		return credit.Data
	}
	return credit.Link
}

// stall notes which frames wait for credit, or for the send queue, for sendable.
func (l *link) stall() {
	r := l.send
	var stuck uint32
	for class := range r.queues {
		if !r.queues[class].empty() {
			stuck |= 1 << class
		}
	}
	old := r.stuck.Load()
	if stuck != old {
		r.stuck.Store(stuck)
	}
	if stuck&^old != 0 {
		l.stats.creditStalls.Add(1)
	}
}

// post seals n frames and hands them to the device, in one crossing.
func (l *link) post(start, n uint32) {
	r := l.send
	grant, size := l.grants.Stamp(), uint64(0)
	for i := range n {
		e := r.at(r.order[(start+i)&r.mask])
		wire.Seal(e.mem, grant)
		wr := &r.wrs[i]
		wr.ID = uint64(wrid.Make(wrid.Send, l.generation, l.ep.index, start+i))
		wr.Addr, wr.Length, wr.LKey, wr.Flags = e.addr, e.length, e.key, 0
		if e.length <= r.inline {
			wr.Flags = verbs.SendInline
		}
		size += uint64(e.length)
	}
	r.wrs[n-1].Flags |= verbs.SendSignaled
	if r.share != nil {
		r.took(start, n)
	}
	r.posted.Store(start + n) // before a completion can come
	r.probe.posted(start + n - 1)
	taken, err := l.ep.qp.PostSend(r.wrs[:n])
	if err != nil {
		l.refused(start, n, uint32(taken), err)
		return
	}
	l.ep.poller.sent()
	l.stats.framesSent.Add(uint64(n))
	l.stats.bytesSent.Add(size)
	l.stats.sendBatches.Add(1)
}

// refused ends the link after a post of which the device took a part.
func (l *link) refused(start, n, taken uint32, err error) {
	r := l.send
	if taken > 0 && taken < n { // unsignalled; the slot after them is kept for the marker
		r.unmarked = true
		taken++
	}
	r.posted.Store(start + taken)
	for i := taken; i < n; i++ {
		r.put(r.order[(start+i)&r.mask])
	}
	r.serve() // the links that share its slots
	l.fail(err, false)
}
