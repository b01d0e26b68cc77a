package rpc

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/valyala/bytebufferpool"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// arrival is a call that has arrived and waits for its handler.
type arrival struct {
	peer    *peer
	method  *method
	ctx     *callContext
	payload *pool.Buf // the request; nil is empty
}

// size is the bytes of the request.
func (a arrival) size() int {
	if a.payload == nil {
		return 0
	}
	return a.payload.Len()
}

// serverCall serves one call after another, on the goroutine of the worker that
// it belongs to, or on the delivering goroutine for inline handlers.
type serverCall struct {
	arrival             // payload is nil once it is received
	serving bool        // the handler has not returned yet
	counted bool        // it is one of the calls that the client may not have too many of
	settled bool        // it is not in the peer's books, or not any more
	handled int64       // when the handler had returned, as clock tells it; 0: nobody need know, or it failed
	header  wire.Header // of the reply
	bytes   []byte      // the response of UnaryBytes
}

// run serves a call, and returns when its handler had.
func (c *serverCall) run(a arrival) int64 {
	c.arrival, c.counted, c.settled, c.handled = a, !a.method.inline, a.method.inline, 0
	defer c.finish()
	switch err := c.ctx.Err(); err {
	case nil:
		c.serving = true
		err := c.handle()
		c.serving = false
		if err != nil {
			c.fail(err, 0)
		}
	case context.DeadlineExceeded:
		c.fail(failed(DeadlineExceeded, NotExecuted, c.method.Method, err), wire.Unseen)
	default:
		c.peer.server.stats.late.Add(1)
	}
	return c.handled
}

// handle runs the handler. Who runs it may have taken in the call himself, and what
// else arrives waits for him to come back. So the lane is roused before a run that
// may be long.
func (c *serverCall) handle() error {
	m := c.method
	if m.isWary() {
		c.peer.lane.Rouse()
	} else if m.inline || !c.peer.server.workers.oneTask() {
		return m.serve(c) // nobody need know how long that takes
	}
	begun := clock()
	err := m.serve(c)
	ended := c.handled
	if ended == 0 {
		ended = clock()
	}
	m.learn(ended - begun)
	return err
}

func (c *serverCall) finish() {
	if c.serving {
		c.panicked(recover())
	}
	c.settle()
	c.ctx.end()
	release(c.payload)
	c.arrival, c.bytes = arrival{}, nil
}

// answers notes that the handler has returned, before the client can know: then it
// may make another call. A CANCEL still finds this one.
func (c *serverCall) answers() {
	if c.counted {
		c.counted = false
		c.peer.settled.Add(1)
	}
}

// settle notes that the call is answered without further waiting, so that nobody will
// cancel it.
func (c *serverCall) settle() {
	c.answers()
	if !c.settled {
		c.settled = true
		c.peer.calls.remove(c.ctx)
	}
}

// panicked answers a call whose handler panicked with v; nil: it called Goexit.
func (c *serverCall) panicked(v any) {
	c.serving = false
	s := c.peer.server
	s.stats.panics.Add(1)
	s.config.onError(&PanicError{Method: c.method.Name, Value: v, Stack: debug.Stack()})
	c.fail(Errorf(Internal, "handler panicked"), 0)
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

// take is the request as it arrived, with the reference to it. It is called once.
func (c *serverCall) take() *pool.Buf {
	payload := c.payload
	c.payload = nil
	return whole(payload)
}

// borrow is the request as it arrived, until the call is over.
func (c *serverCall) borrow() []byte {
	if c.payload == nil {
		return nil
	}
	return c.payload.Bytes()
}

// send answers with resp. The error is one to answer with instead.
func (c *serverCall) send(resp any) error {
	if !c.method.inline && c.peer.server.workers.oneTask() {
		c.handled = clock()
	}
	c.answers()
	if c.ctx.isCanceled() {
		return context.Canceled
	}
	msg, err := newMessage(c.method.codec, resp, c.peer.maxMessage)
	if err != nil {
		return c.unsendable(err)
	}
	c.header = wire.Header{Kind: wire.Reply, Flags: wire.End, Call: c.ctx.id}
	sent, err := c.sendNow(msg)
	if !sent && err == nil {
		if c.method.inline {
			return c.post(msg)
		}
		err = c.sendLater(msg)
	}
	switch {
	case err == nil:
		return nil
	case isEncodeError(err):
		return c.unsendable(err)
	}
	c.peer.server.stats.late.Add(1) // nobody waits for it
	return nil
}

// sendNow sends the response if it is one frame and there is room for it.
func (c *serverCall) sendNow(msg message) (sent bool, err error) {
	l := c.peer.lane
	if msg.size > l.MaxPayload() {
		return false, nil
	}
	slot, err := msg.reserve(noWait, l)
	switch {
	case err == nil:
		c.settle()
		if err = l.Commit(slot, &c.header); err == transport.ErrTooWide {
			return false, nil
		}
		return true, err
	case isEncodeError(err):
		return false, err
	}
	return false, nil // if the session is over, whoever waits for room hears of it
}

// sendLater sends the response when the peer takes it in.
func (c *serverCall) sendLater(msg message) error {
	buf, err := msg.encode()
	if err != nil {
		return err
	}
	defer buf.Release()
	return c.peer.wait(c.ctx, msg.size, func(ctx context.Context) error {
		return c.peer.lane.SendBuf(ctx, c.header, buf)
	})
}

// post answers from the delivering goroutine, which must not wait.
func (c *serverCall) post(msg message) error {
	if !c.peer.holds(msg.size) {
		return Errorf(ResourceExhausted, "no room for the response: too many wait to be taken in")
	}
	buf, err := msg.encode()
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
	c.answers()
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
	c.header = wire.Header{Kind: wire.Reply, Flags: wire.End | wire.Error | flags, Call: c.ctx.id, Arg: uint32(e.Code)}
	if c.method.inline {
		buf := pool.Get(len(fault))
		copy(buf.Bytes(), fault)
		c.peer.post(&c.header, buf)
		return
	}
	err = c.peer.wait(c.ctx, len(fault), func(ctx context.Context) error {
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
