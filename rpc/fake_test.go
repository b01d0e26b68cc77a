package rpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

var errCut = errors.New("link cut")

// fakeEnd is one end of a session without a network: session and lane at once.
// Its goroutine delivers what the other end commits. A test stops that (hold)
// or takes the room away (fill).
type fakeEnd struct {
	maxPayload int
	inbox      chan transport.Message
	held       chan struct{} // deliveries wait while something is in it
	quit       chan struct{} // closed when the session ends
	done       chan struct{}
	other      *fakeEnd
	sink       transport.Sink
	both       *fakeSession
	helped     atomic.Int32  // calls of Help
	roused     atomic.Int32  // calls of Rouse
	narrow     atomic.Int32  // Commit takes no more bytes; 0: whatever was reserved
	narrowed   func()        // called when it does not; nil: nothing
	passed     func()        // called before Send returns; nil: nothing
	lingers    time.Duration // from Ended to Done

	mu        sync.Mutex
	room      chan struct{} // not nil: no room until it is closed
	sent      []wire.Header
	forgotten []uint64
	record    bool
	over      bool // nothing is taken into inbox any more
}

// fakeSession is what both ends share.
type fakeSession struct {
	once sync.Once
	err  error
}

func fakePair(maxPayload int) (client, server *fakeEnd) {
	both := &fakeSession{}
	quit := make(chan struct{})
	end := func() *fakeEnd {
		return &fakeEnd{
			maxPayload: maxPayload, both: both, quit: quit,
			inbox: make(chan transport.Message, 1<<14),
			held:  make(chan struct{}, 1),
			done:  make(chan struct{}),
		}
	}
	client, server = end(), end()
	client.other, server.other = server, client
	return client, server
}

func (e *fakeEnd) start(s transport.Sink) {
	e.sink = s
	go func() {
		defer close(e.done)
		for {
			select {
			case m := <-e.inbox:
				e.held <- struct{}{}
				<-e.held
				e.sink.Message(m)
			case <-e.quit:
				e.mu.Lock()
				e.over = true
				e.mu.Unlock()
				for len(e.inbox) > 0 {
					release((<-e.inbox).Payload)
				}
				e.sink.Ended(e.both.err)
				time.Sleep(e.lingers)
				return
			}
		}
	}()
}

// hold stops deliveries to this end until the returned function is called.
func (e *fakeEnd) hold() (resume func()) {
	e.held <- struct{}{}
	return func() { <-e.held }
}

// fill leaves no room to send from this end until the returned function is called.
func (e *fakeEnd) fill() (drain func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	room := make(chan struct{})
	e.room = room
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.room = nil
		close(room)
	}
}

func (e *fakeEnd) MaxPayload() int { return e.maxPayload }

func (e *fakeEnd) Reserve(ctx context.Context, _ transport.Class, n int) (transport.Slot, error) {
	for {
		select {
		case <-e.quit:
			return transport.Slot{}, e.both.err
		default:
		}
		e.mu.Lock()
		room := e.room
		e.mu.Unlock()
		if room == nil {
			buf := pool.Get(n)
			return transport.Slot{Payload: buf.Bytes(), Ref: buf}, nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return transport.Slot{}, ctx.Err()
		case <-e.quit:
		}
	}
}

func (e *fakeEnd) Commit(s transport.Slot, h *wire.Header) error {
	if n := int(e.narrow.Load()); n > 0 && len(s.Payload) > n {
		e.Discard(s)
		if e.narrowed != nil {
			e.narrowed()
		}
		return transport.ErrTooWide
	}
	return e.pass(s, h)
}

func (e *fakeEnd) pass(s transport.Slot, h *wire.Header) error {
	buf := s.Ref.(*pool.Buf)
	m := transport.Message{Kind: h.Kind, Flags: h.Flags, Call: h.Call, Method: h.Method, Arg: h.Arg, Payload: buf}
	if buf.Len() == 0 {
		buf.Release()
		m.Payload = nil
	}
	if e.record {
		e.mu.Lock()
		e.sent = append(e.sent, *h)
		e.mu.Unlock()
	}
	return e.other.takeIn(m)
}

func (e *fakeEnd) takeIn(m transport.Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		release(m.Payload)
		return e.both.err
	}
	e.inbox <- m
	return nil
}

func (e *fakeEnd) Discard(s transport.Slot) { s.Ref.(*pool.Buf).Release() }

func (e *fakeEnd) Send(ctx context.Context, h wire.Header, msg []byte) error {
	slot, err := e.Reserve(ctx, transport.Bulk, len(msg))
	if err != nil {
		return err
	}
	copy(slot.Payload, msg)
	err = e.pass(slot, &h)
	if e.passed != nil {
		e.passed()
	}
	return err
}

