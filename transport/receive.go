package transport

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// receiver takes in what one link of a session delivers. The link's goroutine
// alone touches its fields.
type receiver struct {
	s       *Session
	link    Link
	scratch []byte // where payloads of the link's own frames land
	flood   bucket
}

// Land implements Receiver.
func (r *receiver) Land(h *wire.Header) ([]byte, error) {
	if h.Kind.InLane() {
		err := r.openLane()
		if err == nil {
			l := &r.s.lane
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.parts.land(h)
		}
		if err != errEnded {
			return nil, err
		}
	}
	// Length is bounded by the rules of the kind, or by the link.
	if n := int(h.Length); cap(r.scratch) < n {
		r.scratch = make([]byte, n)
	}
	return r.scratch[:h.Length], nil
}

// Frame implements Receiver.
func (r *receiver) Frame(h *wire.Header) error {
	err := r.frame(h)
	if err == errEnded {
		return nil // the session closes the link when it has said why
	}
	return err
}

func (r *receiver) frame(h *wire.Header) error {
	if !h.Kind.InLane() {
		return r.own(h, r.scratch[:h.Length])
	}
	if err := r.openLane(); err != nil {
		return err
	}
	l := &r.s.lane
	l.mu.Lock()
	m, whole, err := l.parts.frame(h)
	l.mu.Unlock()
	if whole {
		r.s.deliver(m)
	}
	if err != nil && r.link != r.s.control {
		// The frame has its number, and so will not come again on another link.
		r.s.end("closed here", err, true)
	}
	return err
}

// Closed implements Receiver.
func (r *receiver) Closed(err error) { r.s.linkEnded(r.link, err) }

