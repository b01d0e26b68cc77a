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

// linkFrame is the size of the slots for frames of the link itself, in bytes: PONG
// is the longest of them.
const linkFrame = wire.HeaderSize + wire.MaxPing + wire.SumSize

// sendRing is the send queue of an endpoint for one of its lives: as many slots
// as the queue has entries, so that a slot in hand is room in the queue (case
// 22). Those below credit.Reserve are for frames of the link alone, and small; the
// first is kept for CREDIT, so that nothing that waits for the peer's credit keeps
// ours from it. Where endpoints share, the others are of sharedSends, and as many in
// hand as the queue has room for. The ring is not used again for the next life: a
// caller that is late finds it empty.
//
// Who holds a slot owns its memory and its sendSlot: a caller from
// Reserve to Commit, the flusher until it is posted, the device until it
// completed. A link that dies takes mu and keeps it: no frame is posted then.
type sendRing struct {
	inline uint32 // bytes

	own   [credit.Reserve]sendSlot
	rest  []sendSlot // from credit.Reserve on
	share *share     // nil: rest is the ring's alone
	slots int        // that are the ring's alone

	free      *ring.Stack // those of rest
	reserved  *ring.Stack // free slots below credit.Reserve, but for the first
	owing     atomic.Bool // a CREDIT has the first
	bulk      atomic.Int32
	bulkLimit int32
	published *ring.Queue
	waiting   waiters
	returned  chan struct{} // has an entry when a slot came back to a dead link

	posted    atomic.Uint32 // frames posted so far; written with mu held
	completed atomic.Uint32 // of these; written by the poller
	stuck     atomic.Uint32 // classes of frames that wait for credit; written with mu held

	mu     sync.Mutex // the flush lock; guards what follows
	order  []uint32   // slot of the frame posted n-th, at n&mask
	mask   uint32     // length of order less one, which divides 2^32
	queues [2]fifo    // published and not posted: frames of lanes, frames of the link
	ticket uint32
	wrs    [sendBatch]verbs.SendWR

	probe    probe
	unmarked bool // the last sends posted are not signalled; the marker behind them is not posted yet
}

// sendSlot is room for a frame, and what is known of the frame in it.
type sendSlot struct {
	mem  []byte
	addr uint64 // of mem
	key  uint32 // of its registration

	bulk   bool         // it counts in sendRing.bulk
	class  credit.Class // from Commit on
	length uint32       // of the payload; from Commit on, of the frame
	next   int32        // in its fifo
	ticket uint32       // number of the frame among those that went to the fifos
}

// newSendRing makes a ring for a send queue of n entries. The slots for frames of
// the link are in own, the others in rest, or shared.
func newSendRing(n int, own, rest region, of *sharedSends, cfg *Config, inline int) *sendRing {
	size := 1 << bits.Len(uint(n-1))
	r := &sendRing{
		inline:   uint32(inline),
		reserved: ring.NewStack(credit.Reserve), published: ring.NewQueue(n),
		bulkLimit: int32(n-credit.Reserve) / 2, // and half the window, once that is known
		order:     make([]uint32, size),
		mask:      uint32(size - 1),
		queues:    [2]fifo{emptyFIFO, emptyFIFO},
		returned:  make(chan struct{}, 1),
	}
	copy(r.own[:], own.slots(credit.Reserve, linkFrame))
	if of != nil {
		r.rest, r.free, r.slots = of.slots, of.free, credit.Reserve
		r.share = &share{of: of, most: int32(n - credit.Reserve)}
	} else {
		r.rest, r.free, r.slots = rest.slots(n-credit.Reserve, cfg.SlotSize), ring.NewStack(n), n
	}
	for slot := r.slots - 1; slot >= 0; slot-- {
		r.put(uint32(slot))
	}
	for i := range r.wrs {
		r.wrs[i].Opcode = verbs.OpSend
	}
	return r
}

// at is the slot of a number.
func (r *sendRing) at(slot uint32) *sendSlot {
	if slot < credit.Reserve {
		return &r.own[slot]
	}
	return &r.rest[slot-credit.Reserve]
}

