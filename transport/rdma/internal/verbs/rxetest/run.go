//go:build linux

package rxetest

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Run runs the tests.
func Run(t *testing.T, p verbs.Provider) {
	for _, c := range []struct {
		name string
		test func(*testing.T, verbs.Provider)
	}{
		{"Batches", testBatches},
		{"SendBeforeRTS", testSendBeforeRTS},
		{"InterruptsAreCounted", testInterruptsAreCounted},
		{"UseAfterDestroy", testUseAfterDestroy},
		{"AHKeepsPD", testAHKeepsPD},
		{"ErrorsSayWhy", testErrorsSayWhy},
		{"Allocations", testAllocations},
		{"SharedBatches", testSharedBatches},
		{"SharedHalfReceived", testSharedHalfReceived},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, p) })
	}
}

// A batch larger than one chain, then one that the queue cannot take whole:
// each work request that was taken completes once, no other.
func testBatches(t *testing.T, p verbs.Provider) {
	c := connect(t, p, p)
	recvs := c.b.recvs(180, 64)
	n, err := c.qb.PostRecv(recvs)
	require.NoError(t, err)
	require.Equal(t, 180, n)
	sends := make([]verbs.SendWR, 150)
	for i := range sends {
		sends[i] = c.a.send(uint64(i), 0, 64, verbs.SendSignaled)
	}
	n, err = c.qa.PostSend(sends)
	require.NoError(t, err)
	require.Equal(t, 150, n)
	for i, wc := range c.b.poll(150) {
		require.EqualValues(t, 1000+i, wc.ID)
	}
	for i, wc := range c.a.poll(150) {
		require.EqualValues(t, i, wc.ID)
	}

	taken, err := c.qb.PostRecv(c.b.recvs(1000, 64))
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "the receive queue is full")
	require.Equal(t, c.qb.Caps().MaxRecvWR-30, taken)
	require.NoError(t, c.qb.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
	for _, wc := range c.b.poll(taken + 30) {
		require.Equal(t, verbs.WCWRFlushErr, wc.Status)
	}
	more, err := c.b.cq.Poll(make([]verbs.WC, 1))
	require.NoError(t, err)
	require.Zero(t, more)
}

// Sends that came too early must not be sent once the QP is in RTS.
func testSendBeforeRTS(t *testing.T, p verbs.Provider) {
	a, b := Open(t, p, "rxe0"), Open(t, p, "rxe1")
	qa, qb := a.qp(), b.qp()
	a.toInit(qa)
	b.toInit(qb)
	n, err := qa.PostSend([]verbs.SendWR{a.send(1, 0, 8, verbs.SendSignaled)})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Zero(t, n)
	_, err = qb.PostRecv(b.recvs(2, 64))
	require.NoError(t, err)
	a.toRTS(qa, qb, b)
	b.toRTS(qb, qa, a)
	_, err = qa.PostSend([]verbs.SendWR{a.send(2, 0, 8, verbs.SendSignaled)})
	require.NoError(t, err)
	require.EqualValues(t, 2, a.poll(1)[0].ID)
	require.Len(t, b.poll(1), 1)
}

// One Interrupt ends one call, also when none waits yet.
func testInterruptsAreCounted(t *testing.T, p verbs.Provider) {
	e := Open(t, p, "rxe0")
	for range 3 {
		e.Dev.Interrupt()
	}
	for ended := 0; ended < 3; {
		if _, err := e.Dev.AsyncEvent(); err != nil {
			require.ErrorIs(t, err, verbs.ErrInterrupted)
			ended++
		}
	}
	time.AfterFunc(10*time.Millisecond, e.Dev.Interrupt)
	for {
		if _, err := e.Dev.AsyncEvent(); err != nil {
			require.ErrorIs(t, err, verbs.ErrInterrupted)
			return
		}
	}
}

// The data path of what was destroyed ends in Go, not in freed memory.
func testUseAfterDestroy(t *testing.T, p verbs.Provider) {
	Require(t, p)
	dev, err := p.Open("rxe0")
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	ch, err := dev.CreateCompChannel()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(8, ch)
	require.NoError(t, err)
	q, err := pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Caps: verbs.QPCaps{MaxSendWR: 1, MaxRecvWR: 1}})
	require.NoError(t, err)
	for _, destroy := range []func() error{q.Destroy, cq.Destroy, ch.Destroy, pd.Dealloc, dev.Close} {
		require.NoError(t, destroy())
	}

	gone := func(_ any, err error) {
		t.Helper()
		require.ErrorIs(t, err, syscall.EBADF)
	}
	require.GreaterOrEqual(t, cq.Depth(), 8)
	gone(cq.Poll(make([]verbs.WC, 1)))
	gone(nil, cq.Arm())
	gone(q.PostSend(make([]verbs.SendWR, 1)))
	gone(q.PostRecv(make([]verbs.RecvWR, 1)))
	gone(ch.Wait(-1))
	gone(dev.AsyncEvent())
	ch.Wake()
	dev.Interrupt()
}

