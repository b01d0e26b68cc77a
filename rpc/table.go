package rpc

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// A call id is the index of the caller's slot and, above it, how often the
// slot has been used, so that no id comes twice in a session.
const (
	indexBits = 20
	indexMask = 1<<indexBits - 1
	maxUses   = 1<<(64-indexBits) - 1

	// Chunk k has firstChunk<<k slots, so that slots never move and 14 chunks
	// reach all but 64 of the 2^20 indices.
	firstChunk = 64
	numChunks  = indexBits - 6
	maxSlots   = firstChunk * (1<<numChunks - 1)
)

// pending is a slot for one call at a time.
//
// It belongs to the goroutine that took it from the table, until that gives it
// back. Meanwhile id is not 0, and whoever swaps it to 0 ends the call: either
// the session, which then puts one outcome into done, or the caller itself,
// after which nothing will come. This is all the synchronisation there is
// between a reply, a cancel and the end of the session.
type pending struct {
	id   atomic.Uint64
	next atomic.Uint32 // free list: index+1 of the slot below, 0 = none

	index  uint32
	uses   uint64       // of the holder
	done   chan outcome // capacity 1, empty between calls
	header wire.Header  // of the holder: the frames that it sends
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

// table holds the calls of a session. All methods may be called from any
// goroutine; none of them waits except take, for memory, when the table grows.
// The free slots are a stack: the slot used last is warm. The stack is
// lock-free; each change counts, lest a slow pop take a slot that came back.
type table struct {
	free   atomic.Uint64 // count of changes << 32 | index+1 of the top, 0 = empty
	chunks [numChunks]atomic.Pointer[[]pending]
	grow   sync.Mutex
	grown  int // chunks made; guarded by grow
}

// take claims a free slot under a new id; nil if maxSlots calls are under way.
func (t *table) take() (*pending, uint64) {
	p := t.pop()
	for p == nil {
		if !t.extend() {
			return nil, 0
		}
		p = t.pop()
	}
	if p.done == nil {
		p.done = make(chan outcome, 1)
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
func (t *table) find(id uint64) *pending {
	return t.slot(uint32(id & indexMask))
}

// each calls f for every slot there is.
func (t *table) each(f func(*pending)) {
	for k := range t.chunks {
		chunk := t.chunks[k].Load()
		if chunk == nil {
			return
		}
		for i := range *chunk {
			f(&(*chunk)[i])
		}
	}
}

func (t *table) slot(index uint32) *pending {
	n := index + firstChunk
	k := bits.Len32(n/firstChunk) - 1
	if k >= numChunks {
		return nil
	}
	chunk := t.chunks[k].Load()
	if chunk == nil {
		return nil
	}
	return &(*chunk)[n-firstChunk<<k]
}

func (t *table) pop() *pending {
	for {
		top := t.free.Load()
		if uint32(top) == 0 {
			return nil
		}
		p := t.slot(uint32(top) - 1)
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

// extend adds a chunk if there is still none free. It fails when all are made.
func (t *table) extend() bool {
	t.grow.Lock()
	defer t.grow.Unlock()
	if uint32(t.free.Load()) != 0 {
		return true
	}
	if t.grown == numChunks {
		return false
	}
	first := uint32(firstChunk<<t.grown - firstChunk)
	chunk := make([]pending, firstChunk<<t.grown)
	t.chunks[t.grown].Store(&chunk)
	t.grown++
	for i := len(chunk) - 1; i >= 0; i-- {
		chunk[i].index = first + uint32(i)
		t.push(&chunk[i])
	}
	return true
}
