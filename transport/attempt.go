package transport

import (
	"fmt"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// attempt decides how one side comes to a fast link, or stays without one, and
// how the lane leaves a fast link that died and comes to another. It is a pure
// core: a session tells it what happened and does what it answers.
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
	opened  bool   // frames of the lane have passed: the first attempt is over
	again   bool   // the attempt is not the first: the lane is carried by the control link
	fell    uint64 // the epoch that MOVE was sent for, from the fast link
	onFast  bool   // the lane has been sent on the link of this epoch
	next    uint32 // what the peer's MOVE said, while the link is closed because of it
	reason  string // why no fast link carries the lane

	made, failed, stale, moves int
	inRow                      int  // attempts that failed and links that died, since a link held
	died                       bool // the last of them was a link
}

type attemptState uint8

const (
	idle      attemptState = iota
	preparing              // client: takes what a link needs
	offered                // client: waits for the answer; server: connects
	proving                // the links exist, or are about to; READY is due
	proven                 // server, not the first attempt: READY was there, MOVE is due
	rising                 // MOVE to the fast link was sent; client: that of the server is due, server: READY is
	fast                   // the lane is carried by the fast link
	leaving                // the peer left the fast link; it is being closed here
	falling                // MOVE from the dead fast link was sent; that of the peer is due
)

func (s attemptState) String() string {
	return [...]string{"IDLE", "PREPARING", "OFFERED", "PROVING", "PROVEN", "RISING", "FAST", "LEAVING", "FALLING"}[s]
}

type attemptEvent struct {
	is    eventKind
	epoch uint64
	qp    wire.QP // evPrepared, evConnected: of this side; evOffer, evAnswer: of the peer
	text  string  // evFailed, evAbandon, evLinkDown, evUnable: why
	err   error   // evLinkDown
	next  uint32  // evDown
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
	evUp                         // MOVE to the fast link
	evDown                       // MOVE from the fast link
)

func (k eventKind) String() string {
	return [...]string{"unable", "begin", "prepared", "connected", "failed", "QP_OFFER", "QP_ANSWER",
		"QP_ABANDON", "READY", "timeout", "link down", "lane frame on TCP", "lane frame on the fast link",
		"MOVE to the fast link", "MOVE from the fast link"}[k]
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
	opRise                      // the lane pauses; send MOVE to the fast link behind what it sent
	opLeave                     // close the fast link
	opFall                      // the lane leaves the dead link, and pauses; send MOVE from it
	opResume                    // the control link carries the lane
	opResend                    // the same, and again what the peer has not taken in, from act.next on
)

func (o attemptOp) String() string {
	return [...]string{"prepare", "accept", "connect", "start", "offer", "answer", "ready", "abandon",
		"release", "bind TCP", "bind fast", "rise", "leave", "fall", "resume", "resend"}[o]
}

type attemptAct struct {
	op    attemptOp
	epoch uint64
	qp    wire.QP
	text  string
	next  uint32

	onFast bool // opFall: the dead link delivered the lane, and the control link did not
}

// on takes in an event and returns what to do, in order. An error is a fault
// of the peer against the protocol, a *wire.ParseError.
func (a *attempt) on(ev attemptEvent) ([]attemptAct, error) {
	switch ev.is {
	case evUnable:
		return a.onTCP(ev.text), nil
	case evBegin:
		a.able = true
		a.begin(preparing, ev.epoch)
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
	case evUp:
		return a.up(ev)
	case evDown:
		return a.down(ev)
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

func (a *attempt) begin(s attemptState, epoch uint64) {
	a.state, a.epoch, a.busy = s, epoch, true
	a.again, a.onFast = a.settled, false
	a.made++
}

// underWay says that the attempt may be given up, for which there is a time.
func (a *attempt) underWay() bool {
	return a.state == preparing || a.state == offered || a.state == proving
}

// mayTry says that the client may begin another attempt.
func (a *attempt) mayTry() bool {
	return a.client && a.able && a.settled && a.state == idle && !a.busy
}

// giveUp ends an attempt that is under way, for a reason of this side.
func (a *attempt) giveUp(ev attemptEvent) []attemptAct {
	if ev.epoch != a.epoch || !a.underWay() {
		return nil
	}
	known := a.epoch
	if a.state == preparing {
		if a.again {
			return a.stayOnTCP(ev.text) // the server has not heard of it, nor waits for it
		}
		known = 0 // no offer was made
	}
	return append([]attemptAct{{op: opAbandon, epoch: known, text: ev.text}}, a.stayOnTCP(ev.text)...)
}

func (a *attempt) stayOnTCP(reason string) []attemptAct {
	a.state, a.onFast = idle, false
	a.failed++
	a.inRow++
	a.died = false
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
	case a.busy:
		return []attemptAct{{op: opAbandon, epoch: ev.qp.Epoch, text: "an earlier attempt is still being released"}}, nil
	}
	a.begin(offered, ev.qp.Epoch)
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
	case a.state == fast && (a.client || a.opened || a.again), a.state == rising, a.state > fast:
		return nil, a.unexpected(ev)
	}
	return a.stayOnTCP(reason), nil
}