// An AH may be unknown to the kernel, which then lets its PD go.
func testAHKeepsPD(t *testing.T, p verbs.Provider) {
	a, b := Open(t, p, "rxe0"), Open(t, p, "rxe1")
	pd, err := a.Dev.AllocPD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(b.path(a))
	require.NoError(t, err)
	require.ErrorIs(t, pd.Dealloc(), syscall.EBUSY)
	require.NoError(t, ah.Destroy())
	require.NoError(t, pd.Dealloc())
}

func testErrorsSayWhy(t *testing.T, p verbs.Provider) {
	e, other := Open(t, p, "rxe0"), Open(t, p, "rxe1")
	port, err := e.Dev.QueryPort(rigPort)
	require.NoError(t, err)
	require.Equal(t, verbs.LinkEthernet, port.LinkLayer)
	_, err = e.Dev.QueryPort(9)
	require.ErrorContains(t, err, "ibv_query_port on rxe0, port 9")
	_, err = e.pd.RegisterMR(nil, verbs.AccessLocalWrite)
	require.ErrorContains(t, err, "empty")
	_, err = e.Dev.CreateCQ(1<<30, nil)
	require.ErrorContains(t, err, "above the device's limit")
	_, err = e.pd.CreateQP(verbs.QPInit{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, Caps: verbs.QPCaps{MaxSendWR: 1 << 28, MaxRecvWR: 1},
	})
	require.ErrorContains(t, err, "MaxSendWR 268435456 is above the device's limit")
	_, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: e.cq, Caps: verbs.QPCaps{MaxSendWR: -1}})
	require.ErrorContains(t, err, "RecvCQ must be a CQ of the same device")
	_, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: other.cq, RecvCQ: e.cq})
	require.ErrorContains(t, err, "SendCQ must be a CQ of the same device")
	_, err = e.Dev.CreateCQ(16, other.ch)
	require.ErrorContains(t, err, "the channel is of another device")

	_, err = e.pd.CreateSRQ(verbs.SRQCaps{MaxWR: 1 << 28, MaxSGE: 1})
	require.ErrorContains(t, err, "MaxWR 268435456 is above the device's limit")
	_, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, SRQ: other.srq(1)})
	require.ErrorContains(t, err, "SRQ must be an SRQ of the same PD")
	srq := e.srq(4)
	require.ErrorContains(t, srq.Arm(1000), "a limit of 1000, the queue has room for")
	_, err = e.qpOn(srq).PostRecv(e.recvs(1, 8))
	require.ErrorContains(t, err, "post there")

	q := e.qp()
	err = q.Modify(&verbs.QPAttr{State: verbs.RTS}, verbs.AttrState)
	var failed *verbs.Error
	require.True(t, errors.As(err, &failed))
	require.Equal(t, "ibv_modify_qp", failed.Op)
	require.Equal(t, syscall.EINVAL, failed.Errno)
	require.Contains(t, failed.Object, fmt.Sprintf("QP %#x", q.Num()))
}

// The data path allocates nothing.
func testAllocations(t *testing.T, p verbs.Provider) {
	c := connect(t, p, p)
	srq := c.b.srq(200)
	recv, send := c.b.recvs(1, 64), []verbs.SendWR{c.a.send(1, 0, 64, verbs.SendSignaled)}
	wc := make([]verbs.WC, 16)
	drain := func(cq verbs.CQ) {
		for n := 0; n == 0; n, _ = cq.Poll(wc) {
		}
	}
	allocs := testing.AllocsPerRun(50, func() {
		_, _ = c.qb.PostRecv(recv)
		_, _ = srq.PostRecv(recv)
		_, _ = c.qa.PostSend(send)
		drain(c.b.cq)
		drain(c.a.cq)
		_, _ = c.a.cq.Poll(wc)
		_ = c.a.cq.Arm()
		_, _ = c.a.ch.Wait(0)
	})
	require.Zero(t, allocs)
}
