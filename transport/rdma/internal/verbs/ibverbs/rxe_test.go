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

func TestDeviceAndPort(t *testing.T) {
	e := openEnd(t, "rxe0")
	attr, err := e.dev.Query()
	require.NoError(t, err)
	require.EqualValues(t, 1, attr.Ports)
	require.Greater(t, attr.MaxQP, 1000)
	require.Greater(t, attr.MaxCQE, 1000)

	port, err := e.dev.QueryPort(rigPort)
	require.NoError(t, err)
	require.Equal(t, verbs.PortActive, port.State)
	require.Equal(t, verbs.LinkEthernet, port.LinkLayer)
	require.Contains(t, []int{1024, 2048, 4096}, port.ActiveMTU.Bytes())
	require.Positive(t, port.GIDTable)

	_, err = e.dev.QueryPort(9)
	require.ErrorContains(t, err, "ibv_query_port on rxe0, port 9")
}

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

func TestSendReceive(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			p := connect(t, typ)
			_, err := p.qb.PostRecv(p.b.recvs(4, 4096))
			require.NoError(t, err)
			copy(p.a.mem, "plain")
			copy(p.a.mem[100:], "inline")
			n, err := p.qa.PostSend([]verbs.SendWR{
				p.a.send(1, 0, 5, 0), // makes no completion
				p.a.send(2, 100, 6, verbs.SendInline),
				{ID: 3, Opcode: verbs.OpSendImm, Imm: 0xa1b2c3d4, Flags: verbs.SendSignaled},
			})
			require.NoError(t, err)
			require.Equal(t, 3, n)
			copy(p.a.mem[100:], "XXXXXX") // inline data may be reused

			sent := p.a.poll(1)
			require.Len(t, sent, 1)
			require.EqualValues(t, 3, sent[0].ID)
			require.Equal(t, verbs.WCSuccess, sent[0].Status)
			got := p.b.poll(3)
			require.EqualValues(t, 1000, got[0].ID)
			require.Equal(t, verbs.WCRecv, got[0].Opcode)
			require.Equal(t, p.qb.Num(), got[0].QPNum)
			require.EqualValues(t, 5, got[0].ByteLen)
			require.Equal(t, "plain", string(p.b.mem[rigMem/2:][:5]))
			require.Equal(t, "inline", string(p.b.mem[rigMem/2+4096:][:6]))
			require.EqualValues(t, 0, got[2].ByteLen)
			require.NotZero(t, got[2].Flags&verbs.WCWithImm)
			require.EqualValues(t, 0xa1b2c3d4, got[2].Imm())
		})
	}
}

func TestWriteAndRead(t *testing.T) {
	p := connect(t, verbs.RC)
	copy(p.a.mem, "written")
	copy(p.b.mem[64:], "read")
	remote := func(wr verbs.SendWR, op verbs.Opcode, offset uint64) verbs.SendWR {
		wr.Opcode, wr.RemoteAddr, wr.RKey = op, p.b.mr.Addr()+offset, p.b.mr.RKey()
		return wr
	}
	_, err := p.qa.PostSend([]verbs.SendWR{
		remote(p.a.send(1, 0, 7, verbs.SendSignaled), verbs.OpWrite, 0),
		remote(p.a.send(2, 64, 4, verbs.SendSignaled), verbs.OpRead, 64),
	})
	require.NoError(t, err)
	got := p.a.poll(2)
	require.Equal(t, verbs.WCRDMAWrite, got[0].Opcode)
	require.Equal(t, verbs.WCRDMARead, got[1].Opcode)
	require.Equal(t, "written", string(p.b.mem[:7]))
	require.Equal(t, "read", string(p.a.mem[64:68]))
}

