package transport

import (
	"fmt"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// attempt decides how one side comes to a fast link, or stays without one. It
// is a pure core: a session tells it what happened and does what it answers.
// docs/PROTOCOL.md draws it.
//
// The epoch names an attempt, and 0 none. What comes for another epoch than
// the current one is counted and changes nothing.
type attempt struct {
	client  bool
	able    bool // both sides said in HELLO that fast links are possible
	state   attemptState
	epoch   uint64
	busy    bool   // Prepare or Connect runs: exactly one evPrepared, evConnected or evFailed will come
	settled bool   // it was said which link carries the lane
	opened  bool   // frames of the lane have passed: the link that carries it is final
	reason  string // why no fast link carries the lane

	made, failed, stale int
}

type attemptState uint8

const (
	idle      attemptState = iota
	preparing              // client: takes what a link needs
	offered                // client: waits for the answer; server: connects
	proving                // the links exist, or are about to; READY is due
	fast                   // the lane is carried by the fast link
)

func (s attemptState) String() string {
	return [...]string{"IDLE", "PREPARING", "OFFERED", "PROVING", "FAST"}[s]
}

type attemptEvent struct {
	is    eventKind
	epoch uint64
	qp    wire.QP // evPrepared, evConnected: of this side; evOffer, evAnswer: of the peer
	text  string  // evFailed, evAbandon, evLinkDown, evUnable: why
	err   error   // evLinkDown
}

type eventKind uint8

const (
	evUnable    eventKind = iota // one of the sides cannot have fast links
	evBegin                      // client: begin the attempt of this epoch
	evPrepared                   // client: a half link is there
	evConnected                  // the link is there; the server's also has its half's QP
	evFailed                     // Prepare or Connect failed
	evOffer                      // QP_OFFER
	evAnswer                     // QP_ANSWER
	evAbandon                    // QP_ABANDON
	evReady                      // READY
	evTimeout                    // the attempt's time is over
	evLinkDown                   // the fast link is dead
	evLaneTCP                    // the first frame of the lane comes in on the control link
	evLaneFast                   // and on the fast link
)

func (k eventKind) String() string {
	return [...]string{"unable", "begin", "prepared", "connected", "failed", "QP_OFFER", "QP_ANSWER",
		"QP_ABANDON", "READY", "timeout", "link down", "lane frame on TCP", "lane frame on the fast link"}[k]
}

type attemptOp uint8

const (
	opPrepare  attemptOp = iota // client: start Prepare
	opAccept                    // server: start Prepare and Connect to act.qp, and the lease
	opConnect                   // client: start Connect to act.qp
	opStart                     // start delivery from the link
	opOffer                     // send QP_OFFER with act.qp
	opAnswer                    // send QP_ANSWER with act.qp
	opReady                     // send READY on the fast link
	opAbandon                   // send QP_ABANDON for act.epoch because of act.text
	opRelease                   // release half and link
	opBindTCP                   // the control link carries the lane
	opBindFast                  // the fast link does
	opEnd                       // the session ends: its link is dead
)

func (o attemptOp) String() string {
	return [...]string{"prepare", "accept", "connect", "start", "offer", "answer", "ready", "abandon",
		"release", "bind TCP", "bind fast", "end"}[o]
}

type attemptAct struct {
	op    attemptOp
	epoch uint64
	qp    wire.QP
	text  string
}

// on takes in an event and returns what to do, in order. An error is a fault
// of the peer against the protocol, a *wire.ParseError.
func (a *attempt) on(ev attemptEvent) ([]attemptAct, error) {
	switch ev.is {
	case evUnable:
		return a.onTCP(ev.text), nil
	case evBegin:
		a.able, a.busy, a.state, a.epoch = true, true, preparing, ev.epoch
		a.made++
		return acts(opPrepare), nil
	case evPrepared:
		return a.prepared(ev), nil
	case evConnected:
		return a.connected(ev), nil
	case evFailed:
		a.busy = false
		return a.giveUp(ev), nil
	case evOffer:
		return a.offer(ev)
	case evAnswer:
		return a.answer(ev)
	case evAbandon:
		return a.abandoned(ev)
	case evReady:
		return a.ready(), nil
	case evTimeout:
		return a.giveUp(ev), nil
	case evLinkDown:
		return a.linkDown(ev), nil
	default:
		return a.laneFrame(ev)
	}
}

func acts(ops ...attemptOp) []attemptAct {
	out := make([]attemptAct, len(ops))
	for i, op := range ops {
		out[i].op = op
	}
	return out
}

func (a *attempt) underWay() bool { return a.state != idle && a.state != fast }

// giveUp ends an attempt that is under way, for a reason of this side.
func (a *attempt) giveUp(ev attemptEvent) []attemptAct {
	if ev.epoch != a.epoch || !a.underWay() {
		return nil
	}
	known := a.epoch
	if a.state == preparing {
		known = 0 // no offer was made
	}
	return append([]attemptAct{{op: opAbandon, epoch: known, text: ev.text}}, a.stayOnTCP(ev.text)...)
}

func (a *attempt) stayOnTCP(reason string) []attemptAct {
	a.state = idle
	a.failed++
	return append(acts(opRelease), a.onTCP(reason)...)
}

func (a *attempt) onTCP(reason string) []attemptAct {
	a.settled, a.reason = true, reason
	return acts(opBindTCP)
}

func (a *attempt) prepared(ev attemptEvent) []attemptAct {
	a.busy = false
	if a.state != preparing {
		return acts(opRelease) // given up meanwhile
	}
	a.state = offered
	ev.qp.Epoch = a.epoch
	return []attemptAct{{op: opOffer, qp: ev.qp}}
}

func (a *attempt) connected(ev attemptEvent) []attemptAct {
	a.busy = false
	switch {
	case a.client && a.state == proving:
		return acts(opStart, opReady)
	case !a.client && a.state == offered:
		a.state = proving
		ev.qp.Epoch = a.epoch
		return []attemptAct{{op: opStart}, {op: opAnswer, qp: ev.qp}}
	}
	return acts(opRelease) // given up meanwhile
}

func (a *attempt) offer(ev attemptEvent) ([]attemptAct, error) {
	switch {
	case a.client || !a.able || a.state != idle || ev.qp.Epoch == 0:
		return nil, a.unexpected(ev)
	case a.opened:
		return []attemptAct{{op: opAbandon, epoch: ev.qp.Epoch, text: "calls are under way on TCP"}}, nil
	case a.busy:
		return []attemptAct{{op: opAbandon, epoch: ev.qp.Epoch, text: "an earlier attempt is still being released"}}, nil
	}
	a.state, a.busy, a.epoch = offered, true, ev.qp.Epoch
	a.made++
	return []attemptAct{{op: opAccept, qp: ev.qp}}, nil
}

func (a *attempt) answer(ev attemptEvent) ([]attemptAct, error) {
	switch {
	case !a.client:
		return nil, a.unexpected(ev)
	case a.state != offered || ev.qp.Epoch != a.epoch:
		a.stale++
		return nil, nil
	}
	a.state, a.busy = proving, true
	return []attemptAct{{op: opConnect, qp: ev.qp}}, nil
}

func (a *attempt) abandoned(ev attemptEvent) ([]attemptAct, error) {
	reason := "peer: " + ev.text
	switch {
	case ev.epoch == 0 && !a.client && a.able && a.state == idle && !a.opened:
		a.failed++ // the client could not even make an offer
		return a.onTCP(reason), nil
	case ev.epoch == 0:
		return nil, a.unexpected(ev)
	case ev.epoch != a.epoch || a.state == idle:
		a.stale++
		return nil, nil
	case a.state == fast && (a.client || a.opened):
		return nil, a.unexpected(ev)
	}
	return a.stayOnTCP(reason), nil
}

func (a *attempt) ready() []attemptAct {
	if a.state != proving || a.busy {
		a.stale++
		return nil
	}
	a.state, a.settled, a.reason = fast, true, ""
	if a.client {
		return acts(opBindFast)
	}
	return acts(opBindFast, opReady) // bound first: calls may follow READY at once
}

func (a *attempt) linkDown(ev attemptEvent) []attemptAct {
	switch {
	case a.underWay():
		ev.epoch, ev.text = a.epoch, "fast link: "+ev.text
		return a.giveUp(ev)
	case a.state == fast && !a.client && !a.opened:
		// The client may have given up after our READY; its QP_ABANDON is
		// then on its way. If it has not, the dead link ends its session.
		return a.stayOnTCP("fast link: " + ev.text)
	case a.state == fast:
		return acts(opEnd)
	}
	return nil
}

// laneFrame admits the first frame of the lane on a link. The client speaks
// first; so it is the server that learns here where the lane is.
func (a *attempt) laneFrame(ev attemptEvent) ([]attemptAct, error) {
	onFast := ev.is == evLaneFast
	switch {
	case onFast && a.state != fast, !onFast && a.state != idle:
		return nil, a.unexpected(ev)
	case a.client && !a.settled:
		return nil, a.unexpected(ev)
	}
	a.opened = true
	if a.settled {
		return nil, nil
	}
	return a.onTCP("the client made no offer"), nil
}

func (a *attempt) unexpected(ev attemptEvent) error {
	kind := map[eventKind]wire.Kind{
		evOffer: wire.QPOffer, evAnswer: wire.QPAnswer, evAbandon: wire.QPAbandon,
		evLaneTCP: wire.Call, evLaneFast: wire.Call,
	}[ev.is]
	return &wire.ParseError{
		Field: "kind", Got: uint64(kind),
		Want: fmt.Sprintf("no %v in state %v", ev.is, a.state),
	}
}
