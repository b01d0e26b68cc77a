// Package rpc makes calls between processes.
//
// A client dials a Conn and calls methods on it; a Server listens, and runs a
// handler for each call:
//
//	network := &transport.Network{Carrier: &tcp.Carrier{}, Fabric: rdma.New(rdma.Config{})}
//
//	server := rpc.NewServer(network)
//	err := RegisterEchoServer(server, echo{})  // generated
//	err = server.Listen(":7400")
//	err = server.Serve()
//
//	conn, err := rpc.Dial(ctx, network, "host:7400")
//	reply, err := NewEchoClient(conn).Echo(ctx, &EchoRequest{})  // generated
//
// The stubs come from protoc-gen-go-verbena. They are tables over what this
// page declares, so that calls are as easily written by hand.
//
// What a call is promised: it ends exactly once, with a result or one *Error,
// and as soon as its context ends. It outlives the session that carries it
// where it surely was not executed, or may be twice; see Call. Once it has
// returned, nothing of the framework or of a device touches the request or the
// response, unless that is a pool.Buf, which whoever needs it holds by reference.
// If it failed, Error.Delivery says whether a handler has seen it.
package rpc

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// SupportStubsV1 is referred to by generated stubs. A runtime that is older
// than the generator lacks the constant, and the stubs do not compile.
const SupportStubsV1 = true

// Method says to both sides what a method is. It must not change once it is used.
type Method struct {
	// Name is the full name, "/pkg.Service/Method". Calls carry its 64-bit hash.
	Name string

	// Idempotent methods may be executed more than once for one call.
	Idempotent bool

	// Codec encodes requests and responses; nil is codec.Proto.
	Codec codec.Codec

	hash uint64 // of Name, once it was used; 0 before. Accessed atomically.
}

// id is the hash that calls carry.
func (m *Method) id() uint64 {
	if id := atomic.LoadUint64(&m.hash); id != 0 {
		return id
	}
	id := wire.MethodID(m.Name)
	atomic.StoreUint64(&m.hash, id)
	return id
}

// MethodDesc is a method and what serves it.
type MethodDesc struct {
	Method  *Method
	Handler Handler
}

// ServiceDesc is a service as a server registers it.
type ServiceDesc struct {
	Name    string // "pkg.Service"
	Methods []MethodDesc
}

// Handler serves the calls of one method. Unary and UnaryBytes make it.
type Handler struct {
	// bind makes what serves calls by impl; the error says why impl or the
	// codec cannot be had.
	bind func(impl any, c codec.Codec) (serveFunc, error)
}

// serveFunc receives the request of a call and sends the response. The error is
// what to answer instead.
type serveFunc func(c *serverCall) error

// Unary is the handler of a method with one request and one response. serve
// is a method expression of the service's interface, so that a table needs no
// function for each method:
//
//	{Method: echoMethod, Handler: rpc.Unary(EchoServer.Echo)}
//
// The request belongs to serve. The response is read before the call ends, and
// not afterwards. The context ends with the call: at its deadline, when the
// caller cancels or is gone, and when serve returns. An error from serve
// reaches the caller as an *Error: with its own code if it is one, Canceled or
// DeadlineExceeded if it comes from a context, else Unknown.
//
// Where Req is pool.Buf serve gets the request as it arrived, of any codec, lent until it
// returns; Retain keeps it longer. Where Resp is pool.Buf the response is encoded already,
// and comes with a reference that is released when it is no longer needed; nobody may
// change it any more. The request may be the response as it is. Large ones are not
// copied where the transport is TCP.
func Unary[S, Req, Resp any](serve func(S, context.Context, *Req) (*Resp, error)) Handler {
	_, arrived := any((*Req)(nil)).(*pool.Buf)
	_, encoded := any((*Resp)(nil)).(*pool.Buf)
	return Handler{bind: func(impl any, _ codec.Codec) (serveFunc, error) {
		to, ok := impl.(S)
		if !ok {
			return nil, fmt.Errorf("%T does not implement it", impl)
		}
		return func(c *serverCall) error {
			var req *Req
			if arrived {
				buf := c.take()
				defer buf.Release()
				req = any(buf).(*Req)
			} else {
				req = new(Req)
				if err := c.receive(req); err != nil {
					return err
				}
			}
			resp, err := serve(to, c.ctx, req)
			if encoded && resp != nil && any(resp) != any(req) {
				defer any(resp).(*pool.Buf).Release()
			}
			switch {
			case err != nil:
				return err
			case resp == nil:
				return Errorf(Internal, "handler returned neither a response nor an error")
			}
			return c.send(resp)
		}, nil
	}}
}

// UnaryBytes is the handler of a method whose codec is codec.Raw, for those who
// count allocations: it makes none. serve is as for Unary, but the request is
// lent to it until it returns, and so is what refers to it. The response may
// be, or be part of, the request; it is read at once.
func UnaryBytes[S any](serve func(S, context.Context, []byte) ([]byte, error)) Handler {
	return Handler{bind: func(impl any, cod codec.Codec) (serveFunc, error) {
		to, ok := impl.(S)
		switch {
		case !ok:
			return nil, fmt.Errorf("%T does not implement it", impl)
		case cod != codec.Raw:
			return nil, fmt.Errorf("UnaryBytes needs codec.Raw, not %s", cod.Name())
		}
		return func(c *serverCall) (err error) {
			c.bytes, err = serve(to, c.ctx, c.borrow())
			if err != nil {
				return err
			}
			return c.send(&c.bytes)
		}, nil
	}}
}

// Call makes one unary call: it sends req, waits, and decodes the response
// into resp. Both are what the method's codec takes. The error is nil or an
// *Error; resp is valid only if it is nil.
//
// With any codec, req may also be a *pool.Buf that has the encoded request, and resp a
// **pool.Buf that is set to the encoded response, with a reference for the caller to
// release. Large ones are not copied then where the transport is TCP. The caller keeps its
// reference to req, whose bytes nobody may change any more, not even after Call: others
// may hold it until the peer has said that it took the request in.
//
// The time left until the deadline of ctx goes to the server, whose handler's
// context ends then too. When ctx ends, Call returns at once, whatever the
// peer does, or within 10 ms over TCP where it is the only one of the session,
// which reads the socket itself; the server is told as soon as there is room to
// tell it.
//
// A call that fails as Unavailable and NotExecuted, because the server is
// shutting down, the session ended before the request left or there is none,
// is made again on another session, at most 5 times in all. If it may have been
// executed that is done for Idempotent methods only. Call waits for the new
// session until ctx is done, or, while no server answers, until the tenth dial
// in a row or a later one has failed: 5 s on average.
func Call(ctx context.Context, conn *Conn, method *Method, req, resp any) error {
	return conn.call(ctx, method, req, resp)
}
