package rpc_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// pipes is a carrier of one listener whose connections are pipes, for tests in
// virtual time.
type pipes chan net.Conn

func (p pipes) Dial(context.Context, string) (transport.Link, error) {
	a, b := net.Pipe()
	p <- b
	return tcp.Client(a)
}

func (p pipes) Listen(string) (transport.Listener, error) { return p, nil }
func (p pipes) Addr() net.Addr                            { return &net.UnixAddr{Name: "pipes"} }
func (p pipes) Close() error                              { close(p); return nil }
func (p pipes) Accept() (transport.Link, error) {
	if c, ok := <-p; ok {
		return tcp.Server(c)
	}
	return nil, net.ErrClosed
}

var sleepMethod = &rpc.Method{Name: "/test.Echo/Sleep", Codec: codec.Raw}

// sleeper sleeps for as long as the request says.
type sleeper struct{}

func (sleeper) Echo(_ context.Context, req *[]byte) (*[]byte, error) {
	d, err := time.ParseDuration(string(*req))
	time.Sleep(d)
	return req, err
}

// rested has run called with two methods that sleep, over TCP and in virtual time;
// settle has the readers of both sides rest for a lone caller and a lone worker.
func rested(t *testing.T, run func(t *testing.T, s *rpc.Server, call func(m *rpc.Method, takes string) time.Duration, settle func())) {
	synctest.Test(t, func(t *testing.T) {
		n := &transport.Network{Carrier: make(pipes, 1)}
		s := rpc.NewServer(n)
		require.NoError(t, s.Register(&rpc.ServiceDesc{Name: "test.Echo", Methods: []rpc.MethodDesc{
			{Method: echoMethod, Handler: rpc.Unary(echoServer.Echo)},
			{Method: sleepMethod, Handler: rpc.Unary(echoServer.Echo)},
		}}, sleeper{}))
		require.NoError(t, s.Listen(""))
		served := make(chan error, 1)
		go func() { served <- s.Serve() }()
		c, err := rpc.Dial(t.Context(), n, "")
		require.NoError(t, err)
		call := func(m *rpc.Method, takes string) time.Duration {
			start := time.Now()
			req, resp := []byte(takes), []byte(nil)
			require.NoError(t, rpc.Call(t.Context(), c, m, &req, &resp))
			return time.Since(start)
		}
		run(t, s, call, func() {
			for range 2000 { // the longer they come, the longer the rests
				call(echoMethod, "20us")
				time.Sleep(100 * time.Microsecond)
			}
		})
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-served, rpc.ErrServerClosed)
		synctest.Wait()
	})
}

// mostRest is how long nobody reads the socket of a lone caller or worker who has
// gone elsewhere.
const mostRest = 10 * time.Millisecond

// A call is not kept waiting by the handler of the one before, whose worker would
// have read the socket next; but for the first that is slow after quick ones, and
// that not for long.
func TestTCPSlowHandlerKeepsNobodyWaiting(t *testing.T) {
	rested(t, func(t *testing.T, _ *rpc.Server, call func(*rpc.Method, string) time.Duration, settle func()) {
		during := func() (second time.Duration) {
			settle()
			slow := make(chan time.Duration)
			go func() { slow <- call(sleepMethod, "1s") }()
			time.Sleep(time.Millisecond)
			second = call(echoMethod, "0s")
			require.LessOrEqual(t, <-slow, time.Second+mostRest)
			return second
		}
		require.LessOrEqual(t, during(), 2*mostRest, "nobody could know")
		for range 5 {
			require.Zero(t, during())
		}
	})
}

// A server whose clients rest drains no later for that.
func TestTCPShutdownOfLoneCaller(t *testing.T) {
	rested(t, func(t *testing.T, s *rpc.Server, _ func(*rpc.Method, string) time.Duration, settle func()) {
		settle()
		start := time.Now()
		require.NoError(t, s.Shutdown(t.Context()))
		require.LessOrEqual(t, time.Since(start), 2*mostRest)
	})
}

// Nor does a message wait that is larger than what is sent ahead of acknowledgements.
func TestTCPLargeCallOfLoneCaller(t *testing.T) {
	rested(t, func(t *testing.T, _ *rpc.Server, call func(*rpc.Method, string) time.Duration, settle func()) {
		settle()
		require.Zero(t, call(echoMethod, strings.Repeat("0", 20<<20)+"s"))
	})
}
