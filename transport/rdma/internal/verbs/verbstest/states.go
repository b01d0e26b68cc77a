package verbstest

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

var qpTypes = []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}

// eachType runs a test for a fresh QP of each type, and a peer for it.
func eachType(t *testing.T, rig Rig, test func(a, b *qp)) {
	for _, typ := range qpTypes {
		t.Run(typ.String(), func(t *testing.T) {
			a, b := openBoth(t, rig)
			test(a.newQP(typ), b.newQP(typ))
		})
	}
}

func testQPLife(t *testing.T, rig Rig) {
	eachType(t, rig, func(a, b *qp) {
		require.Equal(a.t, verbs.Reset, a.state())
		connect(a, b, patient)
		attr, err := a.Query()
		require.NoError(a.t, err)
		require.Equal(a.t, a.end.Port, attr.Port)
		if a.Type() == verbs.RC {
			require.Equal(a.t, b.Num(), attr.DestQPN)
			require.Equal(a.t, patient.timeout, attr.Timeout)
			require.Equal(a.t, b.gid.GID, attr.AV.DGID)
		}
		a.move(verbs.Err)
		a.move(verbs.Err)
		a.move(verbs.Reset)
		a.take(a.toInit())
		a.take(a.toInit()) // INIT to INIT is legal
		a.move(verbs.Err)
		a.move(verbs.Reset)
	})
}

func testIllegalTransitions(t *testing.T, rig Rig) {
	eachType(t, rig, func(a, b *qp) {
		init, rtr, rts := a.toInit(), a.toRTR(b), a.toRTS(patient)
		bare := func(s verbs.QPState) step { return step{verbs.QPAttr{State: s}, verbs.AttrState} }
		a.refused(rtr, "from RESET")
		a.refused(rts, "from RESET")
		a.refused(bare(verbs.Err), "from RESET")
		a.take(init)
		a.refused(rts, "from INIT")
		a.take(rtr)
		a.refused(rtr, "from RTR")
		a.refused(init, "from RTR")
		a.take(rts)
		a.refused(init, "from RTS")
		a.refused(rtr, "from RTS")
		a.refused(rts, "SQ_PSN in RTS")
		a.move(verbs.Err)
		a.refused(init, "from ERR")
		a.refused(rtr, "from ERR")
		a.refused(rts, "from ERR")
	})
}

// testMissingAttributes leaves each attribute out, one at a time.
func testMissingAttributes(t *testing.T, rig Rig) {
	eachType(t, rig, func(a, b *qp) {
		for _, st := range []step{a.toInit(), a.toRTR(b), a.toRTS(patient)} {
			for bit := verbs.AttrState << 1; bit <= verbs.AttrDestQPN; bit <<= 1 {
				if st.mask&bit != 0 {
					a.refused(step{st.attr, st.mask &^ bit}, "without "+bit.String())
				}
			}
			a.refused(step{st.attr, st.mask | verbs.AttrCap}, "with CAP")
			a.take(st)
		}
	})
}

// testInconsistentAttributes brings all attributes, with values that the
// device cannot agree to.
func testInconsistentAttributes(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	q, peer := a.newQP(verbs.RC), b.newQP(verbs.RC)
	st := q.toInit()
	st.attr.Port = 99
	q.refused(st, "port 99")
	q.take(q.toInit())

	st = q.toRTR(peer)
	st.attr.AV.Global = false
	q.refused(st, "no GRH on Ethernet")
	if a.port.ActiveMTU < verbs.MTU4096 {
		st = q.toRTR(peer)
		st.attr.PathMTU = a.port.ActiveMTU + 1
		q.refused(st, "path MTU above the active one")
	}
	st = q.toRTR(peer)
	st.attr.AV.SGIDIndex = uint8(a.port.GIDTable - 1)
	err := q.Modify(&st.attr, st.mask)
	require.Error(t, err, "an empty GID index")
	require.Equal(t, verbs.Init, q.state())
	var e *verbs.Error
	require.True(t, errors.As(err, &e), "%T", err)
	require.Equal(t, "ibv_modify_qp", e.Op)
	require.Contains(t, e.Object, fmt.Sprintf("%#x", q.Num()))
	q.take(q.toRTR(peer))
}

