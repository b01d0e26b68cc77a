package verbstest

import (
	"math/rand/v2"
	"syscall"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// qp is a QP of one side, with what its peer must know.
type qp struct {
	verbs.QP
	*side
	psn    uint32
	access verbs.Access
}

// path are the attributes of a connection that tests vary.
type path struct {
	timeout, retry, rnrRetry uint8
}

// patient does not give up on a slow machine; hasty does, soon. Neither uses
// 7, which is for ever on rxe.
var (
	patient = path{timeout: 18, retry: 6, rnrRetry: 6}
	hasty   = path{timeout: 12, retry: 1, rnrRetry: 0}
	// stubborn sends wait for ever for a receive.
	stubborn = path{timeout: 18, retry: 6, rnrRetry: 7}
)

const qkey = 0x1234567

func (s *side) caps() verbs.QPCaps {
	return verbs.QPCaps{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: maxInline}
}

func (s *side) newQP(typ verbs.QPType) *qp {
	s.t.Helper()
	return s.newQPOn(typ, s.cq)
}

func (s *side) newQPOn(typ verbs.QPType, cq verbs.CQ) *qp {
	s.t.Helper()
	return s.newQPFor(verbs.QPInit{Type: typ, SendCQ: cq, RecvCQ: cq, Caps: s.caps()})
}

func (s *side) newQPFor(init verbs.QPInit) *qp {
	s.t.Helper()
	v, err := s.pd.CreateQP(init)
	require.NoError(s.t, err)
	q := &qp{QP: v, side: s, psn: rand.Uint32N(1 << 24), access: allAccess}
	s.qps = append(s.qps, q)
	return q
}

// step is one transition with its attributes.
type step struct {
	attr verbs.QPAttr
	mask verbs.AttrMask
}

func (q *qp) toInit() step {
	st := step{verbs.QPAttr{State: verbs.Init, Port: q.end.Port, QKey: qkey, Access: q.access},
		verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess}
	if q.Type() == verbs.UD {
		st.mask ^= verbs.AttrAccess | verbs.AttrQKey
	}
	return st
}

func (q *qp) toRTR(peer *qp) step {
	st := step{verbs.QPAttr{
		State: verbs.RTR, PathMTU: min(q.port.ActiveMTU, peer.port.ActiveMTU), DestQPN: peer.Num(), RQPSN: peer.psn,
		MaxDestRdAtom: 4, MinRNRTimer: 12, AV: q.to(peer.side),
	}, verbs.AttrState}
	switch q.Type() {
	case verbs.RC:
		st.mask |= verbs.AttrMaxDestRdAtom | verbs.AttrMinRNRTimer
		fallthrough
	case verbs.UC:
		st.mask |= verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN
	}
	return st
}

func (q *qp) toRTS(p path) step {
	st := step{verbs.QPAttr{State: verbs.RTS, SQPSN: q.psn, Timeout: p.timeout, RetryCnt: p.retry, RNRRetry: p.rnrRetry,
		MaxRdAtomic: 4}, verbs.AttrState | verbs.AttrSQPSN}
	if q.Type() == verbs.RC {
		st.mask |= verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic
	}
	return st
}

// to is the way to another side.
func (s *side) to(peer *side) verbs.AHAttr {
	return verbs.AHAttr{Global: true, DGID: peer.gid.GID, SGIDIndex: uint8(s.gid.Index), HopLimit: 64, Port: s.end.Port}
}

func (q *qp) take(st step) {
	q.t.Helper()
	require.NoError(q.t, q.Modify(&st.attr, st.mask), "to %v", st.attr.State)
	require.Equal(q.t, st.attr.State, q.state())
}

func (q *qp) move(s verbs.QPState) {
	q.t.Helper()
	q.take(step{verbs.QPAttr{State: s}, verbs.AttrState})
}

func (q *qp) state() verbs.QPState {
	q.t.Helper()
	a, err := q.Query()
	require.NoError(q.t, err)
	return a.State
}

// refused expects a transition to fail with EINVAL and to leave the state.
func (q *qp) refused(st step, why string) {
	q.t.Helper()
	before := q.state()
	require.ErrorIs(q.t, q.Modify(&st.attr, st.mask), syscall.EINVAL, "%v to %v: %s", before, st.attr.State, why)
	require.Equal(q.t, before, q.state(), "after a refused transition")
}

// connect takes both from RESET to RTS.
func connect(a, b *qp, p path) {
	a.t.Helper()
	a.take(a.toInit())
	b.take(b.toInit())
	a.take(a.toRTR(b))
	b.take(b.toRTR(a))
	a.take(a.toRTS(p))
	b.take(b.toRTS(p))
}

// connected are two QPs in RTS.
func connected(a, b *side, typ verbs.QPType, p path) (*qp, *qp) {
	a.t.Helper()
	x, y := a.newQP(typ), b.newQP(typ)
	connect(x, y, p)
	return x, y
}

// sendWR sends the first n bytes of the side's memory, signaled.
func (s *side) sendWR(id uint64, n int) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		Addr: s.mr.Addr(), Length: uint32(n), LKey: s.mr.LKey()}
}

// oneSided is an operation on the peer's landing memory.
func (s *side) oneSided(id uint64, op verbs.Opcode, n int, peer *side) verbs.SendWR {
	wr := s.sendWR(id, n)
	wr.Opcode, wr.RemoteAddr, wr.RKey = op, peer.landing(0), peer.mr.RKey()
	return wr
}

func (s *side) recvWR(id uint64, off, n int) verbs.RecvWR {
	return verbs.RecvWR{ID: id, Addr: s.landing(off), Length: uint32(n), LKey: s.mr.LKey()}
}

func (q *qp) send(wrs ...verbs.SendWR) {
	q.t.Helper()
	n, err := q.PostSend(wrs)
	require.NoError(q.t, err)
	require.Equal(q.t, len(wrs), n)
}

func (q *qp) recv(wrs ...verbs.RecvWR) {
	q.t.Helper()
	n, err := q.PostRecv(wrs)
	require.NoError(q.t, err)
	require.Equal(q.t, len(wrs), n)
}
