package rpc

import (
	"sync"
	"sync/atomic"
)

// arrived are the contexts of a session's calls on the server, by call id, so
// that a CANCEL finds its own.
//
// A caller that counts up the uses of few indices, as the one of this package
// does, has each context in the slot of its index. What finds its slot in use,
// or has none, goes to others. The delivering goroutine adds, finds and
// iterates; any goroutine removes. A context is not used again, so that who has
// found one may end it although it was removed meanwhile.
type arrived struct {
	limit  int // indices that may have a slot
	slots  chunks[atomic.Pointer[callContext]]
	mu     sync.Mutex
	others map[uint64]*callContext
	count  atomic.Int32 // of others
}

// add takes in the context of a call; false: its id is in use.
func (a *arrived) add(c *callContext) bool {
	slot := a.slot(c.id)
	if a.count.Load() == 0 && slot != nil && slot.CompareAndSwap(nil, c) {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if slot != nil {
		if other := slot.Load(); other != nil && other.id == c.id {
			return false
		}
	}
	if a.others[c.id] != nil {
		return false
	}
	if a.others == nil {
		a.others = map[uint64]*callContext{}
	}
	a.others[c.id] = c
	a.count.Add(1)
	return true
}

// slot is where the context of call id goes first; nil: nowhere.
func (a *arrived) slot(id uint64) *atomic.Pointer[callContext] {
	index := uint32(id & indexMask)
	if s := a.slots.at(index); s != nil || int(index) >= a.limit {
		return s
	}
	k, _ := locate(index)
	if k >= numChunks {
		return nil
	}
	a.slots.grow(k, a.limit-before(k))
	return a.slots.at(index)
}

// find is the context of call id; nil if it is not there.
func (a *arrived) find(id uint64) *callContext {
	if s := a.slots.at(uint32(id & indexMask)); s != nil {
		if c := s.Load(); c != nil && c.id == id {
			return c
		}
	}
	if a.count.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.others[id]
}

// remove takes c out.
func (a *arrived) remove(c *callContext) {
	if s := a.slots.at(uint32(c.id & indexMask)); s != nil && s.CompareAndSwap(c, nil) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.others, c.id)
	a.count.Add(-1)
}

func (a *arrived) each(f func(*callContext)) {
	a.slots.each(func(s *atomic.Pointer[callContext]) {
		if c := s.Load(); c != nil {
			f(c)
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.others {
		f(c)
	}
}
