package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// held is how many times Config.ReturnAfter a link must have carried the lane
// for its death to be taken for the first, and not for one in a row.
const held = 6

// Times between the client's attempts at a control connection.
const (
	firstRedial = 10 * time.Millisecond   // doubled for each in a row
	maxRedial   = 5 * time.Second         // while a fast link works; else often enough for the session to live
	refusals    = 3                       // connections refused in a row for the server to be gone
	lasting     = time.Second             // what a connection must last for the next to be the first in a row
	connectTime = 1500 * time.Millisecond // for one to be there: TCP itself tries again after 1, 3 and 7 s
)

// controlEnded goes on without the control link p. Callers hold mu.
func (s *Session) controlEnded(p *path, err error) {
	s.control = nil
	if s.try != nil {
		s.try.cancel(fmt.Errorf("control link: %w", err))
	}
	s.cut, s.silent = err, unheard(err)
	var wrong *wire.ParseError
	if errors.As(err, &wrong) && wrong.Field != "frame" { // cut short is no fault
		s.endLocked("control link", err, false)
		return
	}
	s.probe()
	if s.client {
		if s.flaps++; time.Since(p.since) > lasting {
			s.flaps = 0
		}
		s.startRedial(s.flaps)
	}
}

// unheard says that a link ended because nothing came over it, as this side found
// or its system: the peer may live, and have no reason yet to think otherwise. A
// system may find so early: in an outage of at most 8 s, Linux 6.1 ended a
// connection with ETIMEDOUT that had 12 s (TCP_USER_TIMEOUT), and 4 s were left to it.
func unheard(err error) bool {
	if errors.As(err, new(*SilentError)) {
		return true
	}
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// doubt has the client make another control connection if the one it has shows no
// sign of life soon: TCP doubles the time between its attempts, so that after an
// outage of 7 s it would try again at 12. Callers hold mu.
func (s *Session) doubt() {
	p := s.control
	if !s.client || p == nil {
		return
	}
	heard, acked := p.heard.Load(), p.ackedBytes()
	s.post(p, ownFrame{wire.Ping, nil})
	if !p.awaited {
		p.awaited = true
		s.awaitLife(p, heard, acked)
	}
}

// awaitLife looks for a sign of life of a control link, which had heard so many frames,
// and so many of whose bytes the peer has: if these become more, the sign may have to
// wait for them. Callers hold mu.
func (s *Session) awaitLife(p *path, heard uint32, acked uint64) {
	time.AfterFunc(min(probeTime, s.cfg.Keepalive), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.awaited = false
		if s.err != nil || s.control != p || p.heard.Load() != heard {
			return
		}
		if now := p.ackedBytes(); now != acked {
			p.awaited = true
			s.awaitLife(p, heard, now)
			return
		}
		s.doubted, s.heard = p, heard
		s.startRedial(0)
	})
}

// errUnheard is why a session ends that has only a silent control link.
var errUnheard = errors.New("nothing comes over it")

// alive plans the end of a session that has no link, or drops that plan.
// Callers hold mu.
func (s *Session) alive() {
	has := s.control != nil || len(s.fast) > 0
	switch {
	case s.err != nil:
	case has && s.lost != nil:
		s.lost.Stop()
		s.lost = nil
	case !has && s.lost == nil:
		wait := s.cfg.ResumeWithin
		if s.silent {
			wait += s.cfg.Keepalive // the peer may notice later that it has no link
		}
		s.lost = time.AfterFunc(wait, func() { s.endLost(nil) })
	}
}

// endLost ends a session that has no link. why: sooner than planned. A silent
// control link is none where the server says that it does not want the session.
func (s *Session) endLost(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.cut
	switch {
	case len(s.fast) > 0:
		return
	case s.control == nil && s.lost == nil:
		return
	case s.control != nil:
		if !s.isSilent() || !errors.As(why, new(*PeerError)) {
			return
		}
		err = errUnheard
	}
	if why != nil {
		err = fmt.Errorf("%w; %w", err, why)
	}
	s.endLocked("control link", err, false)
}

// startRedial has a new control connection made. The first attempt is the n-th in
// a row, from 0. Callers hold mu.
func (s *Session) startRedial(n int) {
	if !s.redialing {
		s.redialing = true
		s.spawn(func() { s.redial(n) })
	}
}

// redials says whether a new control connection is wanted still.
func (s *Session) redials() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control == nil || s.isSilent() {
		return true
	}
	s.redialed()
	s.plan()
	return false
}

// isSilent says that the control link was doubted, and has not spoken since.
// Callers hold mu.
func (s *Session) isSilent() bool {
	p := s.control
	return p != nil && p == s.doubted && p.heard.Load() == s.heard
}

// redialed ends redialling. Callers hold mu.
func (s *Session) redialed() { s.redialing, s.doubted = false, nil }

