package main

import (
	"context"
	"errors"
	"net"

	"google.golang.org/protobuf/proto"
	"storj.io/drpc"
	"storj.io/drpc/drpcconn"
	"storj.io/drpc/drpcmux"
	"storj.io/drpc/drpcpool"
	"storj.io/drpc/drpcserver"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
)

// Stubs written by hand, as protoc-gen-go-drpc would.

type drpcEncoding struct{}

func (drpcEncoding) Marshal(msg drpc.Message) ([]byte, error) {
	return proto.Marshal(msg.(proto.Message))
}

func (drpcEncoding) MarshalAppend(buf []byte, msg drpc.Message) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(buf, msg.(proto.Message))
}

func (drpcEncoding) Unmarshal(buf []byte, msg drpc.Message) error {
	return proto.Unmarshal(buf, msg.(proto.Message))
}

type drpcDescription struct{}

func (drpcDescription) NumMethods() int { return 1 }

func (drpcDescription) Method(n int) (string, drpc.Encoding, drpc.Receiver, any, bool) {
	return echoMethod, drpcEncoding{}, func(srv any, ctx context.Context, in1, _ any) (drpc.Message, error) {
		return srv.(echoHandler).Echo(ctx, in1.(*echo.Payload))
	}, echoHandler.Echo, n == 0
}

func serveDRPC(ready func(net.Addr)) error {
	mux := drpcmux.New()
	if err := mux.Register(echo.Server{}, drpcDescription{}); err != nil {
		return err
	}
	server := drpcserver.New(mux)
	return serveOn(ready, func(l net.Listener) error { return server.Serve(context.Background(), l) })
}

func drpcDial(ctx context.Context, addr string) (*drpcconn.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return drpcconn.New(c), nil
}

func dialDRPC(ctx context.Context, addr string) (conn, error) {
	c, err := drpcDial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return drpcCalls(c, c.Close), nil
}

func dialDRPCPool(ctx context.Context, addr string) (conn, error) {
	pool := drpcpool.New[string, drpcpool.Conn](drpcpool.Options{})
	c := pool.Get(ctx, addr, func(ctx context.Context, addr string) (drpcpool.Conn, error) { return drpcDial(ctx, addr) })
	return drpcCalls(c, func() error { return errors.Join(c.Close(), pool.Close()) }), nil
}

func drpcCalls(c drpc.Conn, closer func() error) conn {
	return calls{func(size int) load.Call {
		request := &echo.Payload{Data: make([]byte, size)}
		return func(ctx context.Context) error {
			reply := new(echo.Payload)
			if err := c.Invoke(ctx, echoMethod, drpcEncoding{}, request, reply); err != nil {
				return err
			}
			return echo.Check(reply.Data, size)
		}
	}, closer}
}
