//go:build linux

package uverbs

import (
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// sendQueue is the ring of sends. mu guards the elements that the driver does
// not own, next, which is the first of them, and ssn, the number of the next
// work request.
type sendQueue struct {
	mu        sync.Mutex
	ring      *ring
	next      uint32
	ssn       uint32
	datagrams bool // the QP is UD
	maxSGE    uint32
	maxInline uint32
}

// push writes work requests into the queue, publishes them at once, and
// returns how many; errno belongs to the one behind.
func (s *sendQueue) push(wrs []verbs.SendWR) (n int, errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := int(s.ring.free(s.next))
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		if errno = s.check(wr); errno == 0 && n == free {
			errno = syscall.ENOMEM
		}
		if errno != 0 {
			break
		}
		s.fill((*sendWQE)(s.ring.at(s.next+uint32(n))), wr)
	}
	if n > 0 {
		s.next = (s.next + uint32(n)) & s.ring.mask
		s.ring.publish(s.next)
	}
	return n, errno
}

// check refuses what would harm the ring or name nothing, as the driver's own
// library does; the driver judges the rest when it is the request's turn.
func (s *sendQueue) check(wr *verbs.SendWR) syscall.Errno {
	atomic := wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd
	switch {
	case wr.Length > 0 && s.maxSGE == 0,
		wr.Flags&verbs.SendInline != 0 && wr.Length > s.maxInline,
		atomic && (wr.Length < 8 || wr.RemoteAddr&7 != 0),
		s.datagrams && wr.AH == 0:
		return syscall.EINVAL
	}
	return 0
}

func (s *sendQueue) fill(w *sendWQE, wr *verbs.SendWR) {
	*w = sendWQE{}
	w.ssn, w.dma = s.ssn, newDMA(wr.Length)
	s.ssn++
	w.wr.wrID, w.wr.opcode, w.wr.sendFlags = wr.ID, uint32(wr.Opcode), uint32(wr.Flags)
	binary.BigEndian.PutUint32(w.wr.ex[:], wr.Imm)
	switch {
	case s.datagrams:
		*(*udWR)(unsafe.Pointer(&w.wr.wr)) = udWR{remoteQPN: wr.RemoteQPN, remoteQKey: wr.RemoteQKey, ahNum: uint32(wr.AH)}
	case wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd:
		w.iova = wr.RemoteAddr
		*(*atomicWR)(unsafe.Pointer(&w.wr.wr)) = atomicWR{remoteAddr: wr.RemoteAddr, compareAdd: wr.CompareAdd, swap: wr.Swap, rkey: wr.RKey}
	default:
		w.iova = wr.RemoteAddr
		*(*rdmaWR)(unsafe.Pointer(&w.wr.wr)) = rdmaWR{remoteAddr: wr.RemoteAddr, rkey: wr.RKey}
	}
	behind := unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w))
	switch {
	case wr.Length == 0:
	case wr.Flags&verbs.SendInline != 0:
		copy(unsafe.Slice((*byte)(behind), wr.Length), memory(wr.Addr, wr.Length))
	default:
		*(*sge)(behind) = sge{addr: wr.Addr, length: wr.Length, lkey: wr.LKey}
	}
}

// recvQueue is the ring of receives, of a QP or of an SRQ. mu guards the elements that the driver
// does not own, and next, which is the first of them.
type recvQueue struct {
	mu     sync.Mutex
	ring   *ring
	next   uint32
	maxSGE uint32
}

func (r *recvQueue) mapRing(fd int, at mmInfo, maxSGE uint32) error {
	m, err := mapRing(fd, at, unsafe.Sizeof(recvWQE{})+uintptr(maxSGE)*unsafe.Sizeof(sge{}))
	if err != nil {
		return err
	}
	r.ring, r.next, r.maxSGE = m, m.produced(), maxSGE
	return nil
}

// push is sendQueue.push for receives.
func (r *recvQueue) push(wrs []verbs.RecvWR) (n int, errno syscall.Errno) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := int(r.ring.free(r.next))
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		switch {
		case n == free:
			errno = syscall.ENOMEM
		case wr.Length > 0 && r.maxSGE == 0:
			errno = syscall.EINVAL
		}
		if errno != 0 {
			break
		}
		w := (*recvWQE)(r.ring.at(r.next + uint32(n)))
		*w = recvWQE{}
		w.wrID, w.dma = wr.ID, newDMA(wr.Length)
		if wr.Length > 0 {
			*(*sge)(unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w))) = sge{addr: wr.Addr, length: wr.Length, lkey: wr.LKey}
		}
	}
	if n > 0 {
		r.next = (r.next + uint32(n)) & r.ring.mask
		r.ring.publish(r.next)
	}
	return n, errno
}

// newDMA describes a message of one element, or of none when it is empty.
func newDMA(length uint32) dmaInfo {
	d := dmaInfo{length: length, resid: length}
	if length > 0 {
		d.numSGE = 1
	}
	return d
}

// memory is the bytes at an address outside the Go heap, which the caller of a
// post vouches for.
func memory(addr uint64, length uint32) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), length)
}
