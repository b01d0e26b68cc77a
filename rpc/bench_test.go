package rpc_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/rpc"
)

// BenchmarkTCP makes 64-byte calls over loopback: allocations are those of
// both sides together.
func BenchmarkTCP(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for _, where := range []string{"worker", "inline"} {
			b.Run(where+"/"+map[int]string{1: "1", 64: "64"}[callers], func(b *testing.B) {
				var opts []rpc.ServerOption
				if where == "inline" {
					opts = append(opts, rpc.Inline(echoMethod.Name))
				}
				c := dial(b, listen(b, opts...).Addr().String())
				b.ReportAllocs()
				var wg sync.WaitGroup
				b.ResetTimer()
				for i := range callers {
					wg.Go(func() {
						req, resp := make([]byte, 64), make([]byte, 64)
						for range (b.N + i) / callers {
							if err := rpc.Call(context.Background(), c, echoMethod, &req, &resp); err != nil {
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

// A unary call allocates at most 4 objects on each side, the messages included.
// This echo has two of its own, the request and its bytes on the server; the
// framework has one for many calls.
func TestTCPAllocations(t *testing.T) {
	c := dial(t, listen(t).Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, resp := make([]byte, 64), make([]byte, 64)
	n := testing.AllocsPerRun(2000, func() {
		if err := rpc.Call(ctx, c, echoMethod, &req, &resp); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%v objects per call on both sides", n)
	most := 4.0
	if pooltest.Forgets() {
		most = 8
	}
	require.LessOrEqual(t, n, most)
}
