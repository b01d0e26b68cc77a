package rdma

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/ring"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// A frame is sent in five stages:
//
//  1. Reserve takes a free slot, or waits for one. In parallel, lock-free.
//  2. The caller encodes its payload into the slot. In parallel.
//  3. Commit notes the header beside the slot and publishes the slot. In
//     parallel, lock-free; here the order of frames is decided.
//  4. Flush: the flusher stamps headers and posts all published frames that credit
//     allows, up to sendBatch in one crossing. One at a time: who gets the lock
//     of the ring. Who does not get it leaves, for the holder looks again
//     after it let go.
//  5. The completion of a signalled frame frees its slot and all before it. On
//     the poller.

// sendBatch is how many frames one crossing posts at most. The last is
// signalled, hence at least each 32nd, the last before idle, and the one that
// takes the last slot; and a drained ring has a completion for its last entry.
const sendBatch = 32

// sendRing is the send queue of an endpoint for one of its lives: as many slots
// as the queue has entries, so that a slot in hand is room in the queue (case
// 22). Slots below credit.Reserve are for frames of the link alone. It is not
// used again for the next life: a caller that is late finds it empty.
//
// Who holds a slot owns its memory and its entry in slots: a caller from
// Reserve to Commit, the flusher until it is posted, the device until it
// completed. A link that dies takes mu and keeps it: no frame is posted then.
type sendRing struct {
	mem      []byte
	addr     uint64
	key      uint32
	slotSize int
	inline   int // bytes

	free      *ring.Stack
	reserved  *ring.Stack // free slots below credit.Reserve
	bulk      atomic.Int32
	bulkLimit int32
	slots     []sendSlot
	published *ring.Queue
	waiting   waiters
	returned  chan struct{} // has an entry when a slot came back to a dead link

	posted    atomic.Uint32 // frames posted so far; written with mu held
	completed atomic.Uint32 // of these; written by the poller
	stuck     atomic.Uint32 // classes of frames that wait for credit; written with mu held

	mu     sync.Mutex // the flush lock; guards what follows
	order  []uint32   // slot of the frame posted n-th, at n modulo length, which divides 2^32
	queues [2]fifo    // published and not posted: frames of lanes, frames of the link
	ticket uint32
	wrs    [sendBatch]verbs.SendWR

	probe    probe
	unmarked bool // the last sends posted are not signalled; the marker behind them is not posted yet
}

// sendSlot is what is known of the frame in a slot.
type sendSlot struct {
	header wire.Header
	class  transport.Class
	length int
	next   int32  // in its fifo
	ticket uint32 // number of the frame among those published
}

func newSendRing(mem []byte, addr uint64, key uint32, cfg *Config, inline int) *sendRing {
	n := cfg.SQDepth
	r := &sendRing{
		mem: mem, addr: addr, key: key, slotSize: cfg.SlotSize, inline: inline,
		free: ring.NewStack(n), reserved: ring.NewStack(n), published: ring.NewQueue(n),
		bulkLimit: int32(n-credit.Reserve) / 2, // and half the window, once that is known
		slots:     make([]sendSlot, n),
		order:     make([]uint32, 1<<bits.Len(uint(n-1))),
		queues:    [2]fifo{emptyFIFO, emptyFIFO},
		returned:  make(chan struct{}, 1),
	}
	for slot := n - 1; slot >= 0; slot-- {
		r.put(uint32(slot))
	}
	return r
}

// take takes a free slot for a frame of the class, if there is one.
func (r *sendRing) take(class transport.Class) (slot uint32, ok bool) {
	switch class {
	case transport.Control:
		if slot, ok = r.reserved.Pop(); ok {
			break
		}
		slot, ok = r.free.Pop()
	case transport.Bulk:
		if r.bulk.Add(1) > r.bulkLimit {
			r.bulk.Add(-1)
			return 0, false
		}
		if slot, ok = r.free.Pop(); !ok {
			r.bulk.Add(-1)
		}
	default:
		slot, ok = r.free.Pop()
	}
	if ok {
		r.slots[slot].class = class
	}
	return slot, ok
}

// put makes a slot free.
func (r *sendRing) put(slot uint32) {
	if r.slots[slot].class == transport.Bulk {
		r.bulk.Add(-1)
	}
	r.slots[slot].class = transport.Small
	if slot < credit.Reserve {
		r.reserved.Push(slot)
	} else {
		r.free.Push(slot)
	}
}

