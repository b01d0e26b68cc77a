package rpc

import (
	"math/bits"
	"sync/atomic"
)

// A call id is an index and, above it, how often the caller has used that, so
// that no id comes twice in a session.
const (
	indexBits = 20
	indexMask = 1<<indexBits - 1
	maxUses   = 1<<(64-indexBits) - 1

	// Chunk k has firstChunk<<k elements: 17 chunks reach all but 8 of the
	// 2^20 indices. The first is small, for thousands of connections that make
	// a call now and then: 64 slots of calls are 15 KiB.
	firstChunk = 8
	numChunks  = indexBits - 3
	maxSlots   = firstChunk * (1<<numChunks - 1)
)

// chunks is an array that grows while others read it: its elements never move.
// Who grows it sees to it that nobody else does.
type chunks[T any] [numChunks]atomic.Pointer[[]T]

// at is the element of that index; nil if there is none yet.
func (c *chunks[T]) at(index uint32) *T {
	k, i := locate(index)
	if k >= numChunks {
		return nil
	}
	chunk := c[k].Load()
	if chunk == nil || i >= uint32(len(*chunk)) {
		return nil
	}
	return &(*chunk)[i]
}

// grow makes chunk k, with at most n elements.
func (c *chunks[T]) grow(k, n int) []T {
	chunk := make([]T, min(n, firstChunk<<k))
	c[k].Store(&chunk)
	return chunk
}

func (c *chunks[T]) each(f func(*T)) {
	for k := range c {
		if chunk := c[k].Load(); chunk != nil {
			for i := range *chunk {
				f(&(*chunk)[i])
			}
		}
	}
}

// locate says in which chunk an index lies, and where.
func locate(index uint32) (chunk int, i uint32) {
	n := index + firstChunk
	k := bits.Len32(n/firstChunk) - 1
	return k, n - firstChunk<<k
}

// before is how many elements the chunks before k have.
func before(k int) int { return firstChunk<<k - firstChunk }
