package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// clientSession is one session of a Conn, and the calls on it. It makes calls
// until the server goes away, the session fails or the Conn is closed: then it
// is refusing, and calls go to another.
//
// A call runs on its caller's goroutine alone; the transport's goroutine only
// hands it the reply.
type clientSession struct {
	conn       *Conn
	session    session
	lane       lane
	maxMessage int // bytes of a message that the server takes in
	calls      table
	waiting    atomic.Int32 // calls that wait for their outcome
	cancels    cancels

	// refusal is why no new calls are made; nil: they are. It is read after a
	// call is in the table and set before that is read, so that of a new call
	// and a GOAWAY at least one sees the other.
	refusal atomic.Pointer[refusal]
}

// refusal is why a session makes no more calls.
type refusal struct{ why error }

func newClientSession(c *Conn, s session, l lane, peer transport.Limits) *clientSession {
	return &clientSession{
		conn: c, session: s, lane: l, maxMessage: peer.MaxMessage,
		calls: table{limit: min(peer.MaxCalls, maxSlots)},
	}
}

// refuse lets no new calls begin; the first reason stays.
func (s *clientSession) refuse(why error) { s.refusal.CompareAndSwap(nil, &refusal{why}) }

// goAway lets the calls under way finish and no new ones begin.
func (s *clientSession) goAway() {
	s.refuse(errGoingAway)
	s.closeIfIdle()
}

// closeIfIdle closes a session that is refusing once its last call has ended,
// for which the server waits after a GOAWAY.
func (s *clientSession) closeIfIdle() {
	if s.calls.active() == 0 {
		s.session.Close(nil)
	}
}

// call makes a call, once. Nobody else uses its slot when it returns.
func (s *clientSession) call(ctx context.Context, m *Method, req, resp any) *Error {
	p, id := s.calls.take()
	if p == nil {
		return failed(ResourceExhausted, NotExecuted, m, fmt.Errorf("%d calls are under way, no more are taken at once", s.calls.limit))
	}
	err := s.exchange(ctx, p, id, m, req, resp)
	s.calls.give(p)
	if s.refusal.Load() != nil {
		s.closeIfIdle()
	}
	return err
}

func (s *clientSession) exchange(ctx context.Context, p *pending, id uint64, m *Method, req, resp any) *Error {
	if r := s.refusal.Load(); r != nil {
		s.withdraw(p, id)
		return failed(Unavailable, NotExecuted, m, r.why)
	}
	if err := s.request(ctx, p, id, m, req); err != nil {
		s.withdraw(p, id)
		return unsent(ctx, m, err)
	}
	if s.await(ctx, p, id) {
		return conclude(m, &p.outcome, resp)
	}
	// A header without the deadline is that of one too far for it.
	s.cancel(p, id, ctx.Err() == context.DeadlineExceeded && p.header.Arg != 0)
	return interrupted(ctx, MaybeExecuted, m, context.Canceled)
}

// await waits for the outcome of a call; false: ctx has ended it. While the call
// is the only one that waits, it helps to take in what arrives, which saves it
// from being woken.
func (s *clientSession) await(ctx context.Context, p *pending, id uint64) bool {
	alone := s.waiting.Add(1) == 1
	if alone {
		for !p.done.IsSet() && s.lane.Help(&p.done, &s.waiting) && s.waiting.Load() == 1 && ctx.Err() == nil {
		}
	}
	there := p.await(id, ctx.Done())
	if s.waiting.Add(-1) > 0 && alone {
		s.lane.Rouse() // who came meanwhile does not help
	}
	return there
}

// request sends the request. After an error the server never sees it.
func (s *clientSession) request(ctx context.Context, p *pending, id uint64, m *Method, req any) error {
	msg, err := newMessage(m.codec(), req, s.maxMessage)
	if err != nil {
		return err
	}
	p.header = wire.Header{Kind: wire.Call, Flags: wire.End, Call: id, Method: m.id()}
	if m.Idempotent {
		p.header.Flags |= wire.Idempotent
	}
	if msg.size <= s.lane.MaxPayload() {
		if err := s.sendWhole(ctx, p, msg); err != transport.ErrTooWide {
			return err
		}
	}
	return s.lane.SendMade(ctx, &p.header, msg.size, func() (*pool.Buf, error) {
		p.header.Arg = timeLeft(ctx) // it may have waited for its turn
		return msg.encode()
	})
}

