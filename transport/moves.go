package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// The client alone moves the lane: it says MOVE on the link that is to carry
// it, the server answers there, and both send there what the other has not
// taken in, then what is new. docs/PROTOCOL.md, "Moves".

// best is the path that should carry the lane; nil if none may.
func (s *Session) best() *path {
	if s.unable == "" && (s.prefer != TCP || s.control == nil) {
		for _, p := range [...]*path{s.target, s.carrying} {
			if p != nil && p.fast() {
				return p
			}
		}
		for _, p := range s.fast {
			if s.lane.out.fits(p.link.MaxPayload()) { // else narrowed calls again
				return p
			}
		}
		if s.cfg.FastLink == RequireFastLink || s.try != nil && !s.isSettled() {
			return nil // the first attempt decides
		}
	}
	return s.control
}

// steer moves the client's lane to where it should be. Callers hold mu.
func (s *Session) steer() {
	if !s.client || s.err != nil {
		return
	}
	p := s.best()
	if p == nil || p == s.target || p == s.carrying && s.target == nil {
		return
	}
	s.move++
	s.target, p.waits = p, 0
	s.enter(p)
}

// enter says the newest MOVE on p, its target, as soon as there is room for it.
// The client's lane goes on there at once where the server has taken in all that
// was sent, else with the server's answer; the server's goes on in any case.
// Callers hold mu.
func (s *Session) enter(p *path) {
	if p.entering {
		return
	}
	if slot, err := p.link.Reserve(now, Control, 0); err == nil {
		s.enterWith(p, slot)
		return
	}
	p.entering = true
	s.spawn(func() {
		slot, err := p.link.Reserve(s.ctx, Control, 0)
		if err != nil {
			return // linkEnded will be called
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		p.entering = false
		s.enterWith(p, slot)
	})
}

func (s *Session) enterWith(p *path, slot Slot) {
	out, c := &s.lane.out, newCarrier(p.link, s.move)
	waits := s.client && !out.idle()
	if s.err != nil || s.target != p || !out.announce(c, slot, s.lane.in.say()) {
		p.link.Discard(slot)
		return
	}
	if !waits {
		s.carry(p, c)
	}
	p.link.Flush()
	if !s.client {
		s.target = nil
	}
}

// takeMove takes in MOVE.
func (s *Session) takeMove(p *path, h *wire.Header) error {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil
	}
	if h.Lane != LaneID {
		return errLane(h)
	}
	ahead := int32(h.Arg - s.move)
	if s.client && ahead > 0 {
		return &wire.ParseError{Field: "arg", Got: uint64(h.Arg), Want: fmt.Sprintf("at most %d, the newest MOVE", s.move)}
	}
	answers := s.client && ahead == 0 && s.target == p
	begins := !s.client && ahead > 0 && (p == s.control || slices.Contains(s.fast, p))
	if !answers && !begins {
		s.info.Stale++
		return nil
	}
	narrowed, err := s.lane.out.acked(h.Ack)
	if err != nil {
		return err
	}
	s.lane.in.move(p)
	if begins {
		s.move, s.target = h.Arg, p
		s.enter(p)
	} else {
		s.target = nil
		s.carry(p, newCarrier(p.link, s.move))
	}
	if narrowed {
		s.noteNarrowed()
	}
	s.steer()
	return nil
}

