package transport

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// model is one side of a session as TestSidesAgree runs it: the attempt, what
// numbers frames, and links that are lists.
type model struct {
	attempt
	name      string
	half      bool
	link      bool // exists
	started   bool // delivers
	closing   bool // was closed here
	onTCP     bool // the lane is bound to the control link
	open      bool // and not paused
	bound     bool // ever
	spoken    bool // a frame of the lane was sent or came
	working   eventKind
	abandoned map[uint64]int

	sent     sentFrames
	expected uint32
	made     uint32   // messages given to the lane; each holds its number
	waiting  []uint32 // of them, for the lane to be open
	unsent   []uint32 // committed to the fast link, without a number
	taken    uint32   // messages taken in
	out      []parcel // on the control link
	outFast  []parcel // on the fast link
}

// parcel is what a link carries.
type parcel struct {
	ev    attemptEvent
	frame *wire.Header // of the lane; Call is the message
}

func (p parcel) String() string {
	if p.frame != nil {
		return fmt.Sprintf("frame %d", p.frame.Seq)
	}
	return p.ev.is.String()
}

func newModel(name string, client bool, first uint32) *model {
	m := &model{attempt: attempt{client: client, able: !client}, name: name, abandoned: map[uint64]int{}}
	m.sent.next, m.sent.leaving, m.sent.acked, m.expected = first, first, first, first
	return m
}

func (m *model) do(t *rapid.T, ev attemptEvent) {
	did, err := m.on(ev)
	require.NoError(t, err, "%s: %+v", m.name, ev)
	for _, act := range did {
		m.act(t, act)
	}
	if m.state == idle && !m.busy {
		require.False(t, m.half || m.link, "%s holds on to resources", m.name)
	}
}

func (m *model) act(t *rapid.T, act attemptAct) {
	post := func(ev attemptEvent) { m.out = append(m.out, parcel{ev: ev}) }
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
		post(attemptEvent{is: evOffer, qp: act.qp})
	case opAnswer:
		post(attemptEvent{is: evAnswer, qp: act.qp})
	case opReady:
		require.True(t, m.started)
		m.outFast = append(m.outFast, parcel{ev: attemptEvent{is: evReady}})
	case opAbandon:
		m.abandoned[act.epoch]++
		require.True(t, act.epoch == 0 || m.abandoned[act.epoch] == 1, "abandons an attempt once")
		post(attemptEvent{is: evAbandon, epoch: act.epoch, text: act.text})
	case opRelease:
		m.half, m.link, m.started, m.closing = false, false, false, false
	case opBindTCP:
		if m.bound && !m.onTCP {
			require.False(t, m.spoken, "bound again under calls")
		}
		m.bind(true)
	case opBindFast:
		require.True(t, m.started)
		m.bind(false)
	case opRise:
		m.open = false
		post(attemptEvent{is: evUp, epoch: m.epoch, next: m.expected})
	case opLeave:
		m.closing = true
	case opFall:
		m.open = false
		for _, n := range m.unsent {
			m.stamp(n)
		}
		m.unsent = nil
		m.link, m.started, m.closing = false, false, false
		post(attemptEvent{is: evDown, epoch: m.epoch, next: m.expected})
	case opResume, opResend:
		if act.op == opResend {
			m.acked(t, act.next)
			m.sent.rewind()
			for n := m.sent.leaving; n != m.sent.next; n++ {
				h := m.sent.at(n).h
				m.out = append(m.out, m.stamp(uint32(h.Call)))
			}
		}
		m.bind(true)
	}
}

func (m *model) bind(onTCP bool) {
	m.bound, m.open, m.onTCP = true, true, onTCP
	for _, n := range m.waiting {
		m.commit(n)
	}
	m.waiting = nil
}

// stamp gives the frame of a message its number.
func (m *model) stamp(message uint32) parcel {
	h := &wire.Header{Kind: wire.Call, Lane: LaneID, Call: uint64(message)}
	m.sent.stamp(h, nil)
	h.Ack = m.expected
	return parcel{frame: h}
}

// call gives the lane a message.
func (m *model) call() {
	m.spoken = true
	n := m.made
	m.made++
	if m.open {
		m.commit(n)
	} else {
		m.waiting = append(m.waiting, n)
	}
}

func (m *model) commit(n uint32) {
	if m.onTCP {
		m.out = append(m.out, m.stamp(n))
	} else {
		m.unsent = append(m.unsent, n)
	}
}

func (m *model) acked(t *rapid.T, n uint32) {
	_, err := m.sent.ack(n)
	require.NoError(t, err, m.name)
}

