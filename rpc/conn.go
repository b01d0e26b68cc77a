package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// ErrConnClosed is the cause of errors of calls on a Conn that this side closed.
var ErrConnClosed = errors.New("connection closed by this side")

// errGoingAway is why calls are refused after the server has begun to shut down.
var errGoingAway = errors.New("server takes no new calls, it is shutting down")

// Conn is a session with a server, on which any number of goroutines make
// calls. It lasts until it is closed, the server goes away, or the session
// fails; then every call on it fails with Unavailable, and the user dials anew.
//
// A call runs on its caller's goroutine alone; the transport's goroutine only
// hands it the reply.
type Conn struct {
	session    session
	lane       lane
	maxMessage int   // bytes of a message that the server takes in
	maxCalls   int64 // calls at once that the server takes in
	calls      table
	cancels    cancels

	// active counts calls that may still use a slot. It is raised before
	// refusal is read and refusal is set before active is read, so that of a
	// new call and a GOAWAY at least one sees the other.
	active  atomic.Int64
	refusal atomic.Pointer[refusal] // not nil: no new calls

	stale atomic.Uint64
}

// refusal is why a Conn makes no more calls.
type refusal struct{ why error }

// ConnStats count what a Conn did.
type ConnStats struct {
	Active int64  // calls under way now
	Stale  uint64 // replies to calls that had ended, dropped
}

// Dial makes a session with the server at addr, over the best that both sides
// have; Conn.Transport says what that is. ctx bounds the set-up, not the
// session. The error is an *Error with code Unavailable, or that of ctx; it
// unwraps to what the network said.
func Dial(ctx context.Context, network *transport.Network, addr string) (*Conn, error) {
	var c *Conn
	_, err := network.Dial(ctx, addr, func(s *transport.Session) transport.Sink {
		c = newConn(s, s.Lane(), s.PeerLimits())
		return (*connSink)(c)
	})
	if err != nil {
		return nil, dialError(ctx, err)
	}
	return c, nil
}

func newConn(s session, l lane, peer transport.Limits) *Conn {
	return &Conn{session: s, lane: l, maxMessage: peer.MaxMessage, maxCalls: int64(peer.MaxCalls)}
}

// Transport says what carries the calls now, and why not something faster.
func (c *Conn) Transport() transport.Info { return c.session.Transport() }

// Stats may be called at any time.
func (c *Conn) Stats() ConnStats {
	return ConnStats{Active: c.active.Load(), Stale: c.stale.Load()}
}

// Done is closed when the session is over and all it held is released.
func (c *Conn) Done() <-chan struct{} { return c.session.Done() }

// Close ends the session and waits until all it held is released. Calls under
// way fail with Unavailable. Any goroutine may call it, any number of times.
func (c *Conn) Close() error {
	c.refuse(ErrConnClosed)
	c.session.Close(nil)
	<-c.session.Done()
	return nil
}

// refuse lets no new calls begin; the first reason stays.
func (c *Conn) refuse(why error) { c.refusal.CompareAndSwap(nil, &refusal{why}) }

func (c *Conn) call(ctx context.Context, m *Method, req, resp any) error {
	if err := ctx.Err(); err != nil {
		return interrupted(ctx, NotExecuted, m, err)
	}
	p, id, err := c.begin(m)
	if err != nil {
		return err
	}
	out, err := c.exchange(ctx, p, id, m, req)
	c.calls.give(p)
	c.leave()
	if err != nil {
		return err
	}
	return conclude(m, out, resp)
}

// begin takes a slot for a call.
func (c *Conn) begin(m *Method) (*pending, uint64, error) {
	n := c.active.Add(1)
	var p *pending
	var id uint64
	if n <= c.maxCalls {
		p, id = c.calls.take()
	}
	if p == nil {
		c.leave()
		return nil, 0, failed(ResourceExhausted, NotExecuted, m, fmt.Errorf("%d calls are under way, no more are taken at once", n-1))
	}
	if r := c.refusal.Load(); r != nil {
		c.withdraw(p, id)
		c.calls.give(p)
		c.leave()
		return nil, 0, failed(Unavailable, NotExecuted, m, r.why)
	}
	return p, id, nil
}

