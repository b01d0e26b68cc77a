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

// What becomes of a receive that a QP took for a message of which only a part
// has come. By way of ERR it completes, flushed, before RESET returns, so that
// each is accounted for; straight to RESET it is gone.
func testSharedHalfReceived(t *testing.T, p verbs.Provider) {
	c, srq := shared(t, p, 4)
	if got, half := c.interruptOnce(srq, verbs.Err); half {
		require.Len(t, got, 1)
		require.EqualValues(t, 1000, got[0].ID)
		require.Equal(t, verbs.WCWRFlushErr, got[0].Status)
	}
	if got, half := c.interruptOnce(srq, verbs.Reset); half {
		require.Empty(t, got)
	}
}

// interruptOnce interrupts until a message was cut in two, some times at most.
func (p *pair) interruptOnce(srq verbs.SRQ, to verbs.QPState) (got []verbs.WC, half bool) {
	for range 30 {
		if got, half = p.interrupt(srq, to); half {
			return got, true
		}
	}
	p.b.t.Logf("each message had come before the QP was in %v", to)
	return nil, false
}

// interrupt takes the receiver of a long message to a state and then to RESET
// while the message comes. It returns the receiver's completions, and whether
// the message was cut in two.
func (p *pair) interrupt(srq verbs.SRQ, to verbs.QPState) (got []verbs.WC, half bool) {
	const size = rigMem / 2 // 512 packets
	t := p.b.t
	recv := p.b.recvs(1, size)
	send := p.a.send(1, 0, size, verbs.SendSignaled)
	// Not of the Go heap, and written by the device.
	first, last := (*uint32)(unsafe.Pointer(&p.b.mem[rigMem/2])), (*uint32)(unsafe.Pointer(&p.b.mem[rigMem-4]))
	atomic.StoreUint32(first, 0)
	atomic.StoreUint32(last, 0)
	p.a.mem[0], p.a.mem[size-4] = 1, 1
	_, err := srq.PostRecv(recv)
	require.NoError(t, err)

	posted := make(chan error)
	go func() {
		_, err := p.qa.PostSend([]verbs.SendWR{send})
		posted <- err
	}()
	for deadline := time.Now().Add(patience); atomic.LoadUint32(first) == 0; {
		require.False(t, time.Now().After(deadline), "nothing comes")
	}
	for _, state := range []verbs.QPState{to, verbs.Reset} {
		require.NoError(t, p.qb.Modify(&verbs.QPAttr{State: state}, verbs.AttrState))
	}
	require.NoError(t, <-posted)
	got = make([]verbs.WC, 8)
	n, err := p.b.cq.Poll(got)
	require.NoError(t, err)
	half = atomic.LoadUint32(last) == 0
	require.True(t, half || n == 1)

	for _, state := range []verbs.QPState{verbs.Err, verbs.Reset} {
		require.NoError(t, p.qa.Modify(&verbs.QPAttr{State: state}, verbs.AttrState))
	}
	p.a.poll(1)
	p.connect()
	return got[:n], half
}
