package verbstest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// status expects what the specification says or, given a reason, the quirk.
func status(t *testing.T, got, spec, quirk verbs.WCStatus, reason string) {
	t.Helper()
	if got == quirk && reason != "" {
		return
	}
	require.Equal(t, spec, got, "%v, not %v", got, spec)
}

// inErr waits until the QP is in ERR.
func (q *qp) inErr() {
	q.t.Helper()
	q.until(func() bool { return q.state() == verbs.Err }, "QP in ERR")
}

// flushed expects one flush completion for each of the ids.
func flushed(t *testing.T, got []verbs.WC, want []uint64) {
	t.Helper()
	require.ElementsMatch(t, want, ids(got))
	for _, wc := range got {
		require.Equal(t, verbs.WCWRFlushErr, wc.Status, "WR %d", wc.ID)
	}
}

func testNotReadyGivesUp(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	p := patient
	p.rnrRetry = 0
	x, y := connected(a, b, verbs.RC, p)
	x.recv(a.recvWR(1, 0, 64))
	x.send(a.sendWR(2, 8), a.sendWR(3, 8))
	got := a.wait(3)
	require.Equal(t, uint64(2), got[0].ID)
	require.Equal(t, verbs.WCRNRRetryExcErr, got[0].Status)
	flushed(t, got[1:], []uint64{1, 3})
	require.Equal(t, verbs.Err, x.state())
	require.Equal(t, verbs.RTS, y.state(), "the peer does not know")
}

// testPeerInErr: nobody answers, and what was acknowledged before stays a
// success.
func testPeerInErr(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, hasty)
	y.recv(b.recvWR(1, 0, 64))
	x.send(a.sendWR(1, 8))
	a.waitOK(1)
	b.waitOK(1)
	y.move(verbs.Err)
	x.recv(a.recvWR(2, 0, 64), a.recvWR(3, 0, 64))
	x.send(a.sendWR(4, 8), a.sendWR(5, 8), a.sendWR(6, 8))
	got := a.wait(5)
	require.Equal(t, uint64(4), got[0].ID)
	require.Equal(t, verbs.WCRetryExcErr, got[0].Status)
	flushed(t, got[1:], []uint64{2, 3, 5, 6})
	require.Equal(t, verbs.Err, x.state())
}

// testFlushIsExact: in ERR each WR completes, once, those unsignaled too, and
// only wr_id tells which it was.
func testFlushIsExact(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, _ := connected(a, b, verbs.RC, stubborn)
	want := span(0, depth)
	for _, id := range want {
		x.recv(a.recvWR(id, 0, 64))
	}
	for _, id := range span(100, depth) {
		wr := a.sendWR(id, 8)
		if id%2 == 0 {
			wr.Flags = 0
		}
		x.send(wr)
		want = append(want, id)
	}
	require.Empty(t, a.poll())
	x.move(verbs.Err)
	got := a.wait(len(want))
	flushed(t, got, want)
	for _, wc := range got {
		require.Equal(t, x.Num(), wc.QPNum)
	}
	x.move(verbs.Reset)
	require.Empty(t, a.poll(), "no second completion")
}

// testPostInErr (cases 7 and 14): a send is flushed; a receive is too, at once
// where the device does what the specification says, else when the QP is taken to
// ERR once more.
func testPostInErr(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, _ := connected(a, b, verbs.RC, patient)
	x.move(verbs.Err)
	x.recv(a.recvWR(1, 0, 64))
	x.send(a.sendWR(2, 8))
	var got []verbs.WC
	a.until(func() bool {
		got = append(got, a.poll()...)
		seen := slices.Contains(ids(got), 2)
		return seen && (len(got) == 2 || rig.Quirks.RecvInErrSilent != "")
	}, "flush of what was posted in ERR")
	x.move(verbs.Err)
	a.until(func() bool {
		got = append(got, a.poll()...)
		return len(got) >= 2
	}, "flush of the receive")
	flushed(t, got, []uint64{1, 2})
	x.move(verbs.Reset)
	require.Empty(t, a.poll(), "no second completion")
}

// otherPD registers all memory of a side in a PD of its own.
func (s *side) otherPD(t *testing.T) verbs.MR {
	t.Helper()
	pd := hold(t, verbs.PD.Dealloc)(s.dev.AllocPD())
	return hold(t, verbs.MR.Deregister)(pd.RegisterMR(s.mem, verbs.AccessLocalWrite|allAccess))
}

func testBadLKey(t *testing.T, rig Rig) {
	for name, spoil := range map[string]func(*testing.T, *side, *verbs.SendWR){
		"Key":     func(_ *testing.T, _ *side, wr *verbs.SendWR) { wr.LKey ^= 0x55aa00 },
		"Address": func(_ *testing.T, _ *side, wr *verbs.SendWR) { wr.Addr += memory - 4 },
		"PD":      func(t *testing.T, a *side, wr *verbs.SendWR) { wr.LKey = a.otherPD(t).LKey() },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := openBoth(t, rig)
			x, y := connected(a, b, verbs.RC, patient)
			y.recv(b.recvWR(1, 0, 64))
			wr := a.sendWR(2, 8)
			spoil(t, a, &wr)
			x.send(wr)
			got := a.wait(1)[0]
			require.Equal(t, uint64(2), got.ID)
			status(t, got.Status, verbs.WCLocProtErr, verbs.WCLocQPOpErr, rig.Quirks.BadLKeyIsOpErr)
			x.inErr()
			require.Equal(t, verbs.RTS, y.state(), "nothing was sent")
			require.Empty(t, b.poll())
		})
	}
}