func (r *receiver) openLane() error {
	if r.s.lane.in.Load() == r {
		return nil
	}
	ev := evLaneFast
	if r.link == r.s.control {
		ev = evLaneTCP
		if !r.s.isGreeted() {
			return r.unexpected(wire.Call)
		}
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	err := r.s.stepLocked(attemptEvent{is: ev})
	if err == nil {
		r.s.lane.in.Store(r)
	}
	return err
}

func (r *receiver) unexpected(k wire.Kind) error {
	return &wire.ParseError{Field: "kind", Got: uint64(k), Want: fmt.Sprintf("no %v here", k)}
}

// own takes in a frame of the link or session.
func (r *receiver) own(h *wire.Header, payload []byte) error {
	now := time.Now()
	if !r.flood.take(now) {
		if r.flood.drowned() {
			return &wire.ParseError{Field: "kind", Got: uint64(h.Kind), Want: fmt.Sprintf("at most %d frames of the session in a second", floodRate)}
		}
		if h.Kind == wire.Ping {
			return nil
		}
	}
	switch h.Kind {
	case wire.Ping:
		r.s.pong(r.link, payload)
		return nil
	case wire.Pong:
		return nil
	}
	if r.link != r.s.control {
		if h.Kind != wire.Ready {
			return r.unexpected(h.Kind)
		}
		return r.s.step(attemptEvent{is: evReady})
	}
	return r.control(h, payload)
}

// control takes in a frame that only the control link may carry.
func (r *receiver) control(h *wire.Header, payload []byte) error {
	s := r.s
	greeted := s.isGreeted()
	switch {
	case h.Kind == wire.Hello && !greeted:
		return s.takeHello(payload)
	case h.Kind == wire.Refuse && !greeted && s.client, h.Kind == wire.Close:
		return s.closedByPeer(payload)
	case !greeted:
		return r.unexpected(h.Kind)
	}
	switch h.Kind {
	case wire.QPOffer, wire.QPAnswer:
		ev := attemptEvent{is: evOffer}
		if h.Kind == wire.QPAnswer {
			ev.is = evAnswer
		}
		if err := ev.qp.Parse(payload); err != nil {
			return err
		}
		return s.step(ev)
	case wire.QPAbandon:
		text, details, err := wire.ParseFault(payload)
		if err != nil {
			return err
		}
		if len(details) != 8 {
			return &wire.ParseError{Field: "QP_ABANDON details", Got: uint64(len(details)), Want: "8 bytes, the epoch"}
		}
		return s.step(attemptEvent{is: evAbandon, epoch: binary.LittleEndian.Uint64(details), text: text})
	case wire.GoAway:
		s.goneAway()
		return nil
	case wire.Move:
		return s.takeMove(payload)
	}
	return r.unexpected(h.Kind)
}

func (s *Session) isGreeted() bool {
	select {
	case <-s.greeted:
		return true
	default:
		return false
	}
}

// takeHello begins the session.
func (s *Session) takeHello(payload []byte) error {
	var m wire.HelloMsg
	if err := m.Parse(payload); err != nil {
		return err
	}
	if err := s.checkHello(&m); err != nil {
		s.end("closed here", err, true)
		return nil
	}
	if !s.client {
		s.unable = s.noFastLink()
	}
	reason := unable(s.unable, &m)
	if reason != "" && s.cfg.FastLink == RequireFastLink {
		s.end("closed here", &NoFastLinkError{Reason: reason}, true)
		return nil
	}
	s.peer = m
	s.id = m.Session
	s.sums = s.cfg.PayloadSum || m.Features&wire.FeaturePayloadSum != 0
	calls := s.cfg.MaxCalls
	if s.client {
		calls = int(min(m.MaxCalls, 1<<20)) // calls go one way, and replies to them back
	}
	s.lane.parts.maxMessage, s.lane.parts.maxParts = s.cfg.MaxMessage, calls
	if reason == "" {
		s.lane.numbers.retain(s.cfg.Retain, s.oweAck)
	}
	s.lane.turns.maxCount, s.lane.turns.maxBytes = calls, openLimit(s.PeerLimits().MaxMessage)
	if !s.greet() {
		return nil
	}
	return s.settleOrBegin(reason)
}

// greet makes the sink, unless the session has ended.
func (s *Session) greet() bool {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	if s.ended {
		return false
	}
	s.deadline.Stop()
	s.sink = s.newSink(s)
	close(s.greeted)
	return true
}

// settleOrBegin decides whether there is an attempt at a fast link. A server
// that could have one waits for the offer.
func (s *Session) settleOrBegin(reason string) error {
	if !s.client {
		s.mu.Lock()
		s.post(s.control, wire.Hello, s.hello())
		s.attempt.able = reason == ""
		s.mu.Unlock()
	}
	switch {
	case reason != "":
		return s.step(attemptEvent{is: evUnable, text: reason})
	case s.client:
		return s.begin()
	}
	return nil
}

// takeMove takes in the peer's part in a move of the lane.
func (s *Session) takeMove(payload []byte) error {
	var m wire.MoveMsg
	if err := m.Parse(payload); err != nil {
		return err
	}
	if !m.Up && !s.lane.numbers.mayAck(m.Next) {
		return &wire.ParseError{Field: "MOVE next", Got: uint64(m.Next), Want: "at most the number of the next frame"}
	}
	ev := attemptEvent{is: evDown, epoch: m.Epoch, next: m.Next, text: "the peer has left the link"}
	if m.Up {
		ev.is = evUp
	}
	return s.step(ev)
}

func (s *Session) closedByPeer(payload []byte) error {
	text, _, err := wire.ParseFault(payload)
	if err != nil {
		return err
	}
	if text == "" {
		err = net.ErrClosed
	} else {
		err = &PeerError{Text: text}
	}
	s.end("closed by the peer", err, false)
	return nil
}

func (s *Session) goneAway() {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	if !s.ended {
		s.sink.GoAway()
	}
}

// maxPongs is how many answers may wait for room; pings beyond go unanswered.
const maxPongs = 16

func (s *Session) pong(link Link, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && s.pongs < maxPongs {
		s.pongs++
		s.post(link, wire.Pong, append([]byte(nil), payload...))
	}
}

// takeBack tells the peer that the rest of a message will not come, and calls
// told then. It waits for room as long as the session lives, and not in the
// caller's time.
func (s *Session) takeBack(kind wire.Kind, call uint64, told func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		told()
		return
	}
	s.workers.Go(func() {
		defer told()
		h := wire.Header{Kind: wire.Cancel, Call: call}
		var payload []byte
		if kind == wire.Reply {
			h.Kind, h.Flags, h.Arg = wire.Reply, wire.Error|wire.End, codeCanceled
			payload = wire.AppendFault(nil, "reply taken back", nil)
		}
		// If it cannot be sent the session ends, and the message with it.
		_ = s.lane.Send(s.ctx, h, payload)
	})
}

// codeCanceled is the canonical status code of a call that nobody waits for.
const codeCanceled = 1
