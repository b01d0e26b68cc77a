package rpc

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/valyala/bytebufferpool"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// serverCall is a call on the server, from its arrival until it is answered
// or nobody waits for the answer.
//
// The delivering goroutine fills it in; then it belongs to the goroutine that
// runs it. Only ctx is touched by others: by a CANCEL, the end of the session,
// and the handler and what that started.
type serverCall struct {
	ctx     callContext
	peer    *peer
	method  *method
	id      uint64
	payload *pool.Buf   // the request until it is received; nil is empty
	header  wire.Header // of the reply
}

// size is the bytes of the request.
func (c *serverCall) size() int {
	if c.payload == nil {
		return 0
	}
	return c.payload.Len()
}

// run serves the call. It is the task of a worker.
func (c *serverCall) run() {
	defer c.finish()
	switch err := c.ctx.Err(); err {
	case nil:
		c.serve()
	case context.DeadlineExceeded:
		c.fail(failed(DeadlineExceeded, NotExecuted, c.method.Method, err), wire.Unseen)
	default:
		c.peer.server.stats.late.Add(1)
	}
}

// finish takes the call out of the books.
func (c *serverCall) finish() {
	c.peer.remove(c)
	c.ctx.end()
	release(c.payload)
	c.payload = nil
	c.peer.server.depart()
}

func (c *serverCall) serve() {
	s := c.peer.server
	s.stats.calls.Add(1)
	returned := false
	defer func() {
		if returned {
			return
		}
		s.stats.panics.Add(1)
		// Without a panic, recover gives nil: the handler called Goexit.
		s.config.onError(&PanicError{Method: c.method.Name, Value: recover(), Stack: debug.Stack()})
		c.fail(Errorf(Internal, "handler panicked"), 0)
	}()
	err := c.method.handle.serve(c.method.impl, c)
	returned = true
	if err != nil {
		c.fail(err, 0)
	}
}

// receive decodes the request. It is called once.
func (c *serverCall) receive(req any) error {
	payload := c.payload
	c.payload = nil
	if err := decode(c.method.codec, payload, req); err != nil {
		return Errorf(InvalidArgument, "decode request: %w", err)
	}
	return nil
}

// send answers with resp. The error is one to answer with instead.
func (c *serverCall) send(resp any) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	n, err := sizeOf(c.method.codec, resp, c.peer.maxMessage)
	if err != nil {
		return c.unsendable(err)
	}
	c.header = wire.Header{Kind: wire.Reply, Flags: wire.End, Call: c.id}
	if c.method.inline {
		return c.post(resp, n)
	}
	if err = c.transmit(resp, n); err == nil {
		return nil
	}
	if isEncodeError(err) {
		return c.unsendable(err)
	}
	c.peer.server.stats.late.Add(1) // nobody waits for it
	return nil
}

// transmit sends the response: at once if it is one frame and there is room.
func (c *serverCall) transmit(resp any, n int) error {
	if n <= c.peer.lane.MaxPayload() {
		err := sendMessage(noWait, c.peer.lane, &c.header, c.method.codec, resp, n)
		if err == nil || isEncodeError(err) {
			return err
		}
	}
	buf, err := encode(c.method.codec, resp, n)
	if err != nil {
		return err
	}
	defer buf.Release()
	return c.peer.wait(&c.ctx, n, func(ctx context.Context) error {
		return c.peer.lane.Send(ctx, c.header, buf.Bytes())
	})
}

// post answers from the delivering goroutine, which must not wait.
func (c *serverCall) post(resp any, n int) error {
	if !c.peer.holds(n) {
		return Errorf(ResourceExhausted, "no room for the response: too many wait to be taken in")
	}
	buf, err := encode(c.method.codec, resp, n)
	if err != nil {
		return c.unsendable(err)
	}
	c.peer.post(&c.header, buf)
	return nil
}

// unsendable is what the caller gets for a response that cannot be sent.
func (c *serverCall) unsendable(err error) error {
	code := Internal
	var size *sizeError
	if errors.As(err, &size) {
		code = ResourceExhausted
	}
	e := failed(code, Executed, c.method.Method, err)
	c.peer.server.config.onError(e)
	return e
}

// fail answers with an error, unless the caller has gone.
func (c *serverCall) fail(err error, flags wire.Flags) {
	if c.ctx.Err() == context.Canceled {
		c.peer.server.stats.late.Add(1)
		return
	}
	e := asError(err)
	text, details := cutFault(e, c.peer.maxMessage)
	if c.method.inline && !c.peer.holds(len(details)) {
		details = nil
	}
	scratch := bytebufferpool.Get()
	defer bytebufferpool.Put(scratch)
	scratch.B = wire.AppendFault(scratch.B, text, details)
	fault := scratch.B
	c.header = wire.Header{Kind: wire.Reply, Flags: wire.End | wire.Error | flags, Call: c.id, Arg: uint32(e.Code)}
	if c.method.inline {
		buf := pool.Get(len(fault))
		copy(buf.Bytes(), fault)
		c.peer.post(&c.header, buf)
		return
	}
	err = c.peer.wait(&c.ctx, len(fault), func(ctx context.Context) error {
		return c.peer.lane.Send(ctx, c.header, fault)
	})
	if err != nil {
		c.peer.server.stats.late.Add(1)
	}
}

// cutFault is what of an error fits a message of limit bytes: the text comes
// first, details are whole or not there.
func cutFault(e *Error, limit int) (text string, details []byte) {
	room := max(0, limit-4) // the length of the text
	text = e.Message[:min(len(e.Message), wire.MaxErrorText, room)]
	if len(e.Details) <= room-len(text) {
		details = e.Details
	}
	return text, details
}