func (e *fakeEnd) SendBuf(ctx context.Context, h wire.Header, msg *pool.Buf) error {
	return e.Send(ctx, h, msg.Bytes())
}

func (e *fakeEnd) SendMade(ctx context.Context, h *wire.Header, _ int, make func() (*pool.Buf, error)) error {
	msg, err := make()
	if err != nil {
		return err
	}
	defer msg.Release()
	return e.SendBuf(ctx, *h, msg)
}

func (e *fakeEnd) Refer(ctx context.Context, class transport.Class, msg *pool.Buf) (transport.Slot, error) {
	slot, err := e.Reserve(ctx, class, msg.Len())
	if err == nil {
		copy(slot.Payload, msg.Bytes())
	}
	return slot, err
}

func (e *fakeEnd) Help(*transport.Signal, *atomic.Int32) bool {
	e.helped.Add(1)
	return false
}

func (e *fakeEnd) Rouse() { e.roused.Add(1) }

func (e *fakeEnd) Forget(call uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgotten = append(e.forgotten, call)
}

func (e *fakeEnd) Limits() transport.Limits { return fakeLimits }

func (e *fakeEnd) Migrate(context.Context, transport.Kind) error { return nil }
func (e *fakeEnd) Reconnect()                                    {}
func (e *fakeEnd) Transport() transport.Info                     { return transport.Info{Kind: transport.TCP} }

func (e *fakeEnd) GoAway() error {
	go e.other.sink.GoAway()
	return nil
}

func (e *fakeEnd) Close(err error) {
	e.both.once.Do(func() {
		if err == nil {
			err = net.ErrClosed
		}
		e.both.err = err
		close(e.quit)
	})
}

func (e *fakeEnd) Done() <-chan struct{} { return e.done }

func (e *fakeEnd) Err() error {
	select {
	case <-e.quit:
		return e.both.err
	default:
		return nil
	}
}

// frames are the headers that left this end.
func (e *fakeEnd) frames() []wire.Header {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]wire.Header(nil), e.sent...)
}

// echoMethod is served by whatever function a test registers as its impl.
var echoMethod = &Method{Name: "/test.Echo/Echo", Codec: codec.Raw}

type echoFunc = func(context.Context, *[]byte) (*[]byte, error)

func echo(_ context.Context, req *[]byte) (*[]byte, error) { return req, nil }

func echoDesc(methods ...*Method) *ServiceDesc {
	d := &ServiceDesc{Name: "test.Echo"}
	for _, m := range methods {
		d.Methods = append(d.Methods, MethodDesc{Method: m, Handler: Unary(func(f echoFunc, ctx context.Context, req *[]byte) (*[]byte, error) {
			return f(ctx, req)
		})})
	}
	return d
}

var fakeLimits = transport.Limits{MaxMessage: 1 << 20, MaxCalls: 1 << 12}

// fakeConn is a Conn with one session, and nobody to dial for another.
func fakeConn(end *fakeEnd) *Conn {
	c := newConn(func(context.Context, *Conn) (*clientSession, error) { return nil, errNobody })
	c.policy = retryPolicy{tries: 2, dials: 1}
	s := newClientSession(c, end, end, fakeLimits)
	c.join(s)
	end.start((*clientSink)(s))
	return c
}

var errNobody = errors.New("nobody there")

// session is that which the Conn of a test was made with.
func (r *rig) session() *clientSession { return (*clientSession)(r.client.sink.(*clientSink)) }

// rig is a client and a server joined by fake ends.
type rig struct {
	conn           *Conn
	server         *Server
	client, remote *fakeEnd
}

// join serves echoMethod by f to one client until the test ends.
func join(t testing.TB, f echoFunc, opts ...ServerOption) *rig {
	t.Helper()
	r := &rig{server: NewServer(nil, opts...)}
	if err := r.server.Register(echoDesc(echoMethod), f); err != nil {
		t.Fatal(err)
	}
	r.client, r.remote = fakePair(4096)
	r.client.record, r.remote.record = true, true
	r.remote.start(r.server.join(r.remote, r.remote, fakeLimits))
	r.conn = fakeConn(r.client)
	t.Cleanup(r.close)
	return r
}

// another joins one more client to the server.
func (r *rig) another(t testing.TB) *rig {
	o := &rig{server: r.server}
	o.client, o.remote = fakePair(4096)
	o.remote.start(o.server.join(o.remote, o.remote, fakeLimits))
	o.conn = fakeConn(o.client)
	t.Cleanup(func() { _ = o.conn.Close() })
	return o
}

func (r *rig) close() {
	_ = r.conn.Close()
	_ = r.server.Close()
}

func (r *rig) echo(ctx context.Context, text string) (string, error) {
	req, resp := []byte(text), []byte(nil)
	err := Call(ctx, r.conn, echoMethod, &req, &resp)
	return string(resp), err
}
