//go:build linux

package uverbs

import (
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

const headSize = unsafe.Sizeof(queueBuf{})

// memRing is a ring in memory of the test.
func memRing(t require.TestingT, log2Elem, elems uint32, size uintptr) *ring {
	mem := aligned(headSize + uintptr(elems)<<log2Elem)
	h := (*queueBuf)(unsafe.Pointer(&mem[0]))
	h.log2ElemSize, h.indexMask = log2Elem, elems-1
	r, err := newRing(mem, size)
	require.NoError(t, err)
	return r
}

func aligned(size uintptr) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
}

// No element of a ring is outside its memory, whatever the driver says of it.
func TestRingIsInItsMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := aligned(uintptr(rapid.IntRange(1, 1<<14).Draw(t, "bytes")))
		if uintptr(len(mem)) >= headSize {
			h := (*queueBuf)(unsafe.Pointer(&mem[0]))
			h.log2ElemSize = rapid.OneOf(rapid.Uint32Range(0, 12), rapid.Uint32()).Draw(t, "log2")
			h.indexMask = rapid.OneOf(rapid.SampledFrom([]uint32{1, 3, 7, 15, 63, math.MaxUint32}), rapid.Uint32()).Draw(t, "mask")
		}
		size := uintptr(rapid.IntRange(1, 512).Draw(t, "element"))
		r, err := newRing(mem, size)
		if err != nil {
			require.NotEmpty(t, ringHint(err))
			return
		}
		require.Positive(t, r.capacity())
		require.Zero(t, r.mask&(r.mask+1), "the index after the last element is the first")
		for _, i := range []uint32{0, 1, r.mask, r.mask + 1, rapid.Uint32().Draw(t, "index")} {
			off := uintptr(r.at(i)) - uintptr(unsafe.Pointer(&mem[0]))
			require.GreaterOrEqual(t, off, headSize)
			require.LessOrEqual(t, off+size, uintptr(len(mem)))
		}
	})
}

// What is in the ring when the doorbell fails was taken: the driver may find it there.
func TestDoorbellFails(t *testing.T) {
	bell, err := newDoorbell(-1)
	require.NoError(t, err)
	defer bell.close()
	hang[postSendResp](bell, cmdPostSend, postSend{})
	q := &qp{bell: bell}
	q.send.ring = memRing(t, 8, 8, unsafe.Sizeof(sendWQE{}))
	q.state.Store(uint32(verbs.RTS))
	q.Born("QP", "QP of the test")
	defer func() { require.NoError(t, q.End("ibv_destroy_qp", func() error { return nil })) }()
	n, err := q.PostSend(make([]verbs.SendWR, 3))
	require.ErrorIs(t, err, syscall.EBADF)
	require.Equal(t, 3, n)
	require.Equal(t, 4, int(q.send.ring.free(q.send.next)), "of seven")
}

// A send queue against a driver that takes some at a time: each work request
// is there once, in order, and none is taken when the queue is full.
func TestQueuesAreFIFO(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sends := sendQueue{ring: memRing(t, 8, 8, unsafe.Sizeof(sendWQE{})+16), maxSGE: 1}
		recvs := recvQueue{ring: memRing(t, 6, 8, unsafe.Sizeof(recvWQE{})+16), maxSGE: 1}
		start := rapid.Uint32Range(0, 7).Draw(t, "start")
		for _, r := range []*ring{sends.ring, recvs.ring} {
			r.publish(start)
			r.withdraw(start)
		}
		sends.next, recvs.next = start, start
		var posted, taken uint64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			n := rapid.IntRange(0, 10).Draw(t, "post")
			ss, rs := make([]verbs.SendWR, n), make([]verbs.RecvWR, n)
			for i := range n {
				ss[i] = verbs.SendWR{ID: posted + uint64(i), Opcode: verbs.OpSend, Addr: 64, Length: 8}
				rs[i] = verbs.RecvWR{ID: posted + uint64(i), Addr: 64, Length: 8}
			}
			fits := min(n, 7-int(posted-taken))
			for _, push := range []func() (int, error){
				func() (int, error) { n, errno := sends.push(ss); return n, orNil(errno) },
				func() (int, error) { n, errno := recvs.push(rs); return n, orNil(errno) },
			} {
				got, err := push()
				require.Equal(t, fits, got)
				require.Equal(t, fits < n, err != nil, err)
			}
			posted += uint64(fits)
			for _, r := range []*ring{sends.ring, recvs.ring} {
				require.EqualValues(t, posted-taken, (r.produced()-r.consumed())&r.mask, "published")
			}
			for range rapid.IntRange(0, int(posted-taken)).Draw(t, "take") {
				s := (*sendWQE)(sends.ring.at(sends.ring.consumed()))
				r := (*recvWQE)(recvs.ring.at(recvs.ring.consumed()))
				require.Equal(t, taken, s.wr.wrID)
				require.Equal(t, taken, r.wrID)
				sends.ring.withdraw(sends.ring.consumed() + 1)
				recvs.ring.withdraw(recvs.ring.consumed() + 1)
				taken++
			}
		}
	})
}

func orNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