// redial makes a new control connection, one attempt at a time, until there is
// one, the one that was doubted speaks, or the session ends.
func (s *Session) redial(n int) {
	refused := 0
	for ; ; n++ {
		if !s.rest(redialDelay(n, s.mostRedial(), rand.Float64())) || !s.redials() {
			return
		}
		err := s.resume()
		if err == nil {
			return
		}
		if errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, new(*PeerError)) {
			refused++
		} else {
			refused = 0
		}
		if refused >= refusals {
			s.endLost(err) // unless a fast link shows that the peer lives
		}
	}
}

// mostRedial bounds the time between two attempts.
func (s *Session) mostRedial() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fast) > 0 {
		return maxRedial
	}
	return min(maxRedial, s.cfg.ResumeWithin/8)
}

// redialDelay is full jitter over a time that doubles, up to most.
func redialDelay(n int, most time.Duration, random float64) time.Duration {
	return time.Duration(random * float64(min(firstRedial<<min(n, 16), most)))
}

// rest waits before an attempt, unless an operator wants it now; false: the
// session has ended.
func (s *Session) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.hurry:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// resume makes one control connection for the session.
func (s *Session) resume() error {
	link, err := s.connectAgain()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.HandshakeTimeout)
	defer cancel()
	m := s.cfg.hello(s.id, s.network.reach(&s.cfg, link.Info().Local))
	m.Lanes = []wire.LaneState{{Lane: LaneID, Next: s.lane.in.expected.Load()}}
	err = greet(ctx, link, &m, func(peer *wire.HelloMsg) (*path, error) {
		if peer.Session != s.id {
			return nil, fmt.Errorf("HELLO for session %x, asked for %x", peer.Session, s.id)
		}
		return s.attach(link, nil)
	})
	if err != nil { // without CLOSE, which would end the session: the server may have it on this link
		link.Close(err)
		<-link.Done()
	}
	return err
}

func (s *Session) connectAgain() (Link, error) {
	ctx, cancel := context.WithTimeout(s.ctx, min(connectTime, s.cfg.HandshakeTimeout))
	defer cancel()
	return s.network.Carrier.Dial(ctx, s.addr)
}

// attach takes in a new control link, which knows the session on both sides.
// first is said on it before anything else.
func (s *Session) attach(link Link, first *ownFrame) (*path, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	if old := s.control; old != nil {
		old.link.Close(errReplaced)
		s.spawn(func() { <-old.link.Done() })
		s.drop(old, errReplaced)
	}
	p := newPath(s, link, 0)
	s.control = p
	s.redialed()
	s.info.Resumes++
	if first != nil {
		s.post(p, *first)
	}
	if s.away {
		s.post(p, ownFrame{kind: wire.GoAway})
	}
	for _, f := range s.fallen {
		s.post(p, f)
	}
	s.alive()
	s.plan()
	s.steer()
	return p, nil
}

var errReplaced = errors.New("the client has made a new connection")

// plan begins the client's next attempt at a fast link, or sets a time for it.
// Callers hold mu.
func (s *Session) plan() {
	if !s.mayTry() || s.retry != nil {
		return
	}
	if s.info.Attempts == 0 && s.inRow == 0 {
		s.attemptNow()
		return
	}
	s.retry = time.AfterFunc(s.retryDelay(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.retry = nil
		s.attemptNow()
	})
}

// mayTry says that a fast link is wanted, and could be had now.
func (s *Session) mayTry() bool {
	return s.client && s.err == nil && s.unable == "" && s.control != nil && s.control != s.doubted && s.try == nil &&
		s.prefer != TCP && len(s.fast) < 1+s.cfg.Standby
}

func (s *Session) attemptNow() {
	if s.mayTry() {
		s.startAttempt(newEpoch(), s.offer)
	}
}

// portsChanged is told by the fabric that a link might be made now.
func (s *Session) portsChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inRow = 0
	if s.retry != nil && s.retry.Stop() {
		s.retry = nil
		s.plan()
	}
}

func (s *Session) retryDelay() time.Duration {
	first := s.cfg.RetryAfter
	switch {
	case s.inRow == 0:
		first = standbyDelay
	case s.died:
		first = s.cfg.ReturnAfter
	}
	return retryDelay(first, s.inRow, rand.Float64())
}

// retryDelay is the time until the next attempt after so many in a row that
// came to nothing: doubled each time, at most maxRetry, and spread by a
// quarter either way so that the clients of a server do not come together.
func retryDelay(first time.Duration, inRow int, random float64) time.Duration {
	d := first
	for i := 1; i < inRow && d < maxRetry; i++ {
		d *= 2
	}
	d = max(first, min(d, maxRetry))
	return time.Duration(float64(d) * (0.75 + random/2))
}
