package transport

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// now is a context that is over: with it, Reserve takes what is free at once.
var now = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// say sends a frame of the session to the peer, by the control link if there is
// one, else by a fast link. Callers hold mu.
func (s *Session) say(kind wire.Kind, payload []byte) {
	switch {
	case s.control != nil:
		s.post(s.control, ownFrame{kind, payload})
	case len(s.fast) > 0 && !exchangeKind(kind):
		s.post(s.fast[0], ownFrame{kind, payload})
	}
}

// exchangeKind says that the kind belongs to one control link.
func exchangeKind(k wire.Kind) bool {
	return k == wire.QPOffer || k == wire.QPAnswer || k == wire.QPAbandon
}

// maxQueue is how many frames of the session may wait for room on a link, far
// above what a peer that reads makes wait. maxPongs is how many are there when a
// PING goes unanswered.
const (
	maxQueue = 64
	maxPongs = 16
)

var errUnread = errors.New("the peer takes in nothing of what the session says")

// post sends a frame of the session on a path, behind those before it, at once
// where there is room. Callers hold mu.
func (s *Session) post(p *path, f ownFrame) {
	if s.err != nil {
		return
	}
	if !p.sending && s.sendOwn(now, p.link, f) == nil {
		return
	}
	switch {
	case f.kind == wire.Ack && slices.ContainsFunc(p.queue, func(q ownFrame) bool { return q.kind == wire.Ack }):
		return // that one says what is true when it leaves
	case len(p.queue) >= maxQueue:
		p.link.Close(errUnread)
		return
	}
	p.queue = append(p.queue, f)
	if !p.sending {
		p.sending = true
		s.spawn(func() { s.sendQueue(p) })
	}
}

func (s *Session) sendQueue(p *path) {
	for {
		s.mu.Lock()
		if len(p.queue) == 0 {
			p.sending = false
			s.mu.Unlock()
			return
		}
		f := p.queue[0]
		p.queue = p.queue[1:]
		s.mu.Unlock()
		// The link that cannot send tells its receiver why.
		_ = s.sendOwn(s.ctx, p.link, f)
	}
}

func (s *Session) sendOwn(ctx context.Context, link Link, f ownFrame) error {
	h := wire.Header{Kind: f.kind}
	if f.kind == wire.Ack { // says what is true now
		h.Lane, h.Ack = LaneID, s.lane.in.say()
	}
	return sendOwn(ctx, link, &h, f.payload)
}

func sendOwn(ctx context.Context, link Link, h *wire.Header, payload []byte) error {
	slot, err := link.Reserve(ctx, Control, len(payload))
	if err != nil {
		return err
	}
	copy(slot.Payload, payload)
	if err = link.Commit(slot, h); err != nil {
		link.Discard(slot)
		return err
	}
	link.Flush()
	return nil
}

func (s *Session) pong(p *path, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p.queue) < maxPongs {
		s.post(p, ownFrame{wire.Pong, append([]byte(nil), payload...)})
		if s.lane.in.unsaid() {
			s.post(p, ownFrame{kind: wire.Ack})
		}
	}
}

// askAgain is the time between two PINGs of askAcks: ten in a second, of 64 that are
// answered.
const askAgain = 100 * time.Millisecond

// askAcks has the peer say what it has taken in until all that is kept fits p, or p
// is gone. To ask once is not enough: PING overtakes frames that have still to leave,
// after a move above all, the answer then does not cover them, and the next ACK may
// be a third of the keepalive time away.
func (s *Session) askAcks(p *path) {
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for !s.lane.out.fits(p.link.MaxPayload()) {
		s.mu.Lock()
		if carries := s.carrying; carries != nil {
			s.post(carries, ownFrame{kind: wire.Ping})
		}
		s.mu.Unlock()
		select {
		case <-again.C:
		case <-p.gone:
			return
		case <-s.ctx.Done():
			return
		}
	}
}
