package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

const (
	// slabSize is how many contexts are allocated together, 2 KiB. One is used
	// once only, so that what a handler keeps is never another call's; one
	// allocation for many makes that cheap. A kept context keeps its slab. For
	// as many calls, a session has slabs of firstSlab: many make no more.
	slabSize  = 64
	firstSlab = 8

	// maxOutbox is how many frames wait in an outbox. A peer that sends calls
	// and takes in no replies does not get further.
	maxOutbox = 1024

	// patience is how long a reply waits to be taken in, besides a second for
	// each megabyte of it and of those that wait already: far longer than any
	// peer that works needs.
	patience = time.Minute
)

// errNotReading ends the session of a peer that overruns its outbox, or patience.
var errNotReading = errors.New("rpc: peer sends calls and takes in no replies")

// peer is the server's side of one session: the sink of what arrives, and the
// calls under way.
//
// The session's delivering goroutine runs Message, GoAway and Ended, and must
// not wait. What it sends itself, refusals and replies of inline handlers, goes
// to the outbox if there is no room at once; a goroutine that lives as long as
// the outbox is not empty waits in its place.
type peer struct {
	server  *Server
	session session
	lane    lane

	maxMessage int            // bytes of a message that the client takes in
	maxCalls   int            // calls at once that the client was told it may make
	share      share[arrival] // of the server's workers
	waiting    atomic.Int64   // bytes of replies in wait
	calls      arrived        // that the client may take for its own: not answered, or just now
	settled    atomic.Int64   // calls that were among them, or whose handler has returned

	begun  int64         // calls that were ever among calls; of the delivering goroutine, as are the next three
	made   int           // contexts
	slab   []callContext // of these, to be used
	inline serverCall    // what inline handlers serve

	mu      sync.Mutex
	outbox  fifo[posted]
	unsent  int64 // bytes in the outbox
	sending bool  // a goroutine empties the outbox
	ended   bool
}

// posted is a message that waits in an outbox.
type posted struct {
	header  wire.Header
	payload *pool.Buf
}

// Message takes in a call or a cancel.
func (p *peer) Message(m transport.Message) {
	switch m.Kind {
	case wire.Call:
		p.begin(&m)
	case wire.Cancel:
		release(m.Payload)
		if ctx := p.calls.find(m.Call); ctx != nil {
			ctx.end()
		}
	default:
		release(m.Payload)
		p.session.Close(&unexpectedError{Kind: m.Kind, Want: wire.Call})
	}
}

// GoAway from a client means nothing: servers make no calls.
func (p *peer) GoAway() {}

// Ended ends the contexts of the calls under way.
func (p *peer) Ended(error) {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.calls.each((*callContext).end)
	p.server.leave(p)
}

// errTooManyCalls refuses a call beyond the limit that the client was told. It
// need not be the client's fault: it may not know that handlers of calls which
// it cancelled still run.
var errTooManyCalls = errors.New("more calls under way than the server takes of one session")

func (p *peer) begin(m *transport.Message) {
	s := p.server
	method := s.methods[m.Method]
	switch {
	case method == nil:
		p.refuse(m, Unimplemented, "the server has no such method")
	case m.Flags&wire.End == 0:
		p.refuse(m, Unimplemented, "the server takes no streams")
	case s.draining.Load():
		p.refuse(m, Unavailable, errShuttingDown.Error())
	case p.begun-p.settled.Load() >= int64(p.maxCalls):
		p.refuse(m, ResourceExhausted, errTooManyCalls.Error())
	default:
		p.start(m, method)
	}
}

// start has a handler run for a call. Of inline calls there are no books: nothing
// else of the session arrives while one runs.
func (p *peer) start(m *transport.Message, method *method) {
	ctx := p.newContext(m)
	if method.inline && p.calls.find(m.Call) != nil || !method.inline && !p.calls.add(ctx) {
		release(m.Payload)
		p.session.Close(fmt.Errorf("rpc: peer uses call id %#x twice", m.Call))
		return
	}
	a := arrival{p, method, ctx, m.Payload}
	if method.inline {
		p.server.stats.inline.Add(1)
		p.inline.run(a)
		return
	}
	p.begun++
	if !p.server.workers.submit(&p.share, a) {
		p.settled.Add(1)
		p.calls.remove(ctx)
		ctx.end()
		code, why := ResourceExhausted, "too many calls on the server"
		if p.server.draining.Load() {
			code, why = Unavailable, errShuttingDown.Error()
		}
		p.refuse(m, code, why)
	}
}

func (p *peer) newContext(m *transport.Message) *callContext {
	if len(p.slab) == 0 {
		n := slabSize
		if p.made < slabSize {
			n = firstSlab
		}
		p.slab = make([]callContext, n)
		p.made += n
	}
	c := &p.slab[0]
	p.slab = p.slab[1:]
	c.id = m.Call
	if m.Arg != 0 {
		c.timed = true
		c.deadline = clock() + int64(m.Arg)*int64(time.Microsecond)
	}
	return c
}

// refuse answers a call that no handler has seen.
func (p *peer) refuse(m *transport.Message, code Code, why string) {
	release(m.Payload)
	p.server.stats.refused.Add(1)
	buf := pool.Get(faultSize)
	buf.Resize(len(wire.AppendFault(buf.Bytes()[:0], why, nil)))
	p.post(&wire.Header{Kind: wire.Reply, Flags: wire.End | wire.Error | wire.Unseen, Call: m.Call, Arg: uint32(code)}, buf)
}

// faultSize is enough for the errors that this package itself sends.
const faultSize = 128

// holds says whether the outbox may take in n bytes more.
func (p *peer) holds(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unsent+int64(n) <= p.share.maxBytes
}

// post sends a message, at once or through the outbox. It does not wait.
func (p *peer) post(h *wire.Header, payload *pool.Buf) {
	if payload.Len() <= p.lane.MaxPayload() && sendNow(p.lane, transport.Small, h, payload.Bytes()) == nil {
		payload.Release()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
		payload.Release()
	case p.outbox.len() == maxOutbox:
		payload.Release()
		p.session.Close(errNotReading)
	default:
		p.server.owed.Add(1)
		p.outbox.push(posted{*h, payload})
		p.unsent += int64(payload.Len())
		if !p.sending {
			p.sending = true
			go p.empty()
		}
	}
}

// empty sends what is in the outbox. When the session is over, sending fails
// and so it ends.
func (p *peer) empty() {
	for {
		p.mu.Lock()
		if p.outbox.len() == 0 {
			p.sending = false
			p.mu.Unlock()
			return
		}
		m := p.outbox.pop()
		p.unsent -= int64(m.payload.Len())
		p.mu.Unlock()
		_ = p.wait(context.Background(), m.payload.Len(), func(ctx context.Context) error {
			return p.lane.SendBuf(ctx, m.header, m.payload)
		})
		m.payload.Release()
		if p.server.owed.Add(-1) == 0 {
			p.server.checkDrained()
		}
	}
}

// wait calls send, which sends n bytes, with a bound on how long it waits for
// the peer to take them in. A peer that does not would keep handlers for ever,
// so the session ends then.
func (p *peer) wait(ctx context.Context, n int, send func(context.Context) error) error {
	all := p.waiting.Add(int64(n))
	defer p.waiting.Add(-int64(n))
	bounded, cancel := context.WithTimeout(ctx, patience+time.Duration(all)*time.Microsecond)
	defer cancel()
	err := send(bounded)
	if err != nil && bounded.Err() == context.DeadlineExceeded && ctx.Err() == nil {
		p.session.Close(errNotReading)
	}
	return err
}