func (a *attempt) ready() []attemptAct {
	switch {
	case !a.client && a.state == rising:
		return a.arrive()
	case a.state != proving || a.busy:
		a.stale++
		return nil
	case a.again && a.client:
		a.state = rising
		return acts(opRise)
	case a.again:
		a.state = proven
		return acts(opReady)
	case a.client:
		return a.arrive()
	}
	return append(a.arrive(), acts(opReady)...) // bound first: calls may follow READY at once
}

// arrive lets the fast link carry the lane.
func (a *attempt) arrive() []attemptAct {
	if a.again {
		a.moves++
	}
	a.state, a.settled, a.onFast, a.reason = fast, true, true, ""
	return acts(opBindFast)
}

// up takes in the peer's MOVE to the fast link: all that it sent on the control
// link has come. The client says READY once more, now that it takes in frames
// of the lane on the fast link.
func (a *attempt) up(ev attemptEvent) ([]attemptAct, error) {
	switch {
	case ev.epoch != a.epoch:
		a.stale++
		return nil, nil
	case a.client && a.state == rising:
		return append(a.arrive(), acts(opReady)...), nil
	case a.client && a.state == falling:
		return nil, nil // the link died meanwhile, as the server is being told
	case !a.client && a.state == proven:
		a.state = rising
		return acts(opRise), nil
	case !a.client && a.state == idle && a.again && a.fell != a.epoch:
		return a.fall(a.reason), nil // the link died here before
	}
	return nil, a.unexpected(ev)
}

// down takes in the peer's MOVE from the fast link.
func (a *attempt) down(ev attemptEvent) ([]attemptAct, error) {
	switch {
	case ev.epoch != a.epoch:
		a.stale++
		return nil, nil
	case a.state == rising, a.state == fast:
		a.state, a.next = leaving, ev.next
		return acts(opLeave), nil
	case a.state == falling:
		a.next = ev.next
		return a.land(), nil
	case !a.client && a.state == idle && a.fell != a.epoch:
		a.next = ev.next // the link died here before
		return append(a.fall(a.reason), a.land()...), nil
	}
	return nil, a.unexpected(ev)
}

// fall says that the lane leaves the dead fast link.
func (a *attempt) fall(reason string) []attemptAct {
	a.state, a.fell, a.reason = falling, a.epoch, reason
	return []attemptAct{{op: opFall, onFast: a.onFast}}
}

// land lets the control link carry the lane, now that both sides have said what
// they took in.
func (a *attempt) land() []attemptAct {
	a.state = idle
	a.moves++
	a.inRow++
	a.died = true
	op := opResume
	if a.onFast {
		op = opResend
	}
	a.onFast = false
	return []attemptAct{{op: op, next: a.next}}
}

func (a *attempt) linkDown(ev attemptEvent) []attemptAct {
	switch {
	case a.underWay():
		ev.epoch, ev.text = a.epoch, "fast link: "+ev.text
		return a.giveUp(ev)
	case a.state == proven, a.state == fast && !a.client && !a.opened && !a.again:
		// The client may have given up after our READY; its QP_ABANDON is
		// then on its way. If it has not, its MOVE is.
		return a.stayOnTCP("fast link: " + ev.text)
	case a.state == rising, a.state == fast:
		return a.fall("fast link: " + ev.text)
	case a.state == leaving:
		return append(a.fall("fast link: "+ev.text), a.land()...)
	}
	return nil
}

// laneFrame admits the first frame of the lane on a link. The client speaks
// first; so it is the server that learns here where the lane is.
func (a *attempt) laneFrame(ev attemptEvent) ([]attemptAct, error) {
	onFast := ev.is == evLaneFast
	switch {
	case onFast && a.state == rising && !a.client:
		return a.arrive(), nil // it overtook READY
	case onFast && a.state == leaving:
		return nil, nil // it was delivered while the link is being closed, and counts
	case onFast && a.state != fast, !onFast && !a.onControl():
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

// onControl says that the peer may send frames of the lane on the control link.
func (a *attempt) onControl() bool {
	switch a.state {
	case idle:
		return true
	case rising:
		return a.client
	case falling:
		return a.client && !a.onFast // fell while it rose: the server may not know of either
	}
	return a.again && (a.underWay() || a.state == proven)
}

func (a *attempt) unexpected(ev attemptEvent) error {
	kind := map[eventKind]wire.Kind{
		evOffer: wire.QPOffer, evAnswer: wire.QPAnswer, evAbandon: wire.QPAbandon,
		evLaneTCP: wire.Call, evLaneFast: wire.Call, evUp: wire.Move, evDown: wire.Move,
	}[ev.is]
	return &wire.ParseError{
		Field: "kind", Got: uint64(kind),
		Want: fmt.Sprintf("no %v in state %v", ev.is, a.state),
	}
}