// sendWhole sends the request in one frame.
func (s *clientSession) sendWhole(ctx context.Context, p *pending, msg message) error {
	slot, err := msg.reserve(ctx, s.lane)
	if err != nil {
		return err
	}
	p.header.Arg = timeLeft(ctx) // it may have waited for room
	return s.lane.Commit(slot, &p.header)
}

// withdraw ends a call whose request has not left, and drops what ended it first.
func (s *clientSession) withdraw(p *pending, id uint64) {
	if !p.end(id) {
		p.done.Wait()
		release(p.outcome.payload)
	}
}

// unsent is the failure of a call whose request did not leave.
func unsent(ctx context.Context, m *Method, err error) *Error {
	var size *sizeError
	switch {
	case isEncodeError(err):
		return failed(Internal, NotExecuted, m, err)
	case errors.As(err, &size):
		return failed(ResourceExhausted, NotExecuted, m, err)
	}
	return interrupted(ctx, NotExecuted, m, err)
}

// conclude makes the result of a call out of what ended it.
func conclude(m *Method, out *outcome, resp any) *Error {
	switch {
	case out.ended != nil:
		return failed(Unavailable, MaybeExecuted, m, out.ended)
	case out.flags&wire.Error != 0:
		return peerError(out)
	case out.flags&wire.End == 0:
		release(out.payload)
		return failed(Internal, Executed, m, errors.New("reply to a unary call without END"))
	}
	if err := decodeReply(m.codec(), out.payload, resp); err != nil {
		return failed(Internal, Executed, m, fmt.Errorf("decode response: %w", err))
	}
	return nil
}

// decodeReply is decode, but for a codec that panics: the slot of the call would be lost.
func decodeReply(c codec.Codec, payload *pool.Buf, resp any) (err error) {
	returned := false
	defer caught(c, &returned, &err)
	err = decode(c, payload, resp)
	returned = true
	return err
}

// peerError is the error that the server sent.
func peerError(out *outcome) *Error {
	defer release(out.payload)
	e := &Error{Code: Code(out.code), Delivery: Executed, fromPeer: true}
	if out.flags&wire.Unseen != 0 {
		e.Delivery = NotExecuted
	}
	if out.payload != nil {
		text, details, err := wire.ParseFault(out.payload.Bytes())
		if err != nil {
			text = "unreadable error: " + err.Error()
		}
		e.Message = text
		e.Details = append(e.Details, details...)
	}
	if !e.Code.valid() {
		e.Message = fmt.Sprintf("%s: %s", e.Code, e.Message)
		e.Code = Unknown
	}
	return e
}

// timeLeft is the deadline of ctx as CALL carries it: microseconds from now,
// at least 1, or 0 for none. A deadline too far for the field, 71 minutes, is
// left out; the caller's CANCEL then does its work.
func timeLeft(ctx context.Context) uint32 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	left := time.Until(deadline).Microseconds()
	if left > math.MaxUint32 {
		return 0
	}
	return uint32(max(left, 1))
}

func (m *Method) codec() codec.Codec {
	if m.Codec != nil {
		return m.Codec
	}
	return codec.Proto
}

// clientSink is the side of a clientSession that the transport sees.
type clientSink clientSession

// Message takes in a reply.
func (k *clientSink) Message(m transport.Message) {
	s := (*clientSession)(k)
	if m.Kind != wire.Reply {
		release(m.Payload)
		s.session.Close(&unexpectedError{Kind: m.Kind, Want: wire.Reply})
		return
	}
	if m.Flags&wire.Unseen == 0 {
		s.conn.answered()
	}
	p := s.calls.find(m.Call)
	if p == nil || !p.end(m.Call) {
		s.conn.stale.Add(1)
		release(m.Payload)
		return
	}
	p.finish(outcome{flags: m.Flags, code: m.Arg, payload: m.Payload})
}

// GoAway lets calls under way finish and no new ones begin.
func (k *clientSink) GoAway() { (*clientSession)(k).goAway() }

// Ended ends every call that has no outcome yet.
func (k *clientSink) Ended(err error) {
	s := (*clientSession)(k)
	s.refuse(err)
	if s.refusal.Load().why == ErrConnClosed {
		err = ErrConnClosed
	}
	s.calls.chunks.each(func(p *pending) {
		if p.end(p.id.Load()) {
			p.finish(outcome{ended: err})
		}
	})
	s.conn.left(s)
}

// unexpectedError is a frame that this side of a session does not take.
type unexpectedError struct{ Kind, Want wire.Kind }

func (e *unexpectedError) Error() string {
	return fmt.Sprintf("rpc: peer sent %s, expected %s", e.Kind, e.Want)
}
