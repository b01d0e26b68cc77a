//go:build linux

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
)

// Calls outlive their QP: while RoCE packets are dropped and TCP lives, they
// go on over TCP, none fails, each runs once, and they come back to RDMA. The
// last time the cable is cut, for 2 s and under TCP too.
func TestCallsOutliveQP(t *testing.T) {
	host, local, err := rdmaPorts()
	if err != nil || os.Getuid() != 0 {
		t.Skip("skipped: two RDMA ports and root are needed: ", err)
	}
	if os.Getenv("VERBENA_VM") == "" {
		t.Skip("skipped: it drops packets, and so runs in the test VM alone")
	}
	serverNetwork := newNetwork("", rdma.Config{})
	server := serve(t, serverNetwork, host.String())
	network := newNetwork(local.String(), rdma.Config{})
	network.Config.ReturnAfter, network.Config.RetryAfter = time.Second, time.Second
	defer network.Fabric.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	conn, err := rpc.Dial(ctx, network, server.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.Equal(t, transport.RDMA, conn.Transport().Kind, conn.Transport().Reason)

	executions.Clear()
	var calls, slowest atomic.Int64
	stop := make(chan struct{})
	var callers sync.WaitGroup
	var unwell sync.Once
	for i := range uint64(32) {
		callers.Go(func() {
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				msg := pattern(int(i+n), 8+int(n*331%20000))
				binary.LittleEndian.PutUint64(msg, i<<32|n)
				began := time.Now()
				if err := countOnce(ctx, conn, msg); ctx.Err() != nil {
					return
				} else if err != nil {
					unwell.Do(func() {
						t.Errorf("caller %d, call %d: %v%s", i, n, err, wireState())
						cancel() // what is awaited will not come
					})
					return
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
				calls.Add(1)
			}
		})
	}
	defer callers.Wait()
	defer cancel()
	const rounds = 3
	for round := range rounds + 1 {
		time.Sleep(time.Second)
		moves := conn.Transport().Moves
		if round == rounds {
			cutCable(t)
		} else {
			dropRoCE(t, func() {
				await(t, ctx, "the lane leaves the dead QPs", func() bool { // by way of the one that stands by, if nothing is kept
					info := conn.Transport()
					return info.Moves > moves && info.Kind == transport.TCP
				})
				before := calls.Load()
				time.Sleep(2 * time.Second)
				require.Greater(t, calls.Load(), before+32, "calls stand still on TCP")
			})
		}
		await(t, ctx, "the lane comes back", func() bool { return conn.Transport().Kind == transport.RDMA })
		info := conn.Transport()
		t.Logf("round %d: %d calls so far, %d moves, %d frames sent again, slowest call %v",
			round, calls.Load(), info.Moves, info.Retention.Resent, time.Duration(slowest.Swap(0)))
	}
	close(stop)
	callers.Wait()
	require.GreaterOrEqual(t, conn.Transport().Moves, 2*rounds)
	ran := int64(0)
	executions.Range(func(id, n any) bool {
		ran++
		require.EqualValues(t, 1, n.(*atomic.Int64).Load(), "call %#x ran more than once", id)
		return true
	})
	require.Equal(t, calls.Load(), ran)
}

// executions count how often each call of countMethod ran.
var executions sync.Map // of uint64 to *atomic.Int64

func (handlers) count(_ context.Context, in *[]byte) (*[]byte, error) {
	n, _ := executions.LoadOrStore(binary.LittleEndian.Uint64(*in), new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	return in, nil
}

func countOnce(ctx context.Context, conn *rpc.Conn, msg []byte) error {
	var reply []byte
	if err := rpc.Call(ctx, conn, countMethod, &msg, &reply); err != nil {
		return err
	}
	if string(reply) != string(msg) {
		return fmt.Errorf("sent %d bytes, other %d came back", len(msg), len(reply))
	}
	return nil
}

func await(t *testing.T, ctx context.Context, what string, is func() bool) {
	t.Helper()
	for !is() {
		if ctx.Err() != nil {
			t.Log(wireState())
			require.NoError(t, ctx.Err(), what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