// take takes in what came on a link: each message once, in order.
func (m *model) take(t *rapid.T, p parcel, onFast bool) {
	if p.frame == nil {
		m.do(t, p.ev)
		return
	}
	m.acked(t, p.frame.Ack)
	behind, err := checkSeq(p.frame, m.expected)
	if behind && dropDuplicates {
		return
	}
	require.NoError(t, err, m.name)
	ev := attemptEvent{is: evLaneTCP}
	if onFast {
		ev.is = evLaneFast
	}
	m.do(t, ev)
	require.EqualValues(t, m.taken, p.frame.Call, "%s: each once, in order", m.name)
	m.taken++
	m.expected++
	m.spoken = true
}

// dropDuplicates is switched off to see the test fail.
const dropDuplicates = true

// TestSidesAgree lets a client and a server run against each other in any
// order: calls both ways, attempts one after the other with failures and time
// running out, links that die at any moment on either side with an arbitrary
// part of what was under way, frames that come twice. Neither may ever see a
// fault of the other. When the faults stop, every message was taken in exactly
// once and in order, nothing is kept back, and both have the lane on one link.
func TestSidesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		firstC, firstS := rapid.Uint32().Draw(t, "first of the client"), rapid.Uint32().Draw(t, "first of the server")
		// Evenly spread, as draws of rapid are not.
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		c, s := newModel("client", true, firstC), newModel("server", false, firstS)
		c.expected, s.expected = firstS, firstC
		epoch := uint64(99)
		c.do(t, attemptEvent{is: evBegin, epoch: epoch})
		type move struct {
			name string
			run  func()
		}
		moves := func(faults bool) (out []move) {
			add := func(name string, run func()) { out = append(out, move{name, run}) }
			for _, way := range [][2]*model{{c, s}, {s, c}} {
				from, to := way[0], way[1]
				if len(from.out) > 0 {
					add(fmt.Sprintf("%s -> %v", from.name, from.out[0]), func() {
						p := from.out[0]
						from.out = from.out[1:]
						to.take(t, p, false)
						if p.frame != nil && faults && rng.IntN(4) == 0 {
							to.take(t, p, false)
						}
					})
				}
				if len(from.outFast) > 0 && to.started && !to.closing {
					add(fmt.Sprintf("%s => %v", from.name, from.outFast[0]), func() {
						p := from.outFast[0]
						from.outFast = from.outFast[1:]
						to.take(t, p, true)
					})
				}
				if len(from.unsent) > 0 {
					add(from.name+" flushes", func() {
						from.outFast = append(from.outFast, from.stamp(from.unsent[0]))
						from.unsent = from.unsent[1:]
					})
				}
				if from.busy {
					add(from.name+" works", func() {
						ev := attemptEvent{is: evFailed, epoch: from.epoch}
						if !faults || rng.IntN(8) > 0 {
							ev.is = from.working
							from.half = from.working == evPrepared
							from.link = from.working == evConnected
						}
						from.do(t, ev)
					})
				}
				if from.underWay() && faults {
					add(from.name+" timeout", func() { from.do(t, attemptEvent{is: evTimeout, epoch: from.epoch}) })
				}
				// A link dies by itself, because it was closed here, or because
				// the other side has gone.
				if from.started && (faults || from.closing || !to.link && !to.busy) {
					add(from.name+" link down", func() {
						to.outFast = nil
						n := rng.IntN(len(from.outFast) + 1)
						from.outFast = from.outFast[:n]
						from.started, from.link = false, false
						from.do(t, attemptEvent{is: evLinkDown})
					})
				}
				if from.bound && faults && len(from.waiting) < 4 && len(from.out) < 4 && len(from.outFast) < 4 && (from.client || from.opened) {
					add(from.name+" calls", from.call)
				}
			}
			if c.mayTry() && faults {
				add("client tries again", func() {
					epoch++
					c.outFast, s.outFast = nil, nil
					c.do(t, attemptEvent{is: evBegin, epoch: epoch})
				})
			}
			return out
		}
		for range rng.IntN(400) {
			all := moves(true)
			if len(all) == 0 {
				break
			}
			// Most of the time as it should be, or links would hardly come to be.
			i := rng.IntN(len(all))
			for n := 0; n < 20 && rng.IntN(10) > 0 && (strings.HasSuffix(all[i].name, "timeout") || strings.HasSuffix(all[i].name, "down")); n++ {
				i = rng.IntN(len(all))
			}
			t.Log(all[i].name)
			all[i].run()
		}
		for all := moves(false); len(all) > 0; all = moves(false) {
			m := all[rng.IntN(len(all))]
			t.Log(m.name)
			m.run()
		}

		require.Equal(t, c.made, s.taken, "messages to the server")
		require.Equal(t, s.made, c.taken, "messages to the client")
		require.True(t, c.open)
		require.Equal(t, c.state, s.state)
		if c.spoken {
			require.Equal(t, c.onTCP, s.onTCP)
		}
	})
}