// carry lets p carry the lane. Callers hold mu.
func (s *Session) carry(p *path, c *carrier) {
	s.startPump(s.lane.out.bind(c))
	if s.carrying == p {
		return
	}
	if s.isSettled() {
		s.info.Moves++
		if s.carrying == nil {
			s.info.Failover = time.Since(s.paused)
		}
	} else {
		close(s.settled)
	}
	p.since = time.Now()
	s.carrying = p
	if p.fast() {
		s.info.Reason = ""
	} else if s.prefer == TCP {
		s.info.Reason = "TCP was asked for"
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Session) isSettled() bool {
	select {
	case <-s.settled:
		return true
	default:
		return false
	}
}

func (s *Session) startPump(c *carrier) {
	if c != nil {
		s.spawn(func() { s.lane.out.pump(s.ctx, c, s.lane.in.say) })
	}
}

// linkEnded is told by a path that its link is dead.
func (s *Session) linkEnded(p *path, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.spawn(func() { <-p.link.Done() })
	switch {
	case err == nil:
		err = net.ErrClosed
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF // a regular end is said with CLOSE
	}
	s.drop(p, err)
}

// drop takes a dead link, or one that is to be closed, out of the session.
func (s *Session) drop(p *path, err error) {
	// Where the lane was on its way to p, the peer may not take it elsewhere any more.
	if s.lane.out.lost(p.link) || s.carrying == p || s.target == p {
		if s.carrying != nil {
			s.paused = time.Now()
		}
		s.carrying = nil
	}
	if s.target == p {
		s.target = nil
	}
	if p.fast() {
		s.fastEnded(p, err)
	} else if s.control == p {
		s.controlEnded(p, err)
	}
	s.alive()
	s.plan()
	s.steer()
}

// maxFallen is how many links that ended the peer is told of again on a new control
// link: more than it can take for alive, unless several control links were lost
// with what was said on them.
const maxFallen = 16

// fell tells the peer of a link that ended here, now and on each new control
// link: what was said on one that is lost may have been lost too. A peer that
// does not know may have no credit left there, and then never asks. Callers hold mu.
func (s *Session) fell(f ownFrame) {
	if len(s.fallen) == maxFallen {
		s.fallen = s.fallen[1:]
	}
	s.fallen = append(s.fallen, f)
	if s.control != nil {
		s.post(s.control, f)
	}
}

func (s *Session) fastEnded(p *path, err error) {
	i := slices.Index(s.fast, p)
	if i < 0 {
		return // of an attempt, which knows
	}
	s.fast = append(s.fast[:i:i], s.fast[i+1:]...)
	if !p.left {
		s.fell(ownFrame{wire.QPAbandon, abandonText(p.epoch, err.Error())})
	}
	if time.Since(p.since) > held*s.cfg.ReturnAfter {
		s.inRow = 0
	}
	s.inRow++
	s.died = true
	if len(s.fast) == 0 {
		s.info.Reason = "fast link: " + err.Error()
		if s.redialing { // with pauses for a session that has a link
			offer1(s.hurry, struct{}{})
		}
		s.doubt() // what has cut it may have cut that too
	}
	s.relimit()
	if s.cfg.FastLink == RequireFastLink && len(s.fast) == 0 {
		s.endLocked("fast link", err, true)
	}
}

// MoveError says why an operator's move did not come about.
type MoveError struct {
	To  Kind
	Err error
}

func (e *MoveError) Error() string {
	return fmt.Sprintf("transport: move of the lane to %v: %v", e.To, e.Err)
}

func (e *MoveError) Unwrap() error { return e.Err }

// Migrate moves the lane to a link of that kind, and keeps it there while there
// is one, until the next Migrate. Calls in flight go with it.
// It returns when the lane is there, or a *MoveError: the client alone moves
// lanes, and a fast link has to be possible. ctx bounds the wait, and not the
// preference.
func (s *Session) Migrate(ctx context.Context, to Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.client:
		return &MoveError{to, errors.New("the client moves the lane")}
	case to != TCP && s.unable != "":
		return &MoveError{to, errors.New(s.unable)}
	case to == TCP && s.cfg.FastLink == RequireFastLink:
		return &MoveError{to, errors.New("a fast link is required")}
	case to != TCP && to != s.network.Fabric.Kind():
		return &MoveError{to, errors.New("there are no links of that kind")}
	}
	s.prefer = to
	s.attemptNow()
	s.steer()
	for {
		if s.err != nil {
			return &MoveError{to, s.err}
		}
		if p := s.carrying; p != nil && p.link.Kind() == to {
			return nil
		}
		changed := s.changed
		s.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-s.ending:
		case <-ctx.Done():
			err = &MoveError{to, context.Cause(ctx)}
		}
		s.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// errReconnect is why Reconnect closes links.
var errReconnect = errors.New("reconnect was asked for")

// Reconnect closes all links of the session. Calls in flight go on on the new
// ones, which the client makes at once. A session that requires a fast link
// ends.
func (s *Session) Reconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inRow, s.flaps = 0, 0
	offer1(s.hurry, struct{}{})
	for _, p := range append([]*path{s.control}, s.fast...) {
		if p != nil {
			p.link.Close(errReconnect)
		}
	}
}
