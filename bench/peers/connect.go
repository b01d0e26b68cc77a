package main

import (
	"context"
	"net"
	"net/http"

	"connectrpc.com/connect"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
)

// maxStreams lets all callers share one connection: by default a server takes
// 250 at a time, and the client opens another connection for the rest.
const maxStreams = 1 << 16

func http2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func serveConnect(ready func(net.Addr)) error {
	mux := http.NewServeMux()
	mux.Handle(echoMethod, connect.NewUnaryHandlerSimple(echoMethod, echo.Server{}.Echo))
	server := &http.Server{Handler: mux, Protocols: http2Only(), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams}}
	return serveOn(ready, server.Serve)
}

func dialConnect(_ context.Context, addr string) (conn, error) {
	transport := &http.Transport{Protocols: http2Only()}
	client := connect.NewClient[echo.Payload, echo.Payload](&http.Client{Transport: transport}, "http://"+addr+echoMethod)
	return calls{func(size int) load.Call {
		request := &echo.Payload{Data: make([]byte, size)}
		return func(ctx context.Context) error {
			reply, err := client.CallUnary(ctx, connect.NewRequest(request))
			if err != nil {
				return err
			}
			return echo.Check(reply.Msg.Data, size)
		}
	}, func() error { transport.CloseIdleConnections(); return nil }}, nil
}
