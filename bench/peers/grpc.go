package main

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
)

// Stubs written by hand, as protoc-gen-go-grpc would.

const echoMethod = "/verbena.bench.Echo/Echo"

// echoHandler is what a service of the test has.
type echoHandler interface {
	Echo(context.Context, *echo.Payload) (*echo.Payload, error)
}

var grpcService = grpc.ServiceDesc{
	ServiceName: "verbena.bench.Echo",
	HandlerType: (*echoHandler)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := new(echo.Payload)
			if err := dec(in); err != nil {
				return nil, err
			}
			if interceptor == nil {
				return srv.(echoHandler).Echo(ctx, in)
			}
			info := &grpc.UnaryServerInfo{Server: srv, FullMethod: echoMethod}
			return interceptor(ctx, in, info, func(ctx context.Context, req any) (any, error) {
				return srv.(echoHandler).Echo(ctx, req.(*echo.Payload))
			})
		},
	}},
}

func serveGRPC(ready func(net.Addr)) error {
	server := grpc.NewServer()
	server.RegisterService(&grpcService, echo.Server{})
	return serveOn(ready, server.Serve)
}

func dialGRPC(_ context.Context, addr string) (conn, error) {
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return calls{func(size int) load.Call {
		request := &echo.Payload{Data: make([]byte, size)}
		return func(ctx context.Context) error {
			reply := new(echo.Payload)
			if err := c.Invoke(ctx, echoMethod, request, reply, grpc.StaticMethod()); err != nil {
				return err
			}
			return echo.Check(reply.Data, size)
		}
	}, c.Close}, nil
}
