package simverbs

import (
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// transition says which attributes a change of state must and may set.
type transition struct{ required, optional verbs.AttrMask }

const (
	av    = verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN
	alt   = verbs.AttrAltPath | verbs.AttrPathMigState
	pkey  = verbs.AttrPKeyIndex
	again = verbs.AttrCurState | verbs.AttrAccess | alt // going to or staying in RTS
)

// transitions is the table of ib_modify_qp_is_ok (drivers/infiniband/core/
// verbs.c, qp_state_table). Any state may go to RESET, and all but RESET to
// ERR, with STATE alone. It is stated here a second time, apart from package
// qpstate, so that a device can disagree with that.
var transitions = map[verbs.QPType]map[[2]verbs.QPState]transition{
	verbs.RC: {
		{verbs.Reset, verbs.Init}: {required: pkey | verbs.AttrPort | verbs.AttrAccess},
		{verbs.Init, verbs.Init}:  {optional: pkey | verbs.AttrPort | verbs.AttrAccess},
		{verbs.Init, verbs.RTR}: {
			required: av | verbs.AttrMaxDestRdAtom | verbs.AttrMinRNRTimer,
			optional: verbs.AttrAltPath | verbs.AttrAccess | pkey,
		},
		{verbs.RTR, verbs.RTS}: {
			required: verbs.AttrTimeout | verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrSQPSN | verbs.AttrMaxRdAtomic,
			optional: again | verbs.AttrMinRNRTimer,
		},
		{verbs.RTS, verbs.RTS}: {optional: again | verbs.AttrMinRNRTimer},
		{verbs.RTS, verbs.SQD}: {optional: verbs.AttrEnSQDNotify},
		{verbs.SQD, verbs.RTS}: {optional: again | verbs.AttrMinRNRTimer},
		{verbs.SQD, verbs.SQD}: {optional: verbs.AttrPort | verbs.AttrAV | verbs.AttrTimeout | verbs.AttrRetryCnt |
			verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic | verbs.AttrMaxDestRdAtom | verbs.AttrAccess | pkey | verbs.AttrMinRNRTimer | alt},
	},
	verbs.UC: {
		{verbs.Reset, verbs.Init}: {required: pkey | verbs.AttrPort | verbs.AttrAccess},
		{verbs.Init, verbs.Init}:  {optional: pkey | verbs.AttrPort | verbs.AttrAccess},
		{verbs.Init, verbs.RTR}:   {required: av, optional: verbs.AttrAltPath | verbs.AttrAccess | pkey},
		{verbs.RTR, verbs.RTS}:    {required: verbs.AttrSQPSN, optional: again},
		{verbs.RTS, verbs.RTS}:    {optional: again},
		{verbs.RTS, verbs.SQD}:    {optional: verbs.AttrEnSQDNotify},
		{verbs.SQD, verbs.RTS}:    {optional: again},
		{verbs.SQD, verbs.SQD}:    {optional: verbs.AttrAV | verbs.AttrAccess | pkey | alt},
		{verbs.SQE, verbs.RTS}:    {optional: verbs.AttrCurState | verbs.AttrAccess},
	},
	verbs.UD: {
		{verbs.Reset, verbs.Init}: {required: pkey | verbs.AttrPort | verbs.AttrQKey},
		{verbs.Init, verbs.Init}:  {optional: pkey | verbs.AttrPort | verbs.AttrQKey},
		{verbs.Init, verbs.RTR}:   {optional: pkey | verbs.AttrQKey},
		{verbs.RTR, verbs.RTS}:    {required: verbs.AttrSQPSN, optional: verbs.AttrCurState | verbs.AttrQKey},
		{verbs.RTS, verbs.RTS}:    {optional: verbs.AttrCurState | verbs.AttrQKey},
		{verbs.RTS, verbs.SQD}:    {optional: verbs.AttrEnSQDNotify},
		{verbs.SQD, verbs.RTS}:    {optional: verbs.AttrCurState | verbs.AttrQKey},
		{verbs.SQD, verbs.SQD}:    {optional: pkey | verbs.AttrQKey},
		{verbs.SQE, verbs.RTS}:    {optional: verbs.AttrCurState | verbs.AttrQKey},
	},
}

// find looks a transition up.
func find(t verbs.QPType, from, to verbs.QPState) (transition, bool) {
	if to == verbs.Reset || to == verbs.Err && from != verbs.Reset {
		return transition{}, true
	}
	tr, ok := transitions[t][[2]verbs.QPState{from, to}]
	return tr, ok
}

// resolveTime is how long rxe looks for an address before ETIMEDOUT.
const resolveTime = time.Second

func (q *queuePair) Modify(attr *verbs.QPAttr, mask verbs.AttrMask) error {
	const op = "ibv_modify_qp"
	name := op
	if mask&verbs.AttrState != 0 {
		name += " " + attr.State.String()
	}
	if err := q.dev.enterAlive(name, &q.object); err != nil {
		return err
	}
	errno, hint := q.modify(attr, mask)
	q.dev.f.mu.Unlock()
	if errno == syscall.ETIMEDOUT {
		time.Sleep(resolveTime)
	}
	if errno != 0 {
		return &verbs.Error{Op: op, Object: q.name, Errno: errno, Hint: hint}
	}
	return nil
}

func (q *queuePair) modify(attr *verbs.QPAttr, mask verbs.AttrMask) (syscall.Errno, string) {
	from, to := q.attr.State, q.attr.State
	if mask&verbs.AttrState != 0 {
		to = attr.State
	}
	if mask&verbs.AttrCurState != 0 && attr.CurState != from {
		return syscall.EINVAL, fmt.Sprintf("it is in %v, not in %v", from, attr.CurState)
	}
	tr, ok := find(q.typ, from, to)
	if !ok {
		return syscall.EINVAL, fmt.Sprintf("no transition from %v to %v", from, to)
	}
	given := mask &^ verbs.AttrState
	if missing := tr.required &^ given; missing != 0 {
		return syscall.EINVAL, fmt.Sprintf("%v to %v needs %v", from, to, missing)
	}
	if extra := given &^ (tr.required | tr.optional); extra != 0 {
		return syscall.EINVAL, fmt.Sprintf("%v to %v does not take %v", from, to, extra)
	}
	if errno, hint := q.checkValues(attr, mask); errno != 0 {
		return errno, hint
	}
	if mask&verbs.AttrAV != 0 {
		dst, errno, hint := q.dev.nic.route(&attr.AV)
		if errno != 0 {
			return errno, hint
		}
		q.dst = dst
	}
	q.set(attr, mask)
	q.enterState(to)
	return 0, ""
}

// checkValues compares values with the device. max_dest_rd_atomic is taken as
// it is, as rxe does.
func (q *queuePair) checkValues(attr *verbs.QPAttr, mask verbs.AttrMask) (syscall.Errno, string) {
	n := q.dev.nic
	portNum := q.attr.Port
	if mask&verbs.AttrPort != 0 {
		portNum = attr.Port
		if portNum < 1 || int(portNum) > len(n.ports) {
			return syscall.EINVAL, fmt.Sprintf("no port %d", portNum)
		}
	}
	switch {
	case mask&verbs.AttrPKeyIndex != 0 && attr.PKeyIndex != 0:
		return syscall.EINVAL, fmt.Sprintf("P_Key index %d, the table has 1 entry", attr.PKeyIndex)
	case mask&verbs.AttrMaxRdAtomic != 0 && int(attr.MaxRdAtomic) > n.attr.MaxQPInitRdAtomic:
		return syscall.EINVAL, fmt.Sprintf("max_rd_atomic %d, the device allows %d", attr.MaxRdAtomic, n.attr.MaxQPInitRdAtomic)
	case mask&verbs.AttrTimeout != 0 && attr.Timeout > 31, mask&verbs.AttrMinRNRTimer != 0 && attr.MinRNRTimer > 31:
		return syscall.EINVAL, "a timer code has 5 bits"
	case mask&verbs.AttrRetryCnt != 0 && attr.RetryCnt > 7, mask&verbs.AttrRNRRetry != 0 && attr.RNRRetry > 7:
		return syscall.EINVAL, "a retry count has 3 bits"
	}
	if mask&verbs.AttrPathMTU != 0 {
		active := n.ports[portNum-1].attr.ActiveMTU
		if attr.PathMTU.Bytes() == 0 || attr.PathMTU > active {
			return syscall.EINVAL, fmt.Sprintf("path MTU %v, the port's is %v", attr.PathMTU, active)
		}
	}
	return 0, ""
}

// set takes the attributes over that mask names.
func (q *queuePair) set(attr *verbs.QPAttr, mask verbs.AttrMask) {
	a := &q.attr
	for _, field := range []struct {
		bit verbs.AttrMask
		set func()
	}{
		{verbs.AttrAccess, func() { a.Access = attr.Access }},
		{verbs.AttrPKeyIndex, func() { a.PKeyIndex = attr.PKeyIndex }},
		{verbs.AttrPort, func() { a.Port = attr.Port }},
		{verbs.AttrQKey, func() { a.QKey = attr.QKey }},
		{verbs.AttrAV, func() { a.AV = attr.AV }},
		{verbs.AttrPathMTU, func() { a.PathMTU = attr.PathMTU }},
		{verbs.AttrTimeout, func() { a.Timeout = attr.Timeout }},
		{verbs.AttrRetryCnt, func() { a.RetryCnt = attr.RetryCnt }},
		{verbs.AttrRNRRetry, func() { a.RNRRetry = attr.RNRRetry }},
		{verbs.AttrMaxRdAtomic, func() { a.MaxRdAtomic = attr.MaxRdAtomic }},
		{verbs.AttrMaxDestRdAtom, func() { a.MaxDestRdAtom = attr.MaxDestRdAtom }},
		{verbs.AttrMinRNRTimer, func() { a.MinRNRTimer = attr.MinRNRTimer }},
		{verbs.AttrDestQPN, func() { a.DestQPN = attr.DestQPN & psnMask }},
		{verbs.AttrRQPSN, func() { q.expected = attr.RQPSN & psnMask }},
		{verbs.AttrSQPSN, func() { q.psn = attr.SQPSN & psnMask }},
		{verbs.AttrEnSQDNotify, func() { q.notify = attr.EnSQDNotify }},
	} {
		if mask&field.bit != 0 {
			field.set()
		}
	}
}

func (q *queuePair) enterState(to verbs.QPState) {
	switch to {
	case verbs.Reset:
		q.abandon()
		q.forget()
		q.attr = verbs.QPAttr{}
	case verbs.Err:
		q.enterErr()
		q.flushOwn() // what was posted in ERR
	case verbs.RTS:
		if !q.in(verbs.RTS) {
			q.attr.State = to
			q.retries, q.rnrRetries = q.attr.RetryCnt, q.attr.RNRRetry
			q.kick()
		}
	case verbs.SQD:
		q.attr.State = to
		q.noteDrained()
	default:
		q.attr.State = to
		q.heard = q.heard || to == verbs.RTR
	}
}

// noteDrained raises SQ_DRAINED once nothing is with the peer any more.
func (q *queuePair) noteDrained() {
	if q.notify && q.in(verbs.SQD) && q.sqDone == q.sqNext {
		q.notify = false
		q.dev.events.push(verbs.AsyncEvent{Type: verbs.EventSQDrained, QPNum: q.num})
	}
}