func testPostInWrongState(t *testing.T, rig Rig) {
	eachType(t, rig, func(a, b *qp) {
		recvs := []verbs.RecvWR{a.recvWR(1, 0, 64)}
		sends := []verbs.SendWR{a.sendWR(2, 1)}
		refuse := func(n int, err error) {
			a.t.Helper()
			require.ErrorIs(a.t, err, syscall.EINVAL, "in %v", a.state())
			require.Zero(a.t, n)
		}
		refuse(a.PostRecv(recvs))
		for _, st := range []step{a.toInit(), a.toRTR(b)} {
			refuse(a.PostSend(sends))
			a.take(st)
			a.recv(recvs...)
		}
		refuse(a.PostSend(sends))
	})
}

func testQueueFull(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, _ := connected(a, b, verbs.RC, stubborn)
	caps := x.Caps()
	for i := range caps.MaxRecvWR {
		x.recv(a.recvWR(uint64(i), 0, 64))
	}
	n, err := x.PostRecv([]verbs.RecvWR{a.recvWR(999, 0, 64)})
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Zero(t, n)

	// The peer has no receive: nothing completes.
	wrs := make([]verbs.SendWR, caps.MaxSendWR+1)
	for i := range wrs {
		wrs[i] = a.sendWR(uint64(1000+i), 8)
	}
	n, err = x.PostSend(wrs)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Equal(t, caps.MaxSendWR, n, "those before the full queue were taken")
	x.move(verbs.Err)
	require.ElementsMatch(t, append(span(0, caps.MaxRecvWR), span(1000, caps.MaxSendWR)...),
		ids(a.wait(caps.MaxRecvWR+caps.MaxSendWR)))
}

// testRecycle uses a QP again and again; its receives have to be posted again
// each time (case 12).
func testRecycle(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := a.newQP(verbs.RC), b.newQP(verbs.RC)
	num := x.Num()
	for i := range uint64(8) {
		x.psn, y.psn = (x.psn+1000)&(1<<24-1), (y.psn+5000)&(1<<24-1)
		connect(x, y, patient)
		y.recv(b.recvWR(10*i, 0, 64), b.recvWR(10*i+1, 64, 64))
		x.send(a.sendWR(10*i+2, 64))
		require.Equal(t, []uint64{10*i + 2}, ids(a.waitOK(1)))
		require.Equal(t, []uint64{10 * i}, ids(b.waitOK(1)))
		x.move(verbs.Err)
		y.move(verbs.Err)
		flushed := b.wait(1)
		require.Equal(t, 10*i+1, flushed[0].ID)
		require.Equal(t, verbs.WCWRFlushErr, flushed[0].Status)
		x.move(verbs.Reset)
		y.move(verbs.Reset)
		require.Empty(t, a.poll())
		require.Equal(t, num, x.Num())
	}
}

// testResetForgets: RTS to RESET loses what was posted, without a completion
// (case 1), but not what has completed.
func testResetForgets(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	y.recv(b.recvWR(1, 0, 64), b.recvWR(2, 0, 64), b.recvWR(3, 0, 64))
	x.send(a.sendWR(4, 64))
	a.waitOK(1)
	y.move(verbs.Reset)
	require.Equal(t, []uint64{1}, ids(b.waitOK(1)), "the one that completed before")
	x.move(verbs.Reset)

	connect(x, y, patient)
	y.recv(b.recvWR(5, 0, 64))
	x.send(a.sendWR(6, 64))
	a.waitOK(1)
	require.Equal(t, []uint64{5}, ids(b.waitOK(1)), "the receives of before are gone")
}