// leave ends what begin began. After a GOAWAY the last call to leave closes
// the session, for which the server waits.
func (c *Conn) leave() {
	if c.active.Add(-1) == 0 && c.refusal.Load() != nil {
		c.session.Close(nil)
	}
}

// exchange sends the request and waits for what ends the call. Either way
// nobody else uses p when it returns.
func (c *Conn) exchange(ctx context.Context, p *pending, id uint64, m *Method, req any) (outcome, error) {
	if err := c.request(ctx, p, id, m, req); err != nil {
		c.withdraw(p, id)
		return outcome{}, unsent(ctx, m, err)
	}
	select {
	case out := <-p.done:
		return out, nil
	case <-ctx.Done():
	}
	if !p.end(id) {
		return <-p.done, nil // it is on its way
	}
	// A header without the deadline is that of one too far for it.
	c.cancel(p, id, ctx.Err() == context.DeadlineExceeded && p.header.Arg != 0)
	return outcome{}, interrupted(ctx, MaybeExecuted, m, context.Canceled)
}

// request sends the request. After an error the server never sees it.
func (c *Conn) request(ctx context.Context, p *pending, id uint64, m *Method, req any) error {
	cod := m.codec()
	n, err := sizeOf(cod, req, c.maxMessage)
	if err != nil {
		return err
	}
	p.header = wire.Header{
		Kind:   wire.Call,
		Flags:  wire.End,
		Call:   id,
		Method: wire.MethodID(m.Name),
		Arg:    timeLeft(ctx),
	}
	if m.Idempotent {
		p.header.Flags |= wire.Idempotent
	}
	return sendMessage(ctx, c.lane, &p.header, cod, req, n)
}

// withdraw ends a call whose request has not left, and drops what ended it first.
func (c *Conn) withdraw(p *pending, id uint64) {
	if !p.end(id) {
		release((<-p.done).payload)
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
func conclude(m *Method, out outcome, resp any) error {
	switch {
	case out.ended != nil:
		return failed(Unavailable, MaybeExecuted, m, out.ended)
	case out.flags&wire.Error != 0:
		return peerError(out)
	case out.flags&wire.End == 0:
		release(out.payload)
		return failed(Internal, Executed, m, errors.New("reply to a unary call without END"))
	}
	if err := decode(m.codec(), out.payload, resp); err != nil {
		return failed(Internal, Executed, m, fmt.Errorf("decode response: %w", err))
	}
	return nil
}

// peerError is the error that the server sent.
func peerError(out outcome) *Error {
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

// connSink is the side of a Conn that its session sees.
type connSink Conn

// Message takes in a reply.
func (s *connSink) Message(m transport.Message) {
	if m.Kind != wire.Reply {
		release(m.Payload)
		s.session.Close(&unexpectedError{Kind: m.Kind, Want: wire.Reply})
		return
	}
	p := s.calls.find(m.Call)
	if p == nil || !p.end(m.Call) {
		s.stale.Add(1)
		release(m.Payload)
		return
	}
	p.done <- outcome{flags: m.Flags, code: m.Arg, payload: m.Payload}
}

// GoAway lets calls under way finish and no new ones begin.
func (s *connSink) GoAway() {
	c := (*Conn)(s)
	c.refuse(errGoingAway)
	if c.active.Load() == 0 {
		c.session.Close(nil)
	}
}

// Ended ends every call that has no outcome yet.
func (s *connSink) Ended(err error) {
	c := (*Conn)(s)
	c.refuse(err)
	if c.refusal.Load().why == ErrConnClosed {
		err = ErrConnClosed
	}
	c.calls.each(func(p *pending) {
		if p.end(p.id.Load()) {
			p.done <- outcome{ended: err}
		}
	})
}

// unexpectedError is a frame that this side of a session does not take.
type unexpectedError struct{ Kind, Want wire.Kind }

func (e *unexpectedError) Error() string {
	return fmt.Sprintf("rpc: peer sent %s, expected %s", e.Kind, e.Want)
}
