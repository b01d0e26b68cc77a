// Package qpstate is the state machine of a QP: which transitions exist for
// each QP type, which attributes each one needs, and why one was refused.
//
// [Lookup] and [Check] are a pure core: no device, no clock. [Machine] owns the
// transitions of one verbs.QP, keeps their history, and turns each refusal
// into a [TransitionError]. docs/qp-states.md has the picture.
package qpstate

import "github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"

// Row says what one transition takes from the caller. The attributes are
// those of ibv_modify_qp(3); STATE itself is always allowed and in neither.
type Row struct {
	From, To verbs.QPState
	Required verbs.AttrMask
	Optional verbs.AttrMask
}

// types is a set of QP types.
type types uint16

func setOf(ts ...verbs.QPType) (s types) {
	for _, t := range ts {
		s |= 1 << t
	}
	return s
}

func (s types) has(t verbs.QPType) bool { return t < 16 && s&(1<<t) != 0 }

// The halves a QP may have. The rules below give each half what it needs, so
// that XRC, whose QPs have one half each, needs no table of its own.
var (
	datagram  = setOf(verbs.UD)
	unacked   = setOf(verbs.UD, verbs.UC)
	connected = setOf(verbs.RC, verbs.UC, verbs.XRCSend, verbs.XRCRecv)
	reliable  = setOf(verbs.RC, verbs.XRCSend, verbs.XRCRecv)
	requester = setOf(verbs.RC, verbs.XRCSend) // sends reliably
	responder = setOf(verbs.RC, verbs.XRCRecv) // receives reliably
	all       = datagram | connected
)

// rule is one sentence of the specification: to go from From to To, QPs of
// these types need the required attributes, and may bring the optional ones.
// All rules that hold for a type add up to its Row.
type rule struct {
	from, to verbs.QPState
	types    types
	required verbs.AttrMask
	optional verbs.AttrMask
}

// rules follow the InfiniBand Architecture Specification, volume 1, section
// 10.3.1 (the states) and the verb Modify Queue Pair in section 11.2,
// ibv_modify_qp(3), and, where these leave room, what the Linux kernel lets
// through to a driver (ib_modify_qp_is_ok). To RESET and to ERR is in anyState.
//
// CAP is in no row: resizing a live QP is an option of the specification that
// the kernel offers no driver.
var rules = []rule{
	{verbs.Reset, verbs.Init, all, verbs.AttrPKeyIndex | verbs.AttrPort, 0},
	{verbs.Reset, verbs.Init, connected, verbs.AttrAccess, 0},
	{verbs.Reset, verbs.Init, datagram, verbs.AttrQKey, 0},

	{verbs.Init, verbs.Init, all, 0, verbs.AttrPKeyIndex | verbs.AttrPort},
	{verbs.Init, verbs.Init, connected, 0, verbs.AttrAccess},
	{verbs.Init, verbs.Init, datagram, 0, verbs.AttrQKey},

	{verbs.Init, verbs.RTR, all, 0, verbs.AttrPKeyIndex},
	{verbs.Init, verbs.RTR, connected,
		verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN,
		verbs.AttrAccess | verbs.AttrAltPath},
	{verbs.Init, verbs.RTR, responder, verbs.AttrMaxDestRdAtom | verbs.AttrMinRNRTimer, 0},
	{verbs.Init, verbs.RTR, datagram, 0, verbs.AttrQKey},

	{verbs.RTR, verbs.RTS, all, verbs.AttrSQPSN, verbs.AttrCurState},
	{verbs.RTR, verbs.RTS, connected, 0, verbs.AttrAccess | verbs.AttrAltPath | verbs.AttrPathMigState},
	{verbs.RTR, verbs.RTS, reliable, verbs.AttrTimeout, 0},
	{verbs.RTR, verbs.RTS, requester, verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic, 0},
	{verbs.RTR, verbs.RTS, responder, 0, verbs.AttrMinRNRTimer},
	{verbs.RTR, verbs.RTS, datagram, 0, verbs.AttrQKey},

	{verbs.RTS, verbs.RTS, all, 0, verbs.AttrCurState},
	{verbs.RTS, verbs.RTS, connected, 0, verbs.AttrAccess | verbs.AttrAltPath | verbs.AttrPathMigState},
	{verbs.RTS, verbs.RTS, responder, 0, verbs.AttrMinRNRTimer},
	{verbs.RTS, verbs.RTS, datagram, 0, verbs.AttrQKey},

	{verbs.RTS, verbs.SQD, all, 0, verbs.AttrEnSQDNotify},

	{verbs.SQD, verbs.RTS, all, 0, verbs.AttrCurState},
	{verbs.SQD, verbs.RTS, connected, 0, verbs.AttrAccess | verbs.AttrAltPath | verbs.AttrPathMigState},
	{verbs.SQD, verbs.RTS, responder, 0, verbs.AttrMinRNRTimer},
	{verbs.SQD, verbs.RTS, datagram, 0, verbs.AttrQKey},

	{verbs.SQD, verbs.SQD, all, 0, verbs.AttrPKeyIndex},
	{verbs.SQD, verbs.SQD, connected, 0,
		verbs.AttrAV | verbs.AttrAccess | verbs.AttrAltPath | verbs.AttrPathMigState},
	{verbs.SQD, verbs.SQD, reliable, 0, verbs.AttrPort | verbs.AttrTimeout},
	{verbs.SQD, verbs.SQD, requester, 0, verbs.AttrRetryCnt | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic},
	{verbs.SQD, verbs.SQD, responder, 0, verbs.AttrMaxDestRdAtom | verbs.AttrMinRNRTimer},
	{verbs.SQD, verbs.SQD, datagram, 0, verbs.AttrQKey},

	{verbs.SQE, verbs.RTS, unacked, 0, verbs.AttrCurState},
	{verbs.SQE, verbs.RTS, setOf(verbs.UC), 0, verbs.AttrAccess},
	{verbs.SQE, verbs.RTS, datagram, 0, verbs.AttrQKey},
}

// states are all states a device can be in.
const states = int(verbs.Err) + 1

// Lookup returns the row of a transition; ok is false when a QP of that type
// has none.
func Lookup(t verbs.QPType, from, to verbs.QPState) (row Row, ok bool) {
	row = Row{From: from, To: to}
	if !all.has(t) || int(from) >= states || int(to) >= states {
		return row, false
	}
	if anyState(from, to) {
		return row, true
	}
	for i := range rules {
		if r := &rules[i]; r.from == from && r.to == to && r.types.has(t) {
			ok = true
			row.Required |= r.required
			row.Optional |= r.optional
		}
	}
	return row, ok
}

// anyState are the transitions that every QP has: RESET from everywhere, ERR
// from everywhere but RESET.
func anyState(from, to verbs.QPState) bool {
	return to == verbs.Reset || (to == verbs.Err && from != verbs.Reset)
}

// Spontaneous says whether the device itself takes a QP from one state to
// another: to ERR on a failed work request, a broken packet or a dying
// device, to SQE on a failed send of an unacknowledged type.
func Spontaneous(t verbs.QPType, from, to verbs.QPState) bool {
	switch to {
	case verbs.Err:
		return from != verbs.Reset && from != verbs.Err
	case verbs.SQE:
		return unacked.has(t) && (from == verbs.RTS || from == verbs.SQD)
	}
	return false
}

// next lists the states a QP may be taken to.
func next(t verbs.QPType, from verbs.QPState) (to []verbs.QPState) {
	for s := range verbs.QPState(states) {
		if _, ok := Lookup(t, from, s); ok {
			to = append(to, s)
		}
	}
	return to
}
