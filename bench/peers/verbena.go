package main

import (
	"context"
	"net"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

func network() *transport.Network { return &transport.Network{Carrier: &tcp.Carrier{}} }

func serveVerbena(ready func(net.Addr)) error {
	server := rpc.NewServer(network())
	if err := (echo.Server{}).Register(server); err != nil {
		return err
	}
	if err := server.Listen("127.0.0.1:0"); err != nil {
		return err
	}
	ready(server.Addr())
	return server.Serve()
}

func dialVerbena(ctx context.Context, addr string) (conn, error) {
	c, err := rpc.Dial(ctx, network(), addr)
	if err != nil {
		return nil, err
	}
	stub := echo.NewEchoClient(c)
	return calls{func(size int) load.Call { return echo.NewCall(stub, size) }, c.Close}, nil
}

func dialVerbenaRaw(ctx context.Context, addr string) (conn, error) {
	c, err := rpc.Dial(ctx, network(), addr)
	if err != nil {
		return nil, err
	}
	return calls{func(size int) load.Call { return echo.NewRawCall(c, size) }, c.Close}, nil
}