func testShortReceive(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	y.recv(b.recvWR(1, 0, 16), b.recvWR(2, 0, 64))
	copy(b.landed(16, 4), "safe")
	a.fill(1, 17)
	x.send(a.sendWR(3, 17))
	sent := a.wait(1)[0]
	require.Equal(t, uint64(3), sent.ID)
	status(t, sent.Status, verbs.WCRemInvReqErr, verbs.WCRemOpErr, rig.Quirks.ShortRecvIsOpErr)
	got := b.wait(2)
	require.Equal(t, uint64(1), got[0].ID)
	status(t, got[0].Status, verbs.WCLocLenErr, verbs.WCLocQPOpErr, rig.Quirks.ShortRecvIsOpErr)
	flushed(t, got[1:], []uint64{2})
	x.inErr()
	y.inErr()
	require.Equal(t, "safe", string(b.landed(16, 4)), "behind the receive")
}

// refusedByPeer sends a one-sided operation that must fail with a status, and
// expects both QPs in ERR and the peer's memory untouched.
func refusedByPeer(t *testing.T, x, y *qp, wr verbs.SendWR, want func(verbs.WCStatus)) {
	t.Helper()
	copy(y.landed(0, 8), "original")
	x.send(wr)
	x.inErr()
	y.inErr()
	var got []verbs.WC
	x.until(func() bool {
		got = append(got, x.poll()...)
		return len(got) > 0
	}, "completion of the refused operation")
	require.Equal(t, wr.ID, got[0].ID)
	want(got[0].Status)
	if x.rig.Quirks.WriteErrorTwice == "" {
		require.Len(t, got, 1)
	}
	for _, wc := range got[1:] {
		require.Equal(t, verbs.WC{ID: wr.ID, Status: verbs.WCWRFlushErr, QPNum: x.Num()}, wc)
	}
	require.Equal(t, "original", string(y.landed(0, 8)))
}

// testBadRKey names memory that the peer's region does not give: by key, by
// address, by right, and by PD.
func testBadRKey(t *testing.T, rig Rig) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd} {
		for name, spoil := range map[string]func(*testing.T, *side, *verbs.SendWR){
			"Key":     func(_ *testing.T, _ *side, wr *verbs.SendWR) { wr.RKey ^= 0x55aa00 },
			"Address": func(_ *testing.T, _ *side, wr *verbs.SendWR) { wr.RemoteAddr += memory / 2 },
			"PD":      func(t *testing.T, b *side, wr *verbs.SendWR) { wr.RKey = b.otherPD(t).RKey() },
			"Right": func(t *testing.T, b *side, wr *verbs.SendWR) {
				right := verbs.AccessRemoteRead
				if op == verbs.OpRead {
					right = verbs.AccessRemoteWrite
				}
				mr := hold(t, verbs.MR.Deregister)(b.pd.RegisterMR(b.mem, verbs.AccessLocalWrite|right))
				wr.RKey = mr.RKey()
			},
		} {
			t.Run(fmt.Sprintf("%s/%d", name, op), func(t *testing.T) {
				a, b := openBoth(t, rig)
				x, y := connected(a, b, verbs.RC, patient)
				wr := a.oneSided(1, op, 8, b)
				spoil(t, b, &wr)
				refusedByPeer(t, x, y, wr, func(got verbs.WCStatus) { require.Equal(t, verbs.WCRemAccessErr, got) })
			})
		}
	}
}

// testNoAccess: the region allows it, the QP does not.
func testNoAccess(t *testing.T, rig Rig) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd} {
		a, b := openBoth(t, rig)
		x, y := a.newQP(verbs.RC), b.newQP(verbs.RC)
		y.access = 0
		connect(x, y, patient)
		refusedByPeer(t, x, y, a.oneSided(1, op, 8, b), func(got verbs.WCStatus) {
			status(t, got, verbs.WCRemAccessErr, verbs.WCRemInvReqErr, rig.Quirks.NoAccessIsReqErr)
		})
	}
}

// testCQOverrun (case 38): completions are lost, an asynchronous event tells,
// and the QP stays in RTS, so that its peer learns nothing.
func testCQOverrun(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	small := hold(t, verbs.CQ.Destroy)(b.dev.CreateCQ(1, nil))
	x, y := a.newQP(verbs.RC), b.newQPOn(verbs.RC, small)
	t.Cleanup(func() { b.qps = nil; require.NoError(t, y.Destroy()) })
	connect(x, y, patient)
	n := small.Depth() + 2
	for i := range uint64(n) {
		y.recv(b.recvWR(i, 0, 64))
		x.send(a.sendWR(i, 8))
	}
	stops := rig.Quirks.OverrunStopsQP != ""
	for i, wc := range a.wait(n) {
		if i < small.Depth() || !stops {
			require.Equal(t, verbs.WCSuccess, wc.Status, "WR %d", i)
		}
	}
	require.Equal(t, verbs.CQ(small), b.event(verbs.EventCQErr).CQ)
	wcs := make([]verbs.WC, n)
	got, err := small.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, span(0, small.Depth()), ids(wcs[:got]))
	if !stops {
		require.Equal(t, verbs.RTS, y.state())
	}
}
