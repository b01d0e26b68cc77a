package transport

import (
	"context"

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

// post sends a frame of the session on a path, behind those before it, at once
// where there is room. Callers hold mu.
func (s *Session) post(p *path, f ownFrame) {
	if s.err != nil {
		return
	}
	if !p.sending && s.sendOwn(now, p.link, f) == nil {
		return
	}
	p.queue = append(p.queue, f)
	if !p.sending {
		p.sending = true
		s.spawnLocked(func() { s.sendQueue(p) })
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
		if f.kind == wire.Pong {
			p.pongs--
		}
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

// maxPongs is how many answers may wait for room; pings beyond go unanswered.
const maxPongs = 16

func (s *Session) pong(p *path, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.pongs < maxPongs {
		p.pongs++ // of those that wait; post takes it back where none does
		s.post(p, ownFrame{wire.Pong, append([]byte(nil), payload...)})
		if !p.sending {
			p.pongs--
		}
	}
}
