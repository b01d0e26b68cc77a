package transport

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/wire"
)

func qpOf(epoch uint64) wire.QP { return wire.QP{Epoch: epoch} }

// TestAttemptRows walks every arrow of the state diagram in docs/PROTOCOL.md.
func TestAttemptRows(t *testing.T) {
	const e = 7
	type row struct {
		name   string
		client bool
		from   attempt
		ev     attemptEvent
		state  attemptState
		ops    []attemptOp
		fault  bool
	}
	at := func(s attemptState) attempt { return attempt{able: true, state: s, epoch: e, settled: s == fast} }
	busy := func(s attemptState) attempt { return attempt{able: true, state: s, epoch: e, busy: true} }
	opened := func(s attemptState) attempt {
		return attempt{able: true, state: s, epoch: e, opened: true, settled: true}
	}
	none := attempt{able: true}
	over := attempt{able: true, epoch: e, settled: true}
	for _, r := range []row{
		{"unable", true, attempt{}, attemptEvent{is: evUnable, text: "no"}, idle, []attemptOp{opBindTCP}, false},
		{"begin", true, attempt{}, attemptEvent{is: evBegin, epoch: e}, preparing, []attemptOp{opPrepare}, false},
		{"prepared", true, busy(preparing), attemptEvent{is: evPrepared, epoch: e}, offered, []attemptOp{opOffer}, false},
		{"prepared too late", true, attempt{epoch: e, busy: true, settled: true}, attemptEvent{is: evPrepared, epoch: e}, idle, []attemptOp{opRelease}, false},
		{"not prepared", true, busy(preparing), attemptEvent{is: evFailed, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"answer", true, at(offered), attemptEvent{is: evAnswer, qp: qpOf(e)}, proving, []attemptOp{opConnect}, false},
		{"answer of another attempt", true, at(offered), attemptEvent{is: evAnswer, qp: qpOf(8)}, offered, nil, false}, // case 3
		{"answer twice", true, busy(proving), attemptEvent{is: evAnswer, qp: qpOf(e)}, proving, nil, false},
		{"answer too late", true, over, attemptEvent{is: evAnswer, qp: qpOf(e)}, idle, nil, false},
		{"client connected", true, busy(proving), attemptEvent{is: evConnected, epoch: e}, proving, []attemptOp{opStart, opReady}, false},
		{"client not connected", true, busy(proving), attemptEvent{is: evFailed, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"client connected too late", true, attempt{epoch: e, busy: true, settled: true}, attemptEvent{is: evConnected, epoch: e}, idle, []attemptOp{opRelease}, false},
		{"client gets READY", true, at(proving), attemptEvent{is: evReady}, fast, []attemptOp{opBindFast}, false},
		{"READY before the link", true, busy(proving), attemptEvent{is: evReady}, proving, nil, false},
		{"server abandons offer", true, at(offered), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"server abandons proof", true, at(proving), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"server abandons another", true, at(offered), attemptEvent{is: evAbandon, epoch: 8}, offered, nil, false},
		{"server abandons after READY", true, at(fast), attemptEvent{is: evAbandon, epoch: e}, fast, nil, true},
		{"client timeout", true, at(offered), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"client timeout of proof", true, at(proving), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"timeout too late", true, at(fast), attemptEvent{is: evTimeout, epoch: e}, fast, nil, false},
		{"link down in proof", true, at(proving), attemptEvent{is: evLinkDown}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"link down", true, at(fast), attemptEvent{is: evLinkDown}, fast, []attemptOp{opEnd}, false},
		{"client gets offer", true, at(offered), attemptEvent{is: evOffer, qp: qpOf(e)}, offered, nil, true},
		{"server sends first", true, none, attemptEvent{is: evLaneTCP}, idle, nil, true},
		{"reply on TCP", true, over, attemptEvent{is: evLaneTCP}, idle, nil, false},
		{"reply on the other link", true, at(fast), attemptEvent{is: evLaneTCP}, fast, nil, true},
		{"reply on the fast link", true, at(fast), attemptEvent{is: evLaneFast}, fast, nil, false},

		{"offer", false, none, attemptEvent{is: evOffer, qp: qpOf(e)}, offered, []attemptOp{opAccept}, false},
		{"offer without a name", false, none, attemptEvent{is: evOffer, qp: qpOf(0)}, idle, nil, true},
		{"offer though unable", false, attempt{}, attemptEvent{is: evOffer, qp: qpOf(e)}, idle, nil, true},
		{"offer twice", false, busy(offered), attemptEvent{is: evOffer, qp: qpOf(8)}, offered, nil, true},
		{"offer while busy", false, busy(idle), attemptEvent{is: evOffer, qp: qpOf(8)}, idle, []attemptOp{opAbandon}, false},
		{"offer after calls", false, opened(idle), attemptEvent{is: evOffer, qp: qpOf(8)}, idle, []attemptOp{opAbandon}, false},
		{"second offer", false, over, attemptEvent{is: evOffer, qp: qpOf(8)}, offered, []attemptOp{opAccept}, false},
		{"server connected", false, busy(offered), attemptEvent{is: evConnected, epoch: e}, proving, []attemptOp{opStart, opAnswer}, false},
		{"server not connected", false, busy(offered), attemptEvent{is: evFailed, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"server connected too late", false, busy(idle), attemptEvent{is: evConnected, epoch: e}, idle, []attemptOp{opRelease}, false},
		{"server gets READY", false, at(proving), attemptEvent{is: evReady}, fast, []attemptOp{opBindFast, opReady}, false},
		{"READY twice", false, at(fast), attemptEvent{is: evReady}, fast, nil, false},
		{"lease over", false, at(proving), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"lease over while busy", false, busy(offered), attemptEvent{is: evTimeout, epoch: e}, idle, []attemptOp{opAbandon, opRelease, opBindTCP}, false},
		{"lease of another", false, at(proving), attemptEvent{is: evTimeout, epoch: 8}, proving, nil, false},
		{"client abandons", false, at(proving), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"client abandons after READY", false, at(fast), attemptEvent{is: evAbandon, epoch: e}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"client abandons after calls", false, opened(fast), attemptEvent{is: evAbandon, epoch: e}, fast, nil, true},
		{"client abandons without an offer", false, none, attemptEvent{is: evAbandon}, idle, []attemptOp{opBindTCP}, false},
		{"client abandons nothing, late", false, at(proving), attemptEvent{is: evAbandon}, proving, nil, true},
		{"server link down before calls", false, at(fast), attemptEvent{is: evLinkDown}, idle, []attemptOp{opRelease, opBindTCP}, false},
		{"server link down", false, opened(fast), attemptEvent{is: evLinkDown}, fast, []attemptOp{opEnd}, false},
		{"call without an offer", false, none, attemptEvent{is: evLaneTCP}, idle, []attemptOp{opBindTCP}, false},
		{"call before the attempt is over", false, at(proving), attemptEvent{is: evLaneTCP}, proving, nil, true},
		{"call on the fast link", false, at(fast), attemptEvent{is: evLaneFast}, fast, nil, false},
		{"call on the fast link before READY", false, at(proving), attemptEvent{is: evLaneFast}, proving, nil, true},
		{"server gets answer", false, at(offered), attemptEvent{is: evAnswer, qp: qpOf(e)}, offered, nil, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			a := r.from
			a.client = r.client
			did, err := a.on(r.ev)
			require.Equal(t, r.fault, err != nil, "%v", err)
			require.Equal(t, r.state, a.state)
			var ops []attemptOp
			for _, act := range did {
				ops = append(ops, act.op)
			}
			require.Equal(t, r.ops, ops)
			if r.fault {
				require.ErrorAs(t, err, new(*wire.ParseError))
			}
		})
	}
}

// model is one side as the two-sided test runs it.
type model struct {
	attempt
	name      string
	half      bool
	link      bool       // exists
	started   bool       // delivers
	bound     *eventKind // evLaneTCP or evLaneFast
	out       []attemptEvent
	outFast   []attemptEvent
	working   eventKind // what the job at hand will report, if busy
	ended     bool
	laneSent  bool
	abandoned map[uint64]int
}

func (m *model) do(t *rapid.T, ev attemptEvent) {
	did, err := m.on(ev)
	require.NoError(t, err, "%s: %+v", m.name, ev)
	for _, act := range did {
		switch act.op {
		case opPrepare:
			m.working = evPrepared
		case opAccept:
			m.working = evConnected
		case opConnect:
			require.True(t, m.half)
			m.half, m.working = false, evConnected
		case opStart:
			require.True(t, m.link)
			m.started = true
		case opOffer:
			m.out = append(m.out, attemptEvent{is: evOffer, qp: act.qp})
		case opAnswer:
			m.out = append(m.out, attemptEvent{is: evAnswer, qp: act.qp})
		case opReady:
			require.True(t, m.started)
			m.outFast = append(m.outFast, attemptEvent{is: evReady})
		case opAbandon:
			m.abandoned[act.epoch]++
			require.Equal(t, 1, m.abandoned[act.epoch], "abandons an attempt once")
			m.out = append(m.out, attemptEvent{is: evAbandon, epoch: act.epoch, text: act.text})
		case opRelease:
			m.half, m.link, m.started = false, false, false
		case opBindTCP, opBindFast:
			require.False(t, m.laneSent, "bound again under calls")
			k := evLaneTCP
			if act.op == opBindFast {
				k = evLaneFast
				require.True(t, m.started)
			}
			m.bound = &k
		case opEnd:
			m.ended = true
		}
	}
	if m.state == idle && !m.busy {
		require.False(t, m.half || m.link, "%s holds on to resources", m.name)
	}
}

// lane sends a frame of the lane on the link that carries it.
func (m *model) lane() {
	m.laneSent = true
	if *m.bound == evLaneFast {
		m.outFast = append(m.outFast, attemptEvent{is: evLaneFast})
	} else {
		m.out = append(m.out, attemptEvent{is: evLaneTCP})
	}
}

// TestAttemptSidesAgree lets a client and a server run against each other in
// any order, with failures, time running out and links dying at any moment.
// Neither may ever see a fault of the other, and the client's first call
// arrives on the link that carries the server's lane.
func TestAttemptSidesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &model{attempt: attempt{client: true}, name: "client", abandoned: map[uint64]int{}}
		s := &model{attempt: attempt{able: true}, name: "server", abandoned: map[uint64]int{}}
		const epoch = 99
		c.do(t, attemptEvent{is: evBegin, epoch: epoch})
		for step := 0; step < 60 && !c.ended && !s.ended; step++ {
			for _, m := range []*model{c, s} {
				if !m.link {
					m.outFast = nil // went down with the link
				}
			}
			type move struct {
				name string
				run  func()
			}
			var moves []move
			add := func(name string, run func()) { moves = append(moves, move{name, run}) }
			for _, way := range [][2]*model{{c, s}, {s, c}} {
				from, to := way[0], way[1]
				if len(from.out) > 0 {
					add(fmt.Sprintf("%s -> %v", from.name, from.out[0].is), func() {
						ev := from.out[0]
						from.out = from.out[1:]
						to.do(t, ev)
						if ev.is == evLaneTCP {
							require.Equal(t, evLaneTCP, *to.bound)
						}
					})
				}
				if len(from.outFast) > 0 && to.started {
					add(fmt.Sprintf("%s => %v", from.name, from.outFast[0].is), func() {
						ev := from.outFast[0]
						from.outFast = from.outFast[1:]
						to.do(t, ev)
						if ev.is == evLaneFast {
							require.Equal(t, evLaneFast, *to.bound)
						}
					})
				}
				if from.busy {
					add(from.name+" works", func() {
						ok := rapid.Bool().Draw(t, "works")
						ev := attemptEvent{is: evFailed, epoch: epoch}
						if ok {
							ev.is = from.working
							from.half = from.working == evPrepared
							from.link = from.working == evConnected
						}
						from.do(t, ev)
					})
				}
				if from.underWay() {
					add(from.name+" timeout", func() { from.do(t, attemptEvent{is: evTimeout, epoch: epoch}) })
				}
				if from.started {
					add(from.name+" link down", func() { from.do(t, attemptEvent{is: evLinkDown}) })
				}
			}
			if c.bound != nil && !c.laneSent {
				add("client calls", c.lane)
			}
			if s.bound != nil && s.opened && !s.laneSent {
				add("server replies", s.lane)
			}
			if len(moves) == 0 {
				break
			}
			i := rapid.IntRange(0, len(moves)-1).Draw(t, "move")
			t.Log(moves[i].name)
			moves[i].run()
		}
	})
}
