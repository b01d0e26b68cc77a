package transport_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
)

// counting is a service that counts how often each call ran.
type counting struct {
	mu  sync.Mutex
	ran map[uint64]int
}

var countMethod = &rpc.Method{Name: "/transport.Test/Count", Codec: codec.Raw}

func (c *counting) count(_ context.Context, in *[]byte) (*[]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ran[binary.LittleEndian.Uint64(*in)]++
	return in, nil
}

func (c *counting) serve(t *testing.T, n *transport.Network) (addr string) {
	t.Helper()
	c.ran = map[uint64]int{}
	s := rpc.NewServer(n)
	require.NoError(t, s.Register(&rpc.ServiceDesc{Name: "transport.Test", Methods: []rpc.MethodDesc{
		{Method: countMethod, Handler: rpc.Unary(func(c *counting, ctx context.Context, in *[]byte) (*[]byte, error) { return c.count(ctx, in) })},
	}}, c))
	require.NoError(t, s.Listen("127.0.0.1:0"))
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		s.Close()
		require.ErrorIs(t, within(t, served), rpc.ErrServerClosed)
	})
	return s.Addr().String()
}

// seed is that of the environment, or a new one.
func seed(t *testing.T) uint64 {
	n := rand.Uint64()
	if s := os.Getenv("SEED"); s != "" {
		var err error
		n, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SEED=%d", n)
	return n
}

// TestCallsOutliveLinks: 32 callers with messages of all sizes while the fast
// link dies at random moments, again and again, on either side. Each call is
// answered, with its own bytes, and each ran once.
func TestCallsOutliveLinks(t *testing.T) {
	n := seed(t)
	for round := range uint64(4) {
		t.Run(strconv.FormatUint(round, 10), func(t *testing.T) {
			sizes := []int{8, 9, 100, 4000, 64 << 10, 64<<10 + 1, 150_000}
			if round == 0 {
				pooltest.Check(t) // too slow for many bytes
				sizes = sizes[:3]
			}
			synctest.Test(t, func(t *testing.T) { callsOutliveLinks(t, rand.New(rand.NewPCG(n, round)), sizes) })
		})
	}
}

func callsOutliveLinks(t *testing.T, rng *rand.Rand, sizes []int) {
	m := newMemory()
	fc, fs := &fabric{}, &fabric{}
	cn, sn := networkOf(m, fc), networkOf(m, fs)
	cn.Config.ReturnAfter, cn.Config.RetryAfter = 10*time.Millisecond, 10*time.Millisecond
	var service counting
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	conn, err := rpc.Dial(ctx, cn, service.serve(t, sn))
	require.NoError(t, err)
	defer conn.Close()

	stop := make(chan struct{})
	var callers sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range uint64(32) {
		own := rand.New(rand.NewPCG(rng.Uint64(), i))
		callers.Go(func() {
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := countOnce(ctx, conn, i<<32|n, sizes[own.IntN(len(sizes))]); err != nil {
					t.Errorf("caller %d, call %d: %v", i, n, err)
					return
				}
				mu.Lock()
				made++
				mu.Unlock()
				// In virtual time nothing else takes any.
				time.Sleep(time.Duration(own.IntN(50_000)) * time.Microsecond)
			}
		})
	}
	// Links die under a frame, for virtual time passes only while nothing moves.
	for range 20 {
		[]*fabric{fc, fs}[rng.IntN(2)].fuse.Store(rng.Int64N(150))
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	}
	fc.fuse.Store(0)
	fs.fuse.Store(0)
	close(stop)
	callers.Wait()
	time.Sleep(15 * time.Minute) // longer than any pause
	require.NoError(t, countOnce(ctx, conn, 1<<63, 8))
	made++

	info := conn.Transport()
	require.Equal(t, transport.RDMA, info.Kind, info.Reason)
	require.Greater(t, info.Moves, 4, "the lane has hardly moved: this proved nothing")
	require.NotZero(t, info.Retention.Resent, "nothing was under way when a link died")
	require.Len(t, service.ran, made)
	for id, n := range service.ran {
		require.Equal(t, 1, n, "call %#x", id)
	}
	require.LessOrEqual(t, info.Retention.Frames, 64+32)
	t.Logf("%d calls, %d moves, %d frames sent again", made, info.Moves, info.Retention.Resent)
}

func countOnce(ctx context.Context, conn *rpc.Conn, id uint64, size int) error {
	msg := make([]byte, size)
	for i := range msg {
		msg[i] = byte(id + uint64(i)>>3)
	}
	binary.LittleEndian.PutUint64(msg, id)
	var reply []byte
	if err := rpc.Call(ctx, conn, countMethod, &msg, &reply); err != nil {
		return err
	}
	if string(reply) != string(msg) {
		return fmt.Errorf("sent %d bytes, other %d came back", len(msg), len(reply))
	}
	return nil
}

// TestLinkAndControlDie: where the control link is gone too, calls go on over a
// new one; and end where there is none (case 65).
func TestLinkAndControlDie(t *testing.T) {
	for _, name := range []string{"server lives", "server is gone"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				fc := &fabric{}
				c, s := connectOver(t, networkOf(m, fc), networkOf(m, &fabric{}))
				exchange(t, c, s)
				if name == "server is gone" {
					m.refuses.Store(true)
				}
				fc.kill(errTest)
				m.cut()
				if name == "server lives" {
					exchange(t, c, s)
					require.Equal(t, 1, c.Transport().Resumes)
					require.Equal(t, 1, s.Transport().Resumes)
					time.Sleep(time.Minute)
					require.Equal(t, transport.RDMA, c.Transport().Kind, c.Transport().Reason)
					exchange(t, c, s)
					return
				}
				start := time.Now()
				require.Error(t, within(t, c.sink.ended))
				require.Error(t, within(t, s.sink.ended))
				require.LessOrEqual(t, time.Since(start), 4*time.Second)
				within(t, c.Done())
				within(t, s.Done())
				require.False(t, errors.Is(c.Err(), context.DeadlineExceeded))
			})
		})
	}
}

// TestOperators: Migrate and Reconnect of a Conn, under calls.
func TestOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var service counting
		conn, err := rpc.Dial(t.Context(), networkOf(m, &fabric{}), service.serve(t, networkOf(m, &fabric{})))
		require.NoError(t, err)
		defer conn.Close()
		id := uint64(0)
		for _, to := range []transport.Kind{transport.TCP, transport.RDMA} {
			for range 50 {
				go conn.Reconnect()
				id++
				require.NoError(t, countOnce(t.Context(), conn, id, 100))
			}
			require.NoError(t, conn.Migrate(t.Context(), to))
			require.Equal(t, to, conn.Transport().Kind)
		}
		for id, n := range service.ran {
			require.Equal(t, 1, n, "call %d", id)
		}
	})
}
