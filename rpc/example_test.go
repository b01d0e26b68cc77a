package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// exampleServer serves the example service at an address of its own.
func exampleServer(network *transport.Network) *rpc.Server {
	server := rpc.NewServer(network)
	if err := server.Register(upperService, upper{}); err != nil {
		log.Fatal(err)
	}
	if err := server.Listen("127.0.0.1:0"); err != nil {
		log.Fatal(err)
	}
	go server.Serve()
	return server
}

// A service written by hand: what protoc-gen-go-verbena generates is the same
// with messages of a .proto file.
type upper struct{}

func (upper) First(_ context.Context, req *[]byte) (*[]byte, error) {
	if len(*req) == 0 {
		return nil, rpc.Errorf(rpc.InvalidArgument, "no text")
	}
	first := (*req)[:1]
	return &first, nil
}

func (upper) Wait(ctx context.Context, _ *[]byte) (*[]byte, error) {
	<-ctx.Done() // ends when the caller's context does
	return nil, ctx.Err()
}

var (
	firstMethod  = &rpc.Method{Name: "/example.Upper/First", Idempotent: true, Codec: codec.Raw}
	waitMethod   = &rpc.Method{Name: "/example.Upper/Wait", Codec: codec.Raw}
	upperService = &rpc.ServiceDesc{
		Name: "example.Upper",
		Methods: []rpc.MethodDesc{
			{Method: firstMethod, Handler: rpc.Unary(upper.First)},
			{Method: waitMethod, Handler: rpc.Unary(upper.Wait)},
		},
	}
)

func ExampleCall() {
	network := &transport.Network{Carrier: &tcp.Carrier{}}
	server := exampleServer(network)
	defer server.Close()

	conn, err := rpc.Dial(context.Background(), network, server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	req, resp := []byte("verbena"), []byte(nil)
	if err := rpc.Call(context.Background(), conn, firstMethod, &req, &resp); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s over %v\n", resp, conn.Transport().Kind)
	// Output: v over tcp
}

// blocks serves blocks from the memory that they are in.
type blocks struct{ block *pool.Buf }

func (b blocks) Read(_ context.Context, _ *pool.Buf) (*pool.Buf, error) {
	b.block.Retain() // for this response
	return b.block, nil
}

var readMethod = &rpc.Method{Name: "/example.Blocks/Read", Idempotent: true, Codec: codec.Raw}

// Large messages need not be copied: a pool.Buf is sent from where it is, and the
// caller gets the one that the response came in.
func ExampleUnary_buffers() {
	network := &transport.Network{Carrier: &tcp.Carrier{}}
	server := rpc.NewServer(network)
	err := server.Register(&rpc.ServiceDesc{
		Name:    "example.Blocks",
		Methods: []rpc.MethodDesc{{Method: readMethod, Handler: rpc.Unary(blocks.Read)}},
	}, blocks{pool.Get(1 << 20)})
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Listen("127.0.0.1:0"); err != nil {
		log.Fatal(err)
	}
	go server.Serve()
	defer server.Close()
	conn, err := rpc.Dial(context.Background(), network, server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	var block *pool.Buf
	if err := rpc.Call(context.Background(), conn, readMethod, []byte("7"), &block); err != nil {
		log.Fatal(err)
	}
	defer block.Release()
	fmt.Println(block.Len(), "bytes")
	// Output: 1048576 bytes
}

// An error says what was wrong and whether a handler has seen the call.
func ExampleError() {
	network := &transport.Network{Carrier: &tcp.Carrier{}}
	server := exampleServer(network)
	defer server.Close()
	conn, err := rpc.Dial(context.Background(), network, server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	var req, resp []byte
	err = rpc.Call(context.Background(), conn, firstMethod, &req, &resp)
	fmt.Println(errors.Is(err, rpc.InvalidArgument))
	var e *rpc.Error
	if errors.As(err, &e) {
		fmt.Println(e.Message, "/", e.Delivery, "/", e.FromPeer())
	}

	err = rpc.Call(context.Background(), conn, &rpc.Method{Name: "/example.Upper/Last", Codec: codec.Raw}, &req, &resp)
	if errors.As(err, &e) {
		fmt.Println(e.Code, "/", e.Delivery)
	}
	// Output:
	// true
	// no text / executed / true
	// unimplemented / not executed
}

// A call ends when its context does, and so does the context of its handler.
func ExampleCall_deadline() {
	network := &transport.Network{Carrier: &tcp.Carrier{}}
	server := exampleServer(network)
	defer server.Close()
	conn, err := rpc.Dial(context.Background(), network, server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	var req, resp []byte
	err = rpc.Call(ctx, conn, waitMethod, &req, &resp)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

// Shutdown lets calls under way finish.
func ExampleServer_Shutdown() {
	network := &transport.Network{Carrier: &tcp.Carrier{}}
	server := rpc.NewServer(network, rpc.MaxHandlers(256, 1024))
	if err := server.Register(upperService, upper{}); err != nil {
		log.Fatal(err)
	}
	if err := server.Listen("127.0.0.1:0"); err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve() }()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	fmt.Println(server.Shutdown(ctx))
	fmt.Println(<-served)
	// Output:
	// <nil>
	// rpc: server closed
}
