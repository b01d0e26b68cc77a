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
	"github.com/verbena-rpc/verbena/transport/wire"
)

// linkFrame is the size of the slots for frames of the link itself, in bytes: PONG
// is the longest of them.
const linkFrame = wire.HeaderSize + wire.MaxPing + wire.SumSize

// sendRing is the send queue of an endpoint for one of its lives: as many slots
// as the queue has entries, so that a slot in hand is room in the queue (case
// 22). Those below credit.Reserve are for frames of the link alone, and small; the
// first is kept for CREDIT, so that nothing that waits for the peer's credit keeps
// ours from it. Where endpoints share, the others are of sharedSends, and more may be in
// hand than the queue has room for: frames of lanes wait for that as for credit. The ring
// is not used again for the next life: a caller that is late finds it empty.
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

	late  sync.Mutex // guards what follows
	homed int        // slots that are the ring's alone and were collected; home's, until it ends
	leave func()     // of homeLate
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
	size, most := 1<<bits.Len(uint(n-1)), n
	if of != nil {
		most = min(cfg.SQDepth, sharedHold)
	}
	r := &sendRing{
		inline:   uint32(inline),
		reserved: ring.NewStack(credit.Reserve), published: ring.NewQueue(most),
		bulkLimit: int32(most-credit.Reserve) / 2, // or less, once the window is known
		order:     make([]uint32, size),
		mask:      uint32(size - 1),
		queues:    [2]fifo{emptyFIFO, emptyFIFO},
		returned:  make(chan struct{}, 1),
	}
	copy(r.own[:], own.slots(credit.Reserve, linkFrame))
	if of != nil {
		r.rest, r.free, r.slots = of.slots, of.free, credit.Reserve
		r.share = &share{of: of, depth: uint32(n), ahead: int32(most - credit.Reserve)}
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
			r.share.release()
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

// room is how many frames may be posted, by the peer's credit, and by the send
// queue where a slot in hand is not room there. Any goroutine may ask.
func (r *sendRing) room(w *credit.Window) uint32 {
	room := w.Room()
	if r.share != nil {
		room = min(room, r.share.depth-(r.posted.Load()-r.completed.Load()))
	}
	return room
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

// home waits until no caller has a slot, and takes all that are free; those that
// are shared it gives back. The flush lock is held. Slots that the device kept after
// a drain that did not end are not waited for; the poller has nothing to do with
// them any more.
func (r *sendRing) home(ctx context.Context) bool {
	kept := int(r.posted.Load() - r.completed.Load())
	for {
		r.homed += r.collect()
		away := r.slots - r.homed
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

// homeLate goes on where home ended without all slots, once the QP is destroyed: those
// that are shared are given back as they come, and leave is called when all of the
// others are there.
func (r *sendRing) homeLate(leave func()) {
	r.late.Lock()
	r.leave = leave
	r.late.Unlock()
	r.collectLate()
}

// collectLate takes what came, if nobody waits for it any more.
func (r *sendRing) collectLate() {
	r.late.Lock()
	defer r.late.Unlock()
	if r.leave == nil {
		return
	}
	r.homed += r.collect()
	r.share.of.serve()
	if r.homed == r.slots {
		r.leave()
		r.leave = func() {}
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
