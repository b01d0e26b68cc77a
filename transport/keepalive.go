package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// ticks is how many times in Config.Keepalive a link is looked at. It is sent PING
// when nothing came in one tick, or two (asks), and closed after that many.
const ticks = 3

// probeTime is how long a fast link has to show that its peer lives, when the
// control link is lost; shorter where Config.Keepalive is.
const probeTime = 2 * time.Second

// SilentError says that nothing came over a link although the peer was asked, or
// no answer to MOVE.
type SilentError struct{ For time.Duration }

func (e *SilentError) Error() string { return fmt.Sprintf("the peer was silent for %v", e.For) }

// errStuck closes a link that lives and has lost frames, the last ones, so that
// nothing shows the peer that they are missing: they are sent again on another.
var errStuck = errors.New("frames are not acknowledged")

func (s *Session) tickTime() time.Duration { return s.cfg.Keepalive / ticks }

// asks is the tick in silence at which a side asks the peer. The server is the
// first, which may have thousands of sessions and asks many at a time (rounds):
// its PING and the answer are signs of life for both. The client asks where the
// server does not, and where calls may wait for what its control link has lost.
func (s *Session) asks() int {
	if s.client {
		return 2
	}
	return 1
}

// keepAlive looks at all links; rounds calls it once in a tick.
func (s *Session) keepAlive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if s.control != nil {
		s.listen(s.control)
	}
	for _, p := range s.fast {
		s.listen(p)
	}
	if p := s.carrying; p != nil {
		if s.lane.in.unsaid() {
			s.post(p, ownFrame{kind: wire.Ack}) // so that an idle peer keeps nothing
		}
		switch still := s.lane.out.stillTicks(p.moves); {
		case still > ticks:
			p.link.Close(errStuck)
		case still > 1: // the peer's own ticks may be longer: with PONG it says what it owes
			s.post(p, ownFrame{wire.Ping, nil})
		}
	}
}

func (s *Session) listen(p *path) {
	if p == s.target { // a link may have lost MOVE, and live
		if p.waits++; p.waits > ticks {
			p.link.Close(&SilentError{s.cfg.Keepalive})
			return
		}
	}
	if p.lives() {
		p.silent = 0
		return
	}
	if p.silent++; p.silent >= ticks {
		p.link.Close(&SilentError{s.cfg.Keepalive})
		return
	}
	asks := s.asks()
	switch {
	case s.client && p == s.control && (p.silent == asks || p.silent == 1 && !s.lane.out.idle()):
		s.doubt()
	case p.silent == asks || p.silent > asks && !p.sending: // not behind another that waits for room
		s.post(p, ownFrame{wire.Ping, nil})
	}
}

// probe asks the fast links for a sign of life. Callers hold mu.
func (s *Session) probe() {
	d := min(probeTime, s.cfg.Keepalive)
	for _, p := range s.fast {
		heard := p.heard.Load()
		s.post(p, ownFrame{wire.Ping, nil})
		time.AfterFunc(d, func() {
			if p.heard.Load() == heard {
				p.link.Close(&SilentError{d})
			}
		})
	}
}
