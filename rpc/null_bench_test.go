package rpc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/rpc/internal/nulllink"
	"github.com/verbena-rpc/verbena/transport"
)

type wordServer interface {
	RepeatBytes(context.Context, []byte) ([]byte, error)
	Repeat(context.Context, *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error)
}

func (echoer) Repeat(_ context.Context, req *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
	return req, nil
}

func (echoer) RepeatBytes(_ context.Context, req []byte) ([]byte, error) { return req, nil }

var (
	repeatMethod = &rpc.Method{Name: "/test.Word/Repeat"}
	bytesMethod  = &rpc.Method{Name: "/test.Word/RepeatBytes", Codec: codec.Raw}
	wordService  = &rpc.ServiceDesc{Name: "test.Word", Methods: []rpc.MethodDesc{
		{Method: repeatMethod, Handler: rpc.Unary(wordServer.Repeat)},
		{Method: bytesMethod, Handler: rpc.UnaryBytes(wordServer.RepeatBytes)},
	}}
)

// overNothing joins a client and a server by a link that costs nothing.
func overNothing(t testing.TB, opts ...rpc.ServerOption) *rpc.Conn {
	t.Helper()
	network := &transport.Network{Carrier: &nulllink.Carrier{}}
	s := rpc.NewServer(network, opts...)
	require.NoError(t, s.Register(echoService, echoer{}))
	require.NoError(t, s.Register(wordService, echoer{}))
	require.NoError(t, s.Listen(""))
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	c, err := rpc.Dial(context.Background(), network, s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		_ = s.Close()
		require.ErrorIs(t, <-served, rpc.ErrServerClosed)
	})
	return c
}

// rawCaller returns what makes one call of 64 bytes after another.
func rawCaller(ctx context.Context, c *rpc.Conn) func() error {
	req, resp := make([]byte, 64), make([]byte, 64)
	return func() error { return rpc.Call(ctx, c, bytesMethod, &req, &resp) }
}

func protoCaller(ctx context.Context, c *rpc.Conn) func() error {
	req := wrapperspb.Bytes(make([]byte, 62))
	return func() error {
		resp := new(wrapperspb.BytesValue)
		return rpc.Call(ctx, c, repeatMethod, req, resp)
	}
}

// BenchmarkNull is the cost of the framework, client and server together.
func BenchmarkNull(b *testing.B) {
	for _, msg := range []struct {
		name   string
		caller func(context.Context, *rpc.Conn) func() error
	}{{"raw", rawCaller}, {"proto", protoCaller}} {
		for _, where := range []string{"worker", "inline"} {
			for _, deadline := range []string{"none", "deadline"} {
				for _, callers := range []int{1, 256} {
					name := fmt.Sprintf("%s/%s/%s/%d", msg.name, where, deadline, callers)
					b.Run(name, func(b *testing.B) {
						var opts []rpc.ServerOption
						if where == "inline" {
							opts = append(opts, rpc.Inline(bytesMethod.Name, repeatMethod.Name))
						}
						c := overNothing(b, opts...)
						ctx := context.Background()
						if deadline == "deadline" {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeout(ctx, time.Hour)
							defer cancel()
						}
						var wg sync.WaitGroup
						b.ReportAllocs()
						b.ResetTimer()
						for i := range callers {
							wg.Go(func() {
								call := msg.caller(ctx, c)
								for range (b.N + i) / callers {
									if err := call(); err != nil {
										b.Error(err)
										return
									}
								}
							})
						}
						wg.Wait()
						b.StopTimer()
						b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
					})
				}
			}
		}
	}
}
