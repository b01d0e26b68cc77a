package rpc

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// pending is a slot for one call at a time.
//
// It belongs to the goroutine that took it from the table, until that gives it
// back. Meanwhile id is not 0, and whoever swaps it to 0 ends the call: either
// the session, which then fills in outcome and sets done, or the
// caller itself, after which nothing will come. This is all the synchronisation
// there is between a reply, a cancel and the end of the session.
type pending struct {
	id   atomic.Uint64
	next atomic.Uint32 // free list: index+1 of the slot below, 0 = none

	index   uint32
	uses    uint64 // of the holder
	done    transport.Signal
	outcome outcome
	header  wire.Header // of the holder: the frames that it sends
}

// outcome is what ended a call: a reply, or the end of the session.
type outcome struct {
	flags   wire.Flags
	code    uint32
	payload *pool.Buf // the receiver's; nil is empty
	ended   error     // not nil: the session is over, and why
}

// end makes whoever calls it the one who ends call id, unless somebody has.
func (p *pending) end(id uint64) bool { return id != 0 && p.id.CompareAndSwap(id, 0) }

// await waits for the outcome of call id; false: canceled came first, and ended
// the call. A select costs 100 ns more than a receive.
func (p *pending) await(id uint64, canceled <-chan struct{}) bool {
	woken := p.done.Await()
	if woken == nil {
		return true
	}
	if canceled != nil {
		select {
		case <-woken:
			return true
		case <-canceled:
			if p.end(id) {
				p.done.Cancel()
				return false
			}
		}
	}
	<-woken // it is on its way
	return true
}

// finish hands the outcome to the holder. Only who ended the call may.
func (p *pending) finish(out outcome) {
	p.outcome = out
	p.done.Set()
}

// table holds the calls of a session, limit at most. All methods may be called
// from any goroutine; none of them waits except take, for memory, when the
// table grows. The free slots are a stack: the slot used last is warm. The
// stack is lock-free; each change counts, lest a slow pop take a slot that
// came back.
type table struct {
	limit  int           // of slots, at most maxSlots; fixed
	free   atomic.Uint64 // count of changes << 32 | index+1 of the top, 0 = empty
	chunks chunks[pending]
	mu     sync.Mutex
	grown  int // chunks made; guarded by mu
}

// take claims a free slot under a new id; nil if all are in use.
func (t *table) take() (*pending, uint64) {
	p := t.pop()
	for p == nil {
		if !t.extend() {
			return nil, 0
		}
		p = t.pop()
	}
	p.uses++
	id := p.uses<<indexBits | uint64(p.index)
	p.id.Store(id)
	return p, id
}

// give returns a slot whose call has ended. A slot that has used up its ids is
// kept out of use for ever.
func (t *table) give(p *pending) {
	if p.uses < maxUses {
		t.push(p)
	}
}

// find is the slot that call id would have; nil if there was never such a slot.
func (t *table) find(id uint64) *pending { return t.chunks.at(uint32(id & indexMask)) }

// active counts calls that have not ended.
func (t *table) active() (n int) {
	t.chunks.each(func(p *pending) {
		if p.id.Load() != 0 {
			n++
		}
	})
	return n
}

func (t *table) pop() *pending {
	for {
		top := t.free.Load()
		if uint32(top) == 0 {
			return nil
		}
		p := t.chunks.at(uint32(top) - 1)
		if t.free.CompareAndSwap(top, (top>>32+1)<<32|uint64(p.next.Load())) {
			return p
		}
	}
}

func (t *table) push(p *pending) {
	for {
		top := t.free.Load()
		p.next.Store(uint32(top))
		if t.free.CompareAndSwap(top, (top>>32+1)<<32|uint64(p.index+1)) {
			return
		}
	}
}

// extend adds a chunk if there is still none free. It fails at the limit.
func (t *table) extend() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if uint32(t.free.Load()) != 0 {
		return true
	}
	first := before(t.grown)
	if first >= t.limit {
		return false
	}
	chunk := t.chunks.grow(t.grown, t.limit-first)
	t.grown++
	for i := len(chunk) - 1; i >= 0; i-- {
		chunk[i].index = uint32(first + i)
		t.push(&chunk[i])
	}
	return true
}
