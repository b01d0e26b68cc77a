package main

import (
	"context"
	"net"
	"net/rpc"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
)

// GobPayload is what net/rpc carries.
type GobPayload struct{ Data []byte }

// GobEcho is the service.
type GobEcho struct{}

// Echo returns what it was given.
func (GobEcho) Echo(in *GobPayload, out *GobPayload) error {
	out.Data = in.Data
	return nil
}

func serveNetRPC(ready func(net.Addr)) error {
	server := rpc.NewServer()
	if err := server.RegisterName("Echo", GobEcho{}); err != nil {
		return err
	}
	return serveOn(ready, func(l net.Listener) error { server.Accept(l); return nil })
}

func dialNetRPC(_ context.Context, addr string) (conn, error) {
	client, err := rpc.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return calls{func(size int) load.Call {
		request := &GobPayload{Data: make([]byte, size)}
		return func(context.Context) error {
			var reply GobPayload
			if err := client.Call("Echo.Echo", request, &reply); err != nil {
				return err
			}
			return echo.Check(reply.Data, size)
		}
	}, client.Close}, nil
}
