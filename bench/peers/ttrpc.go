package main

import (
	"context"
	"net"

	"github.com/containerd/ttrpc"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
)

func serveTTRPC(ready func(net.Addr)) error {
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.RegisterService("verbena.bench.Echo", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Echo": func(ctx context.Context, unmarshal func(any) error) (any, error) {
			var in echo.Payload
			if err := unmarshal(&in); err != nil {
				return nil, err
			}
			return echo.Server{}.Echo(ctx, &in)
		},
	}})
	return serveOn(ready, func(l net.Listener) error { return server.Serve(context.Background(), l) })
}

func dialTTRPC(ctx context.Context, addr string) (conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	client := ttrpc.NewClient(c)
	return calls{func(size int) load.Call {
		request := &echo.Payload{Data: make([]byte, size)}
		return func(ctx context.Context) error {
			var reply echo.Payload
			if err := client.Call(ctx, "verbena.bench.Echo", "Echo", request, &reply); err != nil {
				return err
			}
			return echo.Check(reply.Data, size)
		}
	}, client.Close}, nil
}
