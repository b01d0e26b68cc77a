//go:build linux && cgo

package ibverbs

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// The path for old libraries finds what the table call finds.
func TestGIDsWithoutTableCall(t *testing.T) {
	e := openEnd(t, "rxe0")
	port, err := e.dev.QueryPort(rigPort)
	require.NoError(t, err)
	table, err := e.dev.QueryGIDs(rigPort)
	require.NoError(t, err)
	single, err := e.dev.(*device).gidsOneByOne(rigPort, port.GIDTable)
	require.NoError(t, err)
	require.Equal(t, table, single)
	require.NotEmpty(t, e.gid.NetDev)
}

// A batch larger than one chain, then one that the queue cannot take whole:
// each work request that was taken completes once, no other.
func TestBatches(t *testing.T) {
	p := connect(t)
	recvs := p.b.recvs(180, 64)
	n, err := p.qb.PostRecv(recvs)
	require.NoError(t, err)
	require.Equal(t, 180, n)
	sends := make([]verbs.SendWR, 150)
	for i := range sends {
		sends[i] = p.a.send(uint64(i), 0, 64, verbs.SendSignaled)
	}
	n, err = p.qa.PostSend(sends)
	require.NoError(t, err)
	require.Equal(t, 150, n)
	for i, wc := range p.b.poll(150) {
		require.EqualValues(t, 1000+i, wc.ID)
	}
	for i, wc := range p.a.poll(150) {
		require.EqualValues(t, i, wc.ID)
	}

	taken, err := p.qb.PostRecv(p.b.recvs(1000, 64))
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "the receive queue is full")
	require.Equal(t, p.qb.Caps().MaxRecvWR-30, taken)
	require.NoError(t, p.qb.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
	for _, wc := range p.b.poll(taken + 30) {
		require.Equal(t, verbs.WCWRFlushErr, wc.Status)
	}
	more, err := p.b.cq.Poll(make([]verbs.WC, 1))
	require.NoError(t, err)
	require.Zero(t, more)
}

// Sends that came too early must not be sent once the QP is in RTS.
func TestSendBeforeRTS(t *testing.T) {
	a, b := openEnd(t, "rxe0"), openEnd(t, "rxe1")
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
func TestInterruptsAreCounted(t *testing.T) {
	e := openEnd(t, "rxe0")
	for range 3 {
		e.dev.Interrupt()
	}
	for ended := 0; ended < 3; {
		if _, err := e.dev.AsyncEvent(); err != nil {
			require.ErrorIs(t, err, verbs.ErrInterrupted)
			ended++
		}
	}
	time.AfterFunc(10*time.Millisecond, e.dev.Interrupt)
	for {
		if _, err := e.dev.AsyncEvent(); err != nil {
			require.ErrorIs(t, err, verbs.ErrInterrupted)
			return
		}
	}
}

// The data path of what was destroyed ends in Go, not in freed memory.
func TestUseAfterDestroy(t *testing.T) {
	requireRDMA(t)
	dev, err := Provider().Open("rxe0")
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
func TestAHKeepsPD(t *testing.T) {
	a, b := openEnd(t, "rxe0"), openEnd(t, "rxe1")
	pd, err := a.dev.AllocPD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(b.path(a))
	require.NoError(t, err)
	require.ErrorIs(t, pd.Dealloc(), syscall.EBUSY)
	require.NoError(t, ah.Destroy())
	require.NoError(t, pd.Dealloc())
}

func TestErrorsSayWhy(t *testing.T) {
	e, other := openEnd(t, "rxe0"), openEnd(t, "rxe1")
	port, err := e.dev.QueryPort(rigPort)
	require.NoError(t, err)
	require.Equal(t, verbs.LinkEthernet, port.LinkLayer)
	_, err = e.dev.QueryPort(9)
	require.ErrorContains(t, err, "ibv_query_port on rxe0, port 9")
	_, err = e.pd.RegisterMR(nil, verbs.AccessLocalWrite)
	require.ErrorContains(t, err, "empty")
	_, err = e.dev.CreateCQ(1<<30, nil)
	require.ErrorContains(t, err, "above the device's limit")
	_, err = e.pd.CreateQP(verbs.QPInit{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, Caps: verbs.QPCaps{MaxSendWR: 1 << 28, MaxRecvWR: 1},
	})
	require.ErrorContains(t, err, "MaxSendWR 268435456 is above the device's limit")
	_, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: e.cq, Caps: verbs.QPCaps{MaxSendWR: -1}})
	require.ErrorContains(t, err, "RecvCQ must be a CQ of the same device")
	_, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: other.cq, RecvCQ: e.cq})
	require.ErrorContains(t, err, "SendCQ must be a CQ of the same device")
	_, err = e.dev.CreateCQ(16, other.ch)
	require.ErrorContains(t, err, "the channel is of another device")

	q := e.qp()
	err = q.Modify(&verbs.QPAttr{State: verbs.RTS}, verbs.AttrState)
	var failed *verbs.Error
	require.True(t, errors.As(err, &failed))
	require.Equal(t, "ibv_modify_qp", failed.Op)
	require.Equal(t, syscall.EINVAL, failed.Errno)
	require.Contains(t, failed.Object, fmt.Sprintf("QP %#x", q.Num()))
}

// The data path allocates nothing.
func TestAllocations(t *testing.T) {
	p := connect(t)
	recv, send := p.b.recvs(1, 64), []verbs.SendWR{p.a.send(1, 0, 64, verbs.SendSignaled)}
	wc := make([]verbs.WC, 16)
	drain := func(cq verbs.CQ) {
		for n := 0; n == 0; n, _ = cq.Poll(wc) {
		}
	}
	allocs := testing.AllocsPerRun(50, func() {
		_, _ = p.qb.PostRecv(recv)
		_, _ = p.qa.PostSend(send)
		drain(p.b.cq)
		drain(p.a.cq)
		_, _ = p.a.cq.Poll(wc)
		_ = p.a.cq.Arm()
		_, _ = p.a.ch.Wait(0)
	})
	require.Zero(t, allocs)
}

func BenchmarkEmptyPoll(b *testing.B) {
	e := openEnd(b, "rxe0")
	wc := make([]verbs.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := e.cq.Poll(wc); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkMessages counts messages: receives, sends and both polls of a
// batch are four crossings.
func BenchmarkMessages(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			p := connect(b)
			recvs, sends := p.b.recvs(batch, 64), make([]verbs.SendWR, batch)
			for i := range sends {
				sends[i] = p.a.send(uint64(i), 0, 64, 0)
			}
			sends[batch-1].Flags = verbs.SendSignaled
			wc := make([]verbs.WC, batch)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = p.qb.PostRecv(recvs)
				_, _ = p.qa.PostSend(sends)
				for n := 0; n < batch; {
					k, _ := p.b.cq.Poll(wc)
					n += k
				}
				for n := 0; n == 0; n, _ = p.a.cq.Poll(wc) {
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/message")
		})
	}
}
