// Package ring holds the two lock-free structures of a send ring: the stack of
// free slots and the queue of published ones. Both carry slot numbers below a
// capacity fixed at the start, each number at most once, which is why neither
// can be full. They know no device and never wait.
package ring

import "sync/atomic"

// Stack holds free slots. Any goroutine may call any method. The slot given
// back last is taken first: its memory is the warmest.
type Stack struct {
	head atomic.Uint64   // tag<<32 | top slot + 1; the tag changes with each push and pop, against ABA
	next []atomic.Uint32 // slot below + 1
}

// NewStack returns an empty stack for slots 0 to n-1.
func NewStack(n int) *Stack { return &Stack{next: make([]atomic.Uint32, n)} }

// Push adds a slot that is not in the stack.
func (s *Stack) Push(slot uint32) {
	for {
		h := s.head.Load()
		s.next[slot].Store(uint32(h))
		if s.head.CompareAndSwap(h, tagged(h, slot+1)) {
			return
		}
	}
}

// Pop takes a slot, if there is one.
func (s *Stack) Pop() (slot uint32, ok bool) {
	for {
		h := s.head.Load()
		top := uint32(h)
		if top == 0 {
			return 0, false
		}
		if s.head.CompareAndSwap(h, tagged(h, s.next[top-1].Load())) {
			return top - 1, true
		}
	}
}

// Empty says whether Pop would find nothing.
func (s *Stack) Empty() bool { return uint32(s.head.Load()) == 0 }

func tagged(h uint64, top uint32) uint64 { return (h>>32+1)<<32 | uint64(top) }

// Queue holds published slots in the order of Push. Any goroutine may push;
// one at a time may pop.
type Queue struct {
	tail  atomic.Uint64
	head  atomic.Uint64
	mask  uint64
	cells []atomic.Uint64 // what was pushed n-th, at n&mask: see cell
}

// cell is the content of a cell: not to be taken for one of another lap, nor
// for the 0 of the first.
func cell(position uint64, slot uint32) uint64 { return (position+1)<<32 | uint64(slot) }

// NewQueue returns an empty queue for slots 0 to n-1.
func NewQueue(n int) *Queue {
	size := 1
	for size < n {
		size *= 2
	}
	return &Queue{mask: uint64(size - 1), cells: make([]atomic.Uint64, size)}
}

// Push adds a slot that is not in the queue.
func (q *Queue) Push(slot uint32) {
	at := q.tail.Add(1) - 1
	q.cells[at&q.mask].Store(cell(at, slot))
}

// Pop takes the oldest slot. It returns false as well while the push of the
// oldest is under way: who pushes looks after the queue next.
func (q *Queue) Pop() (slot uint32, ok bool) {
	h := q.head.Load()
	v := q.cells[h&q.mask].Load()
	if slot = uint32(v); v != cell(h, slot) {
		return 0, false
	}
	q.head.Store(h + 1)
	return slot, true
}

// Ready says whether Pop would return a slot. Any goroutine may ask.
func (q *Queue) Ready() bool {
	h := q.head.Load()
	v := q.cells[h&q.mask].Load()
	return v == cell(h, uint32(v))
}
