//go:build linux

package rxetest

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

func (e *End) srq(n int) verbs.SRQ {
	e.t.Helper()
	s, err := e.pd.CreateSRQ(verbs.SRQCaps{MaxWR: n, MaxSGE: 1})
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, s.Destroy()) })
	return s
}

// shared is a pair of which b receives from an SRQ of n.
func shared(t testing.TB, p verbs.Provider, n int) (*pair, verbs.SRQ) {
	t.Helper()
	c := &pair{a: Open(t, p, "rxe0"), b: Open(t, p, "rxe1")}
	srq := c.b.srq(n)
	c.qa, c.qb = c.a.qp(), c.b.qpOn(srq)
	c.connect()
	return c, srq
}

// testBatches for an SRQ.
func testSharedBatches(t *testing.T, p verbs.Provider) {
	c, srq := shared(t, p, 200)
	n, err := srq.PostRecv(c.b.recvs(180, 64))
	require.NoError(t, err)
	require.Equal(t, 180, n)
	taken, err := srq.PostRecv(c.b.recvs(1000, 64))
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "the shared receive queue is full")
	require.Equal(t, srq.Caps().MaxWR-180, taken)
	sends := make([]verbs.SendWR, 180)
	for i := range sends {
		sends[i] = c.a.send(uint64(i), 0, 64, verbs.SendSignaled)
	}
	n, err = c.qa.PostSend(sends)
	require.NoError(t, err)
	require.Equal(t, 180, n)
	for i, wc := range c.b.poll(180) {
		require.EqualValues(t, 1000+i, wc.ID)
		require.Equal(t, verbs.WCSuccess, wc.Status)
	}
}

// A receive that a QP took for a message of which only a part has come
// completes when the QP is in ERR, flushed; the next in the queue does not.
func testSharedHalfReceived(t *testing.T, p verbs.Provider) {
	c, srq := shared(t, p, 4)
	for range 10 {
		if c.interrupt(srq) {
			return
		}
	}
	t.Log("each message had come before the QP was in ERR")
}

// interrupt takes the receiver of a long message to ERR while it comes, and
// says whether it was cut in two. Both QPs are connected again.
func (p *pair) interrupt(srq verbs.SRQ) (half bool) {
	const size = rigMem / 2 // 512 packets
	t := p.b.t
	recvs := append(p.b.recvs(1, size), p.b.recvs(1, size)...)
	recvs[1].ID++
	send := p.a.send(1, 0, size, verbs.SendSignaled)
	// Not of the Go heap, and written by the device.
	first, last := (*uint32)(unsafe.Pointer(&p.b.mem[rigMem/2])), (*uint32)(unsafe.Pointer(&p.b.mem[rigMem-4]))
	atomic.StoreUint32(first, 0)
	atomic.StoreUint32(last, 0)
	p.a.mem[0], p.a.mem[size-4] = 1, 1
	_, err := srq.PostRecv(recvs)
	require.NoError(t, err)

	posted := make(chan error)
	go func() {
		_, err := p.qa.PostSend([]verbs.SendWR{send})
		posted <- err
	}()
	for deadline := time.Now().Add(patience); atomic.LoadUint32(first) == 0; {
		require.False(t, time.Now().After(deadline), "nothing comes")
	}
	require.NoError(t, p.qb.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
	require.NoError(t, <-posted)
	taken := p.b.poll(1)
	require.Len(t, taken, 1)
	require.EqualValues(t, 1000, taken[0].ID)
	if half = atomic.LoadUint32(last) == 0; half {
		require.Equal(t, verbs.WCWRFlushErr, taken[0].Status)
	}
	require.NoError(t, p.qa.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
	p.a.poll(1)
	for _, q := range []verbs.QP{p.qa, p.qb} {
		require.NoError(t, q.Modify(&verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
	}
	p.connect()

	p.a.mem[0] = 2
	_, err = p.qa.PostSend([]verbs.SendWR{p.a.send(2, 0, 8, verbs.SendSignaled)})
	require.NoError(t, err)
	require.EqualValues(t, 1001, p.b.poll(1)[0].ID)
	require.EqualValues(t, 2, p.a.poll(1)[0].ID)
	return half
}