// outstanding says that a completion or credit is waited for. Any goroutine may
// ask.
func (r *sendRing) outstanding() bool {
	return r.posted.Load() != r.completed.Load() || r.stuck.Load() != 0
}

// complete frees the slot of the frame posted at a position and of all before
// it, which the device took in order. It returns false for what was completed
// already: rxe completes some failed work requests twice. Poller only.
func (r *sendRing) complete(position uint32) bool {
	done, posted := r.completed.Load(), r.posted.Load()
	if position-done >= posted-done {
		return false
	}
	for ; done != position+1; done++ {
		r.put(r.order[done%uint32(len(r.order))])
	}
	r.completed.Store(done)
	r.probe.completed(position)
	return true
}

// Reserve claims a slot. See transport.Link.
func (l *link) Reserve(ctx context.Context, class transport.Class, n int) (transport.Slot, error) {
	if n < 0 || n > l.maxPayload {
		return transport.Slot{}, &transport.TooLargeError{Size: n, Max: l.maxPayload}
	}
	if err := l.dead(); err != nil {
		return transport.Slot{}, err
	}
	r := l.send
	// Who finds others waiting goes behind them; frames of the link have
	// slots of their own.
	ok := false
	var slot uint32
	if class == transport.Control || r.waiting.n.Load() == 0 {
		slot, ok = r.take(class)
	}
	if !ok {
		var err error
		if slot, err = l.await(ctx, class); err != nil {
			return transport.Slot{}, err
		}
	}
	r.slots[slot].length = n
	at := int(slot)*r.slotSize + wire.HeaderSize
	return transport.Slot{Payload: r.mem[at : at+n : at+n], Token: uint64(slot), Ref: l}, nil
}

// Discard gives a slot back.
func (l *link) Discard(s transport.Slot) {
	r := l.send
	r.put(uint32(s.Token))
	r.waiting.serve(r.take)
	if l.sendable() {
		l.flush() // a CREDIT frame may have waited for it
	}
	l.gaveBack()
}

// home waits until no caller has a slot, and takes all that are free. The flush
// lock is held. Slots that the device kept after a drain that did not end are
// not waited for; the poller has nothing to do with them any more.
func (r *sendRing) home(ctx context.Context) bool {
	want := len(r.slots) - int(r.posted.Load()-r.completed.Load())
	for n := 0; ; {
		for _, q := range []func() (uint32, bool){r.published.Pop, r.free.Pop, r.reserved.Pop} {
			for _, ok := q(); ok; _, ok = q() {
				n++
			}
		}
		for i := range r.queues {
			for ; !r.queues[i].empty(); n++ {
				r.queues[i].pop(r.slots)
			}
		}
		if n == want {
			return true
		}
		select {
		case <-r.returned:
		case <-ctx.Done():
			return false
		}
	}
}

// Commit publishes the frame. See transport.Link.
func (l *link) Commit(s transport.Slot, h *wire.Header) error {
	r, slot := l.send, uint32(s.Token)
	if err := l.dead(); err != nil {
		return err
	}
	e := &r.slots[slot]
	e.header = *h
	e.header.Length = uint32(e.length)
	if l.sums && h.Kind.InLane() {
		e.header.Flags |= wire.Sum
	}
	if e.length == 0 {
		e.header.Flags &^= wire.Sum
	}
	r.published.Push(slot)
	l.gaveBack()
	return nil
}

// Flush posts what was published. See transport.Link.
func (l *link) Flush() { l.flush() }

