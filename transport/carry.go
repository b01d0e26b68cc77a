package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// errPeerLeft closes a fast link that the peer has left.
var errPeerLeft = errors.New("the peer has left the link")

// held is how many times Config.ReturnAfter a link must have carried the lane
// for its death to be taken for the first, and not for one in a row.
const held = 6

// carrier is a link as it carries the lane for a time. While the lane pauses on
// its way to another link, open is false and nothing is sent.
type carrier struct {
	link Link
	open bool
	over chan struct{} // closed when another carrier is bound
}

// bind makes link carry the lane, or pause. Callers hold Session.mu, and gate
// if the lane is bound already.
func (l *Lane) bind(link Link, open bool) *carrier {
	c := &carrier{link, open, make(chan struct{})}
	if old := l.bound.Swap(c); old != nil {
		close(old.over)
	}
	return c
}

// pause keeps everything back until another carrier is bound. What was
// committed before is told to unsent if from has died.
func (l *Lane) pause(to Link, from Link) *carrier {
	l.gate.Lock()
	defer l.gate.Unlock()
	c := l.bind(to, false)
	if from != nil {
		from.Unsent(l.numbers.Stamp)
	}
	return c
}

// resume lets c carry the lane, unless that has moved on.
func (s *Session) resume(c *carrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.lane.bound.Load() != c {
		return
	}
	s.settle(c.link)
}

// resend sends again what the peer has not taken in. Nothing else is committed
// meanwhile; it runs in run.
func (s *Session) resend(link Link, from, to uint32) {
	for n := from; n != to; n++ {
		k := s.lane.numbers.kept(n)
		if err := s.resendFrame(link, &k); err != nil {
			return // the session ends: it was the control link
		}
	}
}

func (s *Session) resendFrame(link Link, k *keptFrame) error {
	var payload []byte
	if k.buf != nil {
		defer k.buf.Release()
		payload = k.buf.Bytes()
	}
	slot, err := link.Reserve(s.ctx, Small, len(payload))
	if err != nil {
		return err
	}
	copy(slot.Payload, payload)
	if err = link.Commit(slot, &k.h); err != nil {
		link.Discard(slot)
	}
	return err
}

// awaitMove waits until c does not carry the lane any more.
func (s *Session) awaitMove(ctx context.Context, c *carrier) error {
	select {
	case <-c.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ending:
		return s.Err()
	}
}

// sendLater sends a message whose slot is of a link that the lane has left, in
// the sender's place. It takes the payload over.
func (s *Session) sendLater(h wire.Header, payload *pool.Buf) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		payload.Release()
		return s.err
	}
	s.workers.Go(func() {
		defer payload.Release()
		// If it cannot be sent the session ends.
		_ = s.lane.Send(s.ctx, h, payload.Bytes())
	})
	return nil
}

// oweAck lets the peer know what was taken in, where nothing else does.
func (s *Session) oweAck() {
	c := s.lane.bound.Load()
	if c == nil || !c.open {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.post(c.link, wire.Ack, nil)
	}
}

// move sends MOVE. Callers hold mu.
func (s *Session) move(up bool) {
	m := wire.MoveMsg{Epoch: s.attempt.epoch, Up: up}
	if !up {
		m.Next = s.lane.numbers.expected.Load() // for good: the link is dead
	}
	s.post(s.control, wire.Move, m.Append(nil))
}

// rise pauses the lane and says that all of it was sent on the control link.
func (s *Session) rise() {
	s.lane.pause(s.control, nil)
	s.move(true)
}

// fall takes the lane from the dead fast link. Where that was on its way to the
// link, the control link may be delivering a frame of it.
func (s *Session) fall(why error, onFast bool) {
	if s.cfg.FastLink == RequireFastLink {
		s.endLocked("fast link", why, true)
		return
	}
	s.lane.pause(s.control, s.fast)
	if onFast {
		s.lane.interrupt()
	}
	s.fast = nil
	s.move(false)
}

// land lets the control link carry the lane, behind what is sent again.
func (s *Session) land(again bool, next uint32) {
	c := s.lane.bound.Load()
	var from, to uint32
	if again {
		_ = s.lane.numbers.ack(next) // it was checked
		from, to = s.lane.numbers.rewind()
	}
	s.postJob(job{run: func() {
		s.resend(s.control, from, to)
		s.resume(c)
	}})
}

// planRetry begins another attempt after some time, if there may be one.
// Callers hold mu.
func (s *Session) planRetry() {
	a := &s.attempt
	if !a.mayTry() || s.retry != nil || s.err != nil {
		return
	}
	if a.died && time.Since(s.since) > held*s.cfg.ReturnAfter {
		a.inRow = 1
	}
	first := s.cfg.RetryAfter
	if a.died {
		first = s.cfg.ReturnAfter
	}
	s.retry = time.AfterFunc(retryDelay(first, a.inRow, rand.Float64()), s.tryAgain)
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

func (s *Session) tryAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry = nil
	if s.err == nil && s.attempt.mayTry() {
		_ = s.stepLocked(attemptEvent{is: evBegin, epoch: newEpoch()})
	}
}
