package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// The client alone moves the lane: it says MOVE on the link that is to carry
// it, the server answers there, and both send there what the other has not
// taken in, then what is new. docs/PROTOCOL.md, "Moves".

// best is the path that should carry the lane; nil if none may.
func (s *Session) best() *path {
	if s.prefer != TCP && s.unable == "" {
		if p := s.carrying; p != nil && p.fast() {
			return p
		}
		if len(s.fast) > 0 {
			return s.fast[0]
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
	switch {
	case p == nil || p == s.target || p == s.carrying && s.target == nil:
		return
	case p.fast() && !s.lane.out.narrow():
		return // narrowed calls again
	}
	s.move++
	s.target = p
	s.enter(p, s.move, false)
}

// enter says MOVE on p, as soon as there is room for it. The client's lane goes
// on there at once where the server has taken in all that was sent, else with
// the server's answer; the server's goes on in any case. Callers hold mu.
func (s *Session) enter(p *path, move uint32, answers bool) {
	if slot, err := p.link.Reserve(now, Control, 0); err == nil {
		s.enterWith(p, move, answers, slot)
		return
	}
	s.spawnLocked(func() {
		slot, err := p.link.Reserve(s.ctx, Control, 0)
		if err != nil {
			return // linkEnded will be called
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.enterWith(p, move, answers, slot)
	})
}

func (s *Session) enterWith(p *path, move uint32, answers bool, slot Slot) {
	if s.err != nil || s.move != move || p.isGone() {
		p.link.Discard(slot)
		return
	}
	out, next := &s.lane.out, s.lane.in.say()
	if !answers && !out.idle() {
		err := p.link.Commit(slot, moveHeader(move, next))
		if err != nil {
			p.link.Discard(slot)
			return
		}
		p.link.Flush()
		return
	}
	pump, ok := out.bind(newCarrier(p.link, move), &slot, next)
	if !ok {
		p.link.Discard(slot)
		return
	}
	p.link.Flush()
	s.startPump(pump)
	s.carry(p)
}

// takeMove takes in MOVE.
func (s *Session) takeMove(p *path, h *wire.Header) error {
	err := s.checkMove(p, h)
	if err != nil {
		s.end("closed here", err, true)
	}
	return err
}

func (s *Session) checkMove(p *path, h *wire.Header) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil
	}
	if h.Lane != LaneID {
		return &wire.ParseError{Field: "lane", Got: uint64(h.Lane), Want: "1, the lane of the session"}
	}
	ahead := int32(h.Arg - s.move)
	switch {
	case s.client && ahead > 0:
		return &wire.ParseError{Field: "arg", Got: uint64(h.Arg), Want: fmt.Sprintf("at most %d, the newest MOVE", s.move)}
	case s.client && (ahead < 0 || s.target != p), ahead < 0 || !s.client && ahead == 0:
		s.info.Stale++
		return nil
	}
	if _, err := s.lane.out.acked(h.Ack); err != nil {
		return err
	}
	s.move = h.Arg
	s.lane.in.move(p)
	if !s.client {
		s.enter(p, s.move, true)
		return nil
	}
	s.target = nil
	pump, ok := s.lane.out.bind(newCarrier(p.link, s.move), nil, 0)
	if ok {
		s.startPump(pump)
		s.carry(p)
	}
	s.steer()
	return nil
}

// carry notes that p carries the lane.
func (s *Session) carry(p *path) {
	if s.carrying == p {
		return
	}
	if s.isSettled() {
		s.info.Moves++
	} else {
		close(s.settled)
	}
	if s.carrying == nil {
		s.info.Failover = time.Since(s.paused)
	}
	p.since = time.Now()
	s.carrying = p
	if p.fast() {
		s.info.Reason = ""
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
		s.spawnLocked(func() { s.lane.out.pump(s.ctx, c, s.lane.in.say) })
	}
}

// linkEnded is told by a path that its link is dead.
func (s *Session) linkEnded(p *path, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.spawnLocked(func() { <-p.link.Done() })
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
	if s.target == p {
		s.target = nil
	}
	if s.lane.out.lost(p.link) || s.carrying == p {
		s.carrying = nil
		s.paused = time.Now()
	}
	if p.fast() {
		s.fastEnded(p, err)
	} else if s.control == p {
		s.controlEnded(err)
	}
	s.alive()
	s.plan()
	s.steer()
}

func (s *Session) fastEnded(p *path, err error) {
	i := indexOf(s.fast, p)
	if i < 0 {
		return // of an attempt, which knows
	}
	s.fast = append(s.fast[:i:i], s.fast[i+1:]...)
	if !p.left && s.control != nil {
		s.post(s.control, ownFrame{wire.QPAbandon, abandonText(p.epoch, err.Error())})
	}
	if s.died && time.Since(p.since) > held*s.cfg.ReturnAfter {
		s.inRow = 0
	}
	s.inRow++
	s.died = true
	if len(s.fast) == 0 {
		s.info.Reason = "fast link: " + err.Error()
	}
	s.relimit()
	if s.cfg.FastLink == RequireFastLink && len(s.fast) == 0 {
		s.endLocked("fast link", err, true)
	}
}

func indexOf(paths []*path, p *path) int {
	for i := range paths {
		if paths[i] == p {
			return i
		}
	}
	return -1
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

// Migrate moves the lane to a link of that kind, and keeps it there until the
// next Migrate or until that kind of link is gone. Calls in flight go with it.
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
// ones, which the client makes at once.
func (s *Session) Reconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inRow = 0
	for _, p := range append([]*path{s.control}, s.fast...) {
		if p != nil {
			p.link.Close(errReconnect)
		}
	}
}