func TestDatagram(t *testing.T) {
	a, b := openEnd(t, "rxe0"), openEnd(t, "rxe1")
	qa, qb := a.qp(verbs.UD), b.qp(verbs.UD)
	a.toInit(qa)
	b.toInit(qb)
	a.toRTS(qa, qb, b)
	b.toRTS(qb, qa, a)
	ah, err := a.pd.CreateAH(b.path(a))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ah.Destroy()) })

	_, err = qb.PostRecv(b.recvs(1, 2048))
	require.NoError(t, err)
	copy(a.mem, "datagram")
	wr := a.send(1, 0, 8, verbs.SendSignaled)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah.Handle(), qb.Num(), rigQKey
	_, err = qa.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, a.poll(1)[0].Status)
	got := b.poll(1)[0]
	require.Equal(t, verbs.WCSuccess, got.Status)
	require.EqualValues(t, 48, got.ByteLen, "40 bytes of GRH come first")
	require.Equal(t, qa.Num(), got.SrcQP)
	require.Equal(t, "datagram", string(b.mem[rigMem/2+40:][:8]))
}

// A batch larger than one chain, then one that the queue cannot take whole:
// each work request that was taken completes once, no other.
func TestBatches(t *testing.T) {
	p := connect(t, verbs.RC)
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
	qa, qb := a.qp(verbs.RC), b.qp(verbs.RC)
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

func TestQueryQP(t *testing.T) {
	p := connect(t, verbs.RC)
	attr, err := p.qa.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.RTS, attr.State)
	require.Equal(t, verbs.MTU1024, attr.PathMTU)
	require.Equal(t, p.qb.Num(), attr.DestQPN)
	require.EqualValues(t, 77, attr.SQPSN)
	require.EqualValues(t, 6, attr.RetryCnt)
	require.EqualValues(t, 14, attr.Timeout)
	require.Equal(t, p.b.gid.GID, attr.AV.DGID)
	require.EqualValues(t, p.a.gid.Index, attr.AV.SGIDIndex)
	require.GreaterOrEqual(t, p.qa.Caps().MaxSendWR, 200)
	require.GreaterOrEqual(t, p.qa.Caps().MaxInlineData, 256)
}

// case 36: events are acknowledged, so that the CQ can be destroyed (in the
// clean-up) after any number of them.
func TestCompletionEvents(t *testing.T) {
	p := connect(t, verbs.RC)
	_, err := p.qb.PostRecv(p.b.recvs(100, 64))
	require.NoError(t, err)
	for i := range 20 {
		require.NoError(t, p.b.cq.Arm())
		_, err := p.qa.PostSend([]verbs.SendWR{p.a.send(uint64(i), 0, 64, verbs.SendSignaled)})
		require.NoError(t, err)
		why, err := p.b.ch.Wait(patience)
		require.NoError(t, err)
		require.Equal(t, verbs.WakeEvent, why)
		p.b.poll(1)
	}
	why, err := p.b.ch.Wait(0)
	require.NoError(t, err)
	require.Equal(t, verbs.WakeTimeout, why)
}

func TestWake(t *testing.T) {
	e := openEnd(t, "rxe0")
	e.ch.Wake()
	e.ch.Wake()
	why, err := e.ch.Wait(patience)
	require.NoError(t, err)
	require.Equal(t, verbs.WakeCall, why, "a Wake before Wait is kept")
	why, err = e.ch.Wait(time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, verbs.WakeTimeout, why, "two Wakes before Wait are one")

	woken := make(chan error)
	go func() {
		why, err := e.ch.Wait(-1)
		if err == nil && why != verbs.WakeCall {
			err = fmt.Errorf("woken by %v", why)
		}
		woken <- err
	}()
	time.Sleep(10 * time.Millisecond) // likely, not surely, it waits by now
	e.ch.Wake()
	require.NoError(t, <-woken)
}

