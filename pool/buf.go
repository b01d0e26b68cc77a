// Package pool owns memory that outlives a function: reference-counted
// buffers from size classes (Buf), off-heap memory that a device may be given
// (Arena), and prewarmed objects that are slow to make (Warm).
package pool

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Size classes are the powers of two from 64 B, a cache line and the smallest
// message worth measuring, to 16 MiB; from 4 KiB on, and a sixteenth more: room
// for the header and what a codec adds to a block of a common size. Messages of
// 1 MiB and a header went from 160 to 350 calls/s over TCP when their buffers
// were no longer allocated, cleared and collected for each (two cores, client
// and server). Beyond 16 MiB a pool would hold on to memory that only rare
// messages need. From 64 KiB on, buffers come from a reserve first.
const (
	minShift   = 6
	maxShift   = 24
	numClasses = maxShift - minShift + 1
	maxPooled  = 1<<maxShift + 1<<(maxShift-roomShift)

	roomShift = 4  // what is added is 1/16
	minRoomed = 12 // of the classes that have it

	unpooled = -1 // Buf.class of a buffer larger than every class
)

var classes [numClasses]sync.Pool // of *Buf, each with refs == 0

// Buf is a reference-counted buffer. Get makes it with one reference; whoever
// drops the last one gives the memory back, after which neither the Buf nor a
// slice from Bytes may be touched by anybody.
//
// Retain and Release may be called from any goroutine. Bytes, Len, Cap, Resize
// and Grow need a held reference, and Resize and Grow the only one: holders
// share one length.
type Buf struct {
	refs     atomic.Int32
	class    int8
	reserved bool   // it was cut from the reserve
	trace    *trace // set for the buffer's whole life if a Watch saw it allocated
	buf      []byte // len is Len, cap is Cap
}

// Get returns a buffer of length n whose contents are arbitrary. Its capacity
// is n rounded up to the size class, or n above 17 MiB. It panics if n is
// negative; lengths from a peer are the caller's to check before.
func Get(n int) *Buf {
	if t := watching.Load(); t != nil {
		return t.get(n)
	}
	c := classOf(n)
	if c == unpooled {
		return newBuf(n)
	}
	b := take(c)
	if b == nil {
		return newBuf(n)
	}
	b.refs.Store(1)
	b.buf = b.buf[:n]
	return b
}

// take is a buffer of the class that was used before or is of the reserve.
func take(class int) *Buf {
	if class >= minReserved {
		if b := large.get(class); b != nil {
			return b
		}
	}
	b, _ := classes[class].Get().(*Buf)
	return b
}

func newBuf(n int) *Buf {
	if n < 0 {
		panic(fmt.Sprintf("pool: Get of negative length %d", n))
	}
	c, size := classOf(n), n
	if c != unpooled {
		size = classSize(c)
	}
	b := &Buf{class: int8(c), buf: make([]byte, n, size)}
	b.refs.Store(1)
	return b
}

func classOf(n int) int {
	if uint(n) > maxPooled {
		return unpooled
	}
	c := bits.Len(uint(max(n, 1<<minShift)-1)) - minShift
	if c > 0 && n <= classSize(c-1) {
		c--
	}
	return c
}

func classSize(c int) int {
	size := 1 << (c + minShift)
	if c+minShift >= minRoomed {
		size += size >> roomShift
	}
	return size
}

// Bytes returns the buffer's Len bytes, valid until the last Release. It
// panics if that has happened.
func (b *Buf) Bytes() []byte {
	if b.refs.Load() <= 0 {
		b.misuse("used after release")
	}
	return b.buf
}

// Len returns the length in bytes.
func (b *Buf) Len() int { return len(b.buf) }

// Cap returns the length in bytes that Resize can go up to.
func (b *Buf) Cap() int { return cap(b.buf) }

// Resize sets the length to n bytes. What it adds has arbitrary contents. It
// panics if n is negative or above Cap.
func (b *Buf) Resize(n int) {
	if b.refs.Load() <= 0 {
		b.misuse("resized after release")
	}
	if uint(n) > uint(cap(b.buf)) {
		panic(fmt.Sprintf("pool: Resize to %d bytes of a buffer with capacity %d", n, cap(b.buf)))
	}
	b.buf = b.buf[:n]
}

// Retain adds a reference. It panics if the buffer was released already.
func (b *Buf) Retain() {
	if b.refs.Add(1) <= 1 {
		b.refs.Add(-1)
		b.misuse("retained after release")
	}
}

// Release drops a reference; the last one gives the memory back. It panics if
// there was none left to drop, which outside a Watch is only seen until the
// buffer is handed out again.
func (b *Buf) Release() {
	if b.trace != nil {
		b.trace.release(b)
		return
	}
	switch n := b.refs.Add(-1); {
	case n > 0:
	case n < 0:
		b.misuse("released twice")
	case b.class >= minReserved && large.put(b):
	case b.class == unpooled:
		b.buf = nil
	default:
		classes[b.class].Put(b)
	}
}

// Grow returns a buffer with a capacity of at least n bytes that has b's
// length and bytes: b itself if it is large enough, else a new one, and the
// caller's reference to b is released. Above 17 MiB it adds at least half, so
// that growing step by step copies each byte a bounded number of times.
func Grow(b *Buf, n int) *Buf {
	old := b.Bytes()
	if n <= cap(old) {
		return b
	}
	if n > maxPooled {
		n = max(n, cap(old)+cap(old)/2)
	}
	bigger := Get(n)
	bigger.Resize(len(old))
	copy(bigger.buf, old)
	b.Release()
	return bigger
}

//go:noinline
func (b *Buf) misuse(what string) { // kept out of line so that Bytes is inlined
	panic("pool: " + b.trace.describe(cap(b.buf), what))
}
