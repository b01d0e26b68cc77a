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
// and as soon as its context ends. Once it has returned, nothing of the
// framework or of a device touches the request or the response. If it failed,
// Error.Delivery says whether a handler has seen it.
package rpc

import (
	"context"

	"github.com/verbena-rpc/verbena/codec"
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

// Handler serves the calls of one method. Unary makes it.
type Handler struct {
	accepts func(impl any) bool
	serve   func(impl any, c *serverCall) error
}

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
func Unary[S, Req, Resp any](serve func(S, context.Context, *Req) (*Resp, error)) Handler {
	return Handler{
		accepts: func(impl any) bool { _, ok := impl.(S); return ok },
		serve: func(impl any, c *serverCall) error {
			req := new(Req)
			if err := c.receive(req); err != nil {
				return err
			}
			resp, err := serve(impl.(S), &c.ctx, req)
			if err != nil {
				return err
			}
			if resp == nil {
				return Errorf(Internal, "handler returned neither a response nor an error")
			}
			return c.send(resp)
		},
	}
}

// Call makes one unary call: it sends req, waits, and decodes the response
// into resp. Both are what the method's codec takes. The error is nil or an
// *Error; resp is valid only if it is nil.
//
// The time left until the deadline of ctx goes to the server, whose handler's
// context ends then too. When ctx ends, Call returns at once, whatever the
// peer does; the server is told as soon as there is room to tell it.
func Call(ctx context.Context, conn *Conn, method *Method, req, resp any) error {
	return conn.call(ctx, method, req, resp)
}