// gaveBack tells a teardown under way that a slot may have come back.
func (l *link) gaveBack() {
	if l.dead() != nil {
		select {
		case l.send.returned <- struct{}{}:
		default:
		}
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
		stuck&(1<<credit.Data) != 0 && l.window.May(credit.Data) ||
		stuck&(1<<credit.Link) != 0 && l.window.May(credit.Link) ||
		l.creditDue()
}

// creditDue says that a CREDIT frame is owed and can be sent.
func (l *link) creditDue() bool {
	r := l.send
	return l.grants.Due() && l.window.May(credit.Credit) && !(r.reserved.Empty() && r.free.Empty())
}

// pump posts all that may be posted. The flush lock is held.
func (l *link) pump() {
	r := l.send
	for l.dead() == nil {
		start, n, size := r.posted.Load(), 0, 0
		for n < sendBatch {
			slot, ok := l.next()
			if !ok {
				break
			}
			size += l.stamp(slot, start+uint32(n), &r.wrs[n])
			n++
		}
		if n == 0 && l.creditDue() {
			if slot, ok := r.take(transport.Control); ok {
				l.window.Take()
				r.slots[slot].header = wire.Header{Kind: wire.Credit}
				size += l.stamp(slot, start, &r.wrs[0])
				n = 1
			}
		}
		if n == 0 {
			return
		}
		l.post(start, n, size)
	}
}

// next picks the frame that leaves next: in the order of Commit, except that
// frames of the link pass those of lanes that wait for credit.
func (l *link) next() (slot uint32, ok bool) {
	r := l.send
	r.sort()
	lane, own := &r.queues[credit.Data], &r.queues[credit.Link]
	mayLane := !lane.empty() && l.window.May(credit.Data)
	mayOwn := !own.empty() && l.window.May(credit.Link)
	if mayLane && mayOwn {
		mayLane = int32(r.slots[lane.head].ticket-r.slots[own.head].ticket) < 0
	}
	switch {
	case mayLane:
		slot, ok = lane.pop(r.slots), true
	case mayOwn:
		slot, ok = own.pop(r.slots), true
	default:
		l.stall(lane, own)
		return 0, false
	}
	l.window.Take()
	return slot, ok
}

// sort puts what was published into the queues. The flush lock is held.
func (r *sendRing) sort() {
	for {
		slot, ok := r.published.Pop()
		if !ok {
			return
		}
		r.slots[slot].ticket = r.ticket
		r.ticket++
		r.queues[classOf(r.slots[slot].header.Kind)].push(r.slots, slot)
	}
}

func classOf(k wire.Kind) credit.Class {
	if k.InLane() {
		return credit.Data
	}
	return credit.Link
}

// stall notes which frames wait for credit, for sendable.
func (l *link) stall(lane, own *fifo) {
	r := l.send
	var stuck uint32
	if !lane.empty() {
		stuck |= 1 << credit.Data
	}
	if !own.empty() {
		stuck |= 1 << credit.Link
	}
	if old := r.stuck.Swap(stuck); stuck&^old != 0 {
		l.stats.creditStalls.Add(1)
	}
}

// stamp completes the frame in a slot, as the position-th of the queue, and
// makes its work request. It returns the size of the frame.
func (l *link) stamp(slot, position uint32, wr *verbs.SendWR) int {
	r := l.send
	h := &r.slots[slot].header
	h.Epoch, h.Credit = l.epoch, l.grants.Stamp()
	frame := r.mem[int(slot)*r.slotSize:][:h.FrameSize()]
	h.Put(frame)
	if h.Flags&wire.Sum != 0 {
		end := wire.HeaderSize + int(h.Length)
		putSum(frame[end:], frame[wire.HeaderSize:end])
	}
	r.order[position%uint32(len(r.order))] = slot
	*wr = verbs.SendWR{
		ID:     uint64(wrid.Make(wrid.Send, l.generation, l.ep.index, position)),
		Addr:   r.addr + uint64(slot)*uint64(r.slotSize),
		Length: uint32(len(frame)),
		LKey:   r.key,
		Opcode: verbs.OpSend,
	}
	if len(frame) <= r.inline {
		wr.Flags = verbs.SendInline
	}
	return len(frame)
}

// post hands n stamped frames to the device, in one crossing.
func (l *link) post(start uint32, n, size int) {
	r := l.send
	r.wrs[n-1].Flags |= verbs.SendSignaled
	r.posted.Store(start + uint32(n)) // before a completion can come
	r.probe.posted(start + uint32(n) - 1)
	taken, err := l.ep.qp.PostSend(r.wrs[:n])
	if err != nil {
		if taken > 0 { // unsignalled; the slot after them is kept for the marker
			r.unmarked = true
			taken++
		}
		r.posted.Store(start + uint32(taken))
		for i := taken; i < n; i++ {
			r.put(r.order[(start+uint32(i))%uint32(len(r.order))])
		}
		l.fail(err, false)
		return
	}
	l.ep.poller.sent()
	l.stats.framesSent.Add(uint64(n))
	l.stats.bytesSent.Add(uint64(size))
	l.stats.sendBatches.Add(1)
}
