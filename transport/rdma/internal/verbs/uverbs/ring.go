//go:build linux

package uverbs

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is a queue that the driver made and this process mapped: a head with
// both indexes, then elements, a power of two of them. Indexes are below that
// number; the queue is full with one element free. The ring of a CQ is filled
// by the driver, the others by us.
type ring struct {
	mem   []byte
	head  *queueBuf
	data  unsafe.Pointer // the first element
	mask  uint32
	shift uint32 // log2 of the element's size
}

// layoutError is a ring that is not laid out as the header says.
type layoutError string

func (e layoutError) Error() string { return string(e) }

// ringHint says what is wrong with a ring, if that is what err is about.
func ringHint(err error) string {
	var e layoutError
	if errors.As(err, &e) {
		return "the driver's ring is not as its header says: " + string(e)
	}
	return ""
}

// mapRing maps a ring whose elements have at least size bytes. An offset can
// be mapped once.
func mapRing(fd int, at mmInfo, size uintptr) (*ring, error) {
	mem, err := unix.Mmap(fd, int64(at.offset), int(at.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	r, err := newRing(mem, size)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return r, nil
}

// newRing checks what the driver says of the ring against the memory that it
// is in, so that no element is ever looked for outside it.
func newRing(mem []byte, size uintptr) (*ring, error) {
	const head = unsafe.Sizeof(queueBuf{})
	if uintptr(len(mem)) < head {
		return nil, layoutError(fmt.Sprintf("%d bytes, the head alone has %d", len(mem), head))
	}
	h := (*queueBuf)(unsafe.Pointer(unsafe.SliceData(mem)))
	mask, shift := h.indexMask, h.log2ElemSize
	switch {
	case mask == 0 || mask&(mask+1) != 0:
		return nil, layoutError(fmt.Sprintf("index mask %#x is not a power of two less one", mask))
	case shift > 20 || uintptr(1)<<shift < size:
		return nil, layoutError(fmt.Sprintf("elements of 2^%d bytes, expected at least %d", shift, size))
	case (uintptr(mask)+1)<<shift > uintptr(len(mem))-head:
		return nil, layoutError(fmt.Sprintf("%d elements of 2^%d bytes in %d", mask+1, shift, len(mem)))
	}
	return &ring{mem: mem, head: h, data: unsafe.Add(unsafe.Pointer(h), head), mask: mask, shift: shift}, nil
}

func (r *ring) unmap() error { return unix.Munmap(r.mem) }

// capacity is how many elements the ring can hold.
func (r *ring) capacity() int { return int(r.mask) }

// at is element i, whatever i is.
func (r *ring) at(i uint32) unsafe.Pointer {
	return unsafe.Add(r.data, uintptr(i&r.mask)<<r.shift)
}

func (r *ring) produced() uint32     { return atomic.LoadUint32(&r.head.producerIndex) & r.mask }
func (r *ring) consumed() uint32     { return atomic.LoadUint32(&r.head.consumerIndex) & r.mask }
func (r *ring) publish(next uint32)  { atomic.StoreUint32(&r.head.producerIndex, next&r.mask) }
func (r *ring) withdraw(next uint32) { atomic.StoreUint32(&r.head.consumerIndex, next&r.mask) }

// free is how many elements fit behind those up to next.
func (r *ring) free(next uint32) uint32 { return (r.consumed() - next - 1) & r.mask }
