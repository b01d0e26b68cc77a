package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// ticks is how many times Config.Keepalive is looked at: a link is sent PING
// when nothing came in one tick, and closed after that many.
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

// keepAlive looks at all links once in a tick.
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
		if s.lane.out.stuck() {
			p.link.Close(errStuck)
		}
	}
	s.tick.Reset(s.tickTime())
}

func (s *Session) listen(p *path) {
	if p == s.target { // a link may have lost MOVE, and live
		if p.waits++; p.waits > ticks {
			p.link.Close(&SilentError{s.cfg.Keepalive})
			return
		}
	}
	if heard := p.heard.Load(); heard != p.counted {
		p.counted, p.silent = heard, 0
		return
	}
	if p.silent++; p.silent >= ticks {
		p.link.Close(&SilentError{s.cfg.Keepalive})
		return
	}
	switch {
	case p.silent == 1 && p == s.control && s.client:
		s.doubt()
	case p.silent == 1 || !p.sending: // not behind another that waits for room
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
