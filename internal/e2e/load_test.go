//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Many callers with messages of every size over small rings: each gets its own
// bytes back, and the devices have counted not one RNR (cases 20, 22, 47).
func TestLoadWithoutRNR(t *testing.T) {
	for _, w := range worlds(t) {
		t.Run(w.kind.String(), func(t *testing.T) {
			small := rdma.Config{SQDepth: 32, RQDepth: 16, SlotSize: 1024, Strict: true}
			server := serve(t, newNetwork("", small), w.server)
			network := newNetwork(w.client, small)
			defer network.Fabric.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			conn, err := rpc.Dial(ctx, network, server.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			requireKind(t, w, conn.Transport())

			before := rnrCounters(t)
			// A frame of these rings holds so much payload.
			const frame = 1024 - wire.HeaderSize - wire.SumSize
			sizes := []int{0, 1, 64, 960, frame - 1, frame, frame + 1, 4096, 65536, 300_000}
			var callers sync.WaitGroup
			for i := range 128 {
				callers.Go(func() {
					for n := range 8 {
						size := sizes[(i+n)%len(sizes)]
						if err := echo(ctx, conn, pattern(i*8+n, size)); err != nil {
							t.Errorf("caller %d, %d bytes: %v", i, size, err)
							return
						}
					}
				})
			}
			callers.Wait()
			require.Equal(t, before, rnrCounters(t), "the devices counted RNRs")
			require.Equal(t, w.kind, conn.Transport().Kind)
			if w.kind == transport.RDMA {
				require.Zero(t, network.Fabric.(*rdma.Fabric).Stats().RNR)
				require.NotZero(t, conn.Transport().Link.Stats.CreditStalls, "the window was never full: this proved nothing")
			}
		})
	}
}

// rnrCounters are the devices' own counts of receivers that were not ready.
func rnrCounters(t *testing.T) map[string]int {
	t.Helper()
	counters := map[string]int{}
	for _, name := range []string{"rcvd_rnr_err", "send_rnr_err", "rnr_nak_retry_err", "out_of_buffer"} {
		paths, err := filepath.Glob("/sys/class/infiniband/*/ports/*/hw_counters/" + name)
		require.NoError(t, err)
		for _, path := range paths {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			n, err := strconv.Atoi(strings.TrimSpace(string(b)))
			require.NoError(t, err, fmt.Sprintf("%s holds %q", path, b))
			counters[path] = n
		}
	}
	return counters
}
