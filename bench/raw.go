package main

import (
	"context"
	"fmt"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/rpc"
)

// The same work without protobuf, written by hand as a stub would be.
var (
	rawEcho    = &rpc.Method{Name: "/verbena.bench.Raw/Echo", Idempotent: true, Codec: codec.Raw}
	rawService = &rpc.ServiceDesc{
		Name:    "verbena.bench.Raw",
		Methods: []rpc.MethodDesc{{Method: rawEcho, Handler: rpc.Unary(echoServer.RawEcho)}},
	}
)

// RawEcho returns the bytes it was given.
func (echoServer) RawEcho(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil }

// rawCall returns a call that reuses its two buffers.
func (c *client) rawCall(size int) load.Call {
	request, reply := make([]byte, size), make([]byte, 0, size)
	return func(ctx context.Context) error {
		err := rpc.Call(ctx, c.conn, rawEcho, &request, &reply)
		if err == nil && len(reply) != size {
			err = fmt.Errorf("sent %d bytes, got %d back", size, len(reply))
		}
		return err
	}
}