// slots are the first n slots of so many bytes in the region.
func (m region) slots(n, size int) []sendSlot {
	all := make([]sendSlot, n)
	for i := range all {
		at := m.cut(i*size, size)
		all[i] = sendSlot{mem: at.mem, addr: at.addr, key: at.key}
	}
	return all
}

// take takes a free slot for a frame of the class, if there is one.
func (r *sendRing) take(class transport.Class) (slot uint32, ok bool) {
	switch class {
	case transport.Control:
		if slot, ok = r.reserved.Pop(); !ok && r.share == nil {
			slot, ok = r.free.Pop()
		}
	case transport.Bulk:
		if r.bulk.Add(1) > r.bulkLimit {
			r.bulk.Add(-1)
			return 0, false
		}
		if slot, ok = r.pop(class); !ok {
			r.bulk.Add(-1)
			return 0, false
		}
		r.at(slot).bulk = true
	default:
		slot, ok = r.pop(class)
	}
	return slot, ok
}

// pop takes a free slot for a frame of a lane.
func (r *sendRing) pop(class transport.Class) (slot uint32, ok bool) {
	if r.share == nil {
		return r.free.Pop()
	}
	if !r.share.claim(class) {
		return 0, false
	}
	if slot, ok = r.free.Pop(); !ok {
		r.share.unclaim()
	}
	return slot, ok
}

// put makes a slot free.
func (r *sendRing) put(slot uint32) {
	if e := r.at(slot); e.bulk {
		e.bulk = false
		r.bulk.Add(-1)
	}
	switch {
	case slot == 0:
		r.owing.Store(false)
	case slot < credit.Reserve:
		r.reserved.Push(slot)
	default:
		r.free.Push(slot)
		if r.share != nil {
			r.share.held.Add(-1)
		}
	}
}

// takeForCredit takes a slot for a CREDIT. The flush lock is held.
func (r *sendRing) takeForCredit() (slot uint32, ok bool) {
	if slot, ok = r.take(transport.Control); ok {
		return slot, true
	}
	return 0, r.owing.CompareAndSwap(false, true)
}

// outstanding says that a completion or credit is waited for. Any goroutine may
// ask.
func (r *sendRing) outstanding() bool {
	return r.posted.Load() != r.completed.Load() || r.stuck.Load() != 0 || r.waiting.n.Load() != 0
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
		r.put(r.order[done&r.mask])
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

// home waits until no caller has a slot, and takes all that are free; those that
// are shared it gives back. The flush lock is held. Slots that the device kept after
// a drain that did not end are not waited for; the poller has nothing to do with
// them any more.
func (r *sendRing) home(ctx context.Context) bool {
	kept := int(r.posted.Load() - r.completed.Load())
	for n := 0; ; {
		n += r.collect()
		away := r.slots - n
		if r.share != nil {
			r.share.of.serve()
			away += int(r.share.held.Load())
		}
		if away == kept {
			return true
		}
		select {
		case <-r.returned:
		case <-ctx.Done():
			return false
		}
	}
}

// collect takes what is free or was to be sent, and returns how many were the
// ring's alone.
func (r *sendRing) collect() (n int) {
	if r.owing.CompareAndSwap(false, true) {
		n++
	}
	pops := []func() (uint32, bool){r.reserved.Pop, r.published.Pop}
	for i := range r.queues {
		pops = append(pops, func() (uint32, bool) { return r.queues[i].pop(r) })
	}
	if r.share == nil {
		pops = append(pops, r.free.Pop)
	}
	for _, pop := range pops {
		for slot, ok := pop(); ok; slot, ok = pop() {
			if r.share != nil && slot >= credit.Reserve {
				r.put(slot)
			} else {
				n++
			}
		}
	}
	return n
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
	return l.grants.Due() && l.window.May(credit.Credit) && !(r.owing.Load() && r.reserved.Empty() && (r.share != nil || r.free.Empty()))
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
	for room := l.window.Room(); n < sendBatch; n++ {
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

// stall notes which frames wait for credit, for sendable.
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
	if taken > 0 { // unsignalled; the slot after them is kept for the marker
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