func TestAsyncInterrupt(t *testing.T) {
	e := openEnd(t, "rxe0")
	e.dev.Interrupt()
	e.dev.Interrupt()
	for range 2 {
		_, err := nextInterrupt(e.dev)
		require.ErrorIs(t, err, verbs.ErrInterrupted, "one for each Interrupt")
	}
	ended := make(chan error)
	go func() {
		_, err := nextInterrupt(e.dev)
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	e.dev.Interrupt()
	require.ErrorIs(t, <-ended, verbs.ErrInterrupted)
}

// nextInterrupt skips events that the device may have by itself.
func nextInterrupt(dev verbs.Device) (verbs.AsyncEvent, error) {
	for {
		if e, err := dev.AsyncEvent(); err != nil {
			return e, err
		}
	}
}

// A CQ that overflows is told by an event that names it.
func TestAsyncCQError(t *testing.T) {
	p := connect(t, verbs.RC)
	small, err := p.a.dev.CreateCQ(1, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, small.Destroy()) }()
	q, err := p.a.pd.CreateQP(verbs.QPInit{
		Type: verbs.RC, SendCQ: p.a.cq, RecvCQ: small,
		Caps: verbs.QPCaps{MaxSendWR: 16, MaxRecvWR: 100, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, q.Destroy()) }()
	p.a.toInit(q)
	_, err = q.PostRecv(p.a.recvs(small.Depth()+10, 64))
	require.NoError(t, err)
	require.NoError(t, q.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))

	timer := time.AfterFunc(patience, p.a.dev.Interrupt)
	defer timer.Stop()
	for {
		event, err := p.a.dev.AsyncEvent()
		require.NoError(t, err)
		if event.Type == verbs.EventCQErr {
			require.Same(t, small, event.CQ)
			return
		}
	}
}

func TestDestroyOrder(t *testing.T) {
	e := openEnd(t, "rxe0")
	q := e.qp(verbs.RC)
	for name, destroy := range map[string]func() error{
		"device": e.dev.Close, "PD": e.pd.Dealloc, "CQ": e.cq.Destroy, "channel": e.ch.Destroy,
	} {
		require.ErrorIs(t, destroy(), syscall.EBUSY, name)
	}
	_, err := q.Query()
	require.NoError(t, err, "a refused destruction destroys nothing")
}

func TestDestroyTwice(t *testing.T) {
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
		err := destroy()
		var e *verbs.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, syscall.EBADF, e.Errno)
	}
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, syscall.EBADF)
	_, err = q.PostSend(make([]verbs.SendWR, 1))
	require.ErrorIs(t, err, syscall.EBADF)
	_, err = ch.Wait(-1)
	require.ErrorIs(t, err, syscall.EBADF)
	ch.Wake()
	dev.Interrupt()
}

func TestErrorsSayWhy(t *testing.T) {
	e := openEnd(t, "rxe0")
	_, err := e.pd.RegisterMR(nil, verbs.AccessLocalWrite)
	require.ErrorContains(t, err, "empty")
	_, err = e.dev.CreateCQ(1<<30, nil)
	require.ErrorContains(t, err, "above the device's limit")
	_, err = e.pd.CreateQP(verbs.QPInit{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, Caps: verbs.QPCaps{MaxSendWR: 1 << 28, MaxRecvWR: 1},
	})
	require.ErrorContains(t, err, "MaxSendWR 268435456 is above the device's limit")
	_, err = e.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: e.cq, Caps: verbs.QPCaps{MaxSendWR: -1}})
	require.ErrorContains(t, err, "RecvCQ")

	q := e.qp(verbs.RC)
	err = q.Modify(&verbs.QPAttr{State: verbs.RTS}, verbs.AttrState)
	var failed *verbs.Error
	require.True(t, errors.As(err, &failed))
	require.Equal(t, "ibv_modify_qp", failed.Op)
	require.Equal(t, syscall.EINVAL, failed.Errno)
	require.Contains(t, failed.Object, fmt.Sprintf("QP %#x", q.Num()))
}

// The data path allocates nothing.
func TestAllocations(t *testing.T) {
	p := connect(t, verbs.RC)
	recv, send := p.b.recvs(1, 64), []verbs.SendWR{p.a.send(1, 0, 64, verbs.SendSignaled)}
	wc := make([]verbs.WC, 16)
	drain := func(cq verbs.CQ) {
		for n := 0; n == 0; n, _ = cq.Poll(wc) {
		}
	}
	allocs := testing.AllocsPerRun(50, func() {
		p.qb.PostRecv(recv)
		p.qa.PostSend(send)
		drain(p.b.cq)
		drain(p.a.cq)
		p.a.cq.Poll(wc)
		p.a.cq.Arm()
		p.a.ch.Wait(0)
	})
	require.Zero(t, allocs)
}
