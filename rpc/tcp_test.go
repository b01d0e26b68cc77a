package rpc_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

type echoServer interface {
	Echo(context.Context, *[]byte) (*[]byte, error)
}

// echoer echoes; a request "wait" waits until its context ends.
type echoer struct{}

func (echoer) Echo(ctx context.Context, req *[]byte) (*[]byte, error) {
	if string(*req) == "wait" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return req, nil
}

var (
	echoMethod  = &rpc.Method{Name: "/test.Echo/Echo", Codec: codec.Raw}
	echoService = &rpc.ServiceDesc{Name: "test.Echo", Methods: []rpc.MethodDesc{
		{Method: echoMethod, Handler: rpc.Unary(echoServer.Echo)},
	}}
)

func tcpNetwork() *transport.Network { return &transport.Network{Carrier: &tcp.Carrier{}} }

func listen(t testing.TB, opts ...rpc.ServerOption) *rpc.Server {
	t.Helper()
	return listenAt(t, "127.0.0.1:0", opts...)
}

func listenAt(t testing.TB, addr string, opts ...rpc.ServerOption) *rpc.Server {
	t.Helper()
	return listenOn(t, tcpNetwork(), addr, opts...)
}

func listenOn(t testing.TB, n *transport.Network, addr string, opts ...rpc.ServerOption) *rpc.Server {
	t.Helper()
	return serve(t, n, addr, echoService, echoer{}, opts...)
}

func serve(t testing.TB, n *transport.Network, addr string, service *rpc.ServiceDesc, impl any, opts ...rpc.ServerOption) *rpc.Server {
	t.Helper()
	s := rpc.NewServer(n, opts...)
	require.NoError(t, s.Register(service, impl))
	require.NoError(t, s.Listen(addr))
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		_ = s.Close()
		require.ErrorIs(t, <-served, rpc.ErrServerClosed)
	})
	return s
}

func dial(t testing.TB, addr string) *rpc.Conn {
	t.Helper()
	return dialOn(t, tcpNetwork(), addr)
}

func dialOn(t testing.TB, n *transport.Network, addr string) *rpc.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := rpc.Dial(ctx, n, addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func echo(ctx context.Context, c *rpc.Conn, text string) (string, error) {
	req, resp := []byte(text), []byte(nil)
	err := rpc.Call(ctx, c, echoMethod, &req, &resp)
	return string(resp), err
}

func TestTCPCalls(t *testing.T) {
	pooltest.Check(t)
	c := dial(t, listen(t).Addr().String())
	require.Equal(t, transport.TCP, c.Transport().Kind)
	require.NotEmpty(t, c.Transport().Reason)
	for _, n := range []int{0, 1, 64, 4096, 64 << 10, 1 << 20, 5<<20 + 1} {
		text := strings.Repeat("x", n)
		got, err := echo(t.Context(), c, text)
		require.NoError(t, err)
		require.True(t, text == got)
	}
}

// A lone caller reads the socket himself, and gives up in time all the same.
func TestTCPLoneCallerGivesUp(t *testing.T) {
	c := dial(t, listen(t).Addr().String())
	for range 20 {
		for range 50 {
			_, err := echo(t.Context(), c, "x")
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err := echo(ctx, c, "wait")
		cancel()
		require.Equal(t, rpc.DeadlineExceeded, rpc.CodeOf(err))
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		_, err = echo(ctx, c, "wait")
		require.Equal(t, rpc.Canceled, rpc.CodeOf(err))
	}
}

// Lone callers of several sessions with one server, whose workers go from socket
// to socket, are all answered.
func TestTCPLoneCallersOfManySessions(t *testing.T) {
	s := listen(t)
	var wg sync.WaitGroup
	for i := range 4 {
		c := dial(t, s.Addr().String())
		wg.Go(func() {
			for k := range 1000 {
				text := fmt.Sprintf("%d/%d", i, k)
				if got, err := echo(t.Context(), c, text); err != nil || got != text {
					t.Errorf("caller %d call %d: %q, %v", i, k, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestTCPManyCallers(t *testing.T) {
	pooltest.Check(t)
	s := listen(t)
	var wg sync.WaitGroup
	for i := range 3 {
		c := dial(t, s.Addr().String())
		for j := range 16 {
			wg.Go(func() {
				for k := range 30 {
					text := strings.Repeat(fmt.Sprintf("%d/%d/%d;", i, j, k), 1+(k%7)*(k%11)*200)
					got, err := echo(t.Context(), c, text)
					if err != nil || got != text {
						t.Errorf("caller %d/%d call %d: %d bytes, %v", i, j, k, len(got), err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

// Case 70: calls that are abandoned leave nothing behind.
//
// The pool is not watched here, which would slow it down tenfold; the other
// tests do that.
func TestTCPAbandonedCalls(t *testing.T) {
	s := listen(t, rpc.MaxHandlers(64, 64))
	c := dial(t, s.Addr().String())
	_, err := echo(t.Context(), c, "x")
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	n := 100_000
	if testing.Short() {
		n = 5_000
	}
	var wg sync.WaitGroup
	const callers = 32
	for range callers {
		wg.Go(func() {
			for i := range n / callers {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%5)*10*time.Microsecond)
				if got, err := echo(ctx, c, "wait"); err == nil {
					t.Errorf("call that waits returned %q", got)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Zero(t, c.Stats().Active)
	// Calls that are still on their way may fill the server for a moment.
	require.Eventually(t, func() bool {
		got, err := echo(t.Context(), c, "y")
		return err == nil && got == "y"
	}, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return s.Stats().InFlight == 0 }, 10*time.Second, time.Millisecond)
	// The workers that served them may stay for a while.
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+64 }, 20*time.Second, 10*time.Millisecond)
}

// failer fails with the error that the request asks for by its length.
type failer struct{}

func (failer) Echo(_ context.Context, req *[]byte) (*[]byte, error) {
	n := len(*req)
	return nil, &rpc.Error{Code: rpc.NotFound, Message: strings.Repeat("m", n), Details: make([]byte, n)}
}

// An error reaches a client of the smallest limit, cut to what it takes in.
func TestErrorsFitTheClient(t *testing.T) {
	const limit = 4096
	s := rpc.NewServer(tcpNetwork())
	require.NoError(t, s.Register(echoService, failer{}))
	require.NoError(t, s.Listen("127.0.0.1:0"))
	go s.Serve()
	defer s.Close()
	network := tcpNetwork()
	network.Config.MaxMessage = limit
	c, err := rpc.Dial(t.Context(), network, s.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	for _, n := range []int{0, 1, limit/2 - 2, limit/2 - 1, limit - 5, limit - 4, limit - 3, limit, 2 * limit} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		req, resp := make([]byte, n), []byte(nil)
		err := rpc.Call(ctx, c, echoMethod, &req, &resp)
		cancel()
		var e *rpc.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, rpc.NotFound, e.Code, "%d bytes: %v", n, err)
		require.Len(t, e.Message, min(n, limit-4))
		if 4+2*n <= limit {
			require.Len(t, e.Details, n)
		} else {
			require.Empty(t, e.Details)
		}
	}
}

func TestDialFails(t *testing.T) {
	pooltest.Check(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	silent := l.Addr().String()
	defer l.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = rpc.Dial(ctx, tcpNetwork(), silent)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	require.NoError(t, l.Close())
	_, err = rpc.Dial(t.Context(), tcpNetwork(), silent)
	var e *rpc.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, rpc.Unavailable, e.Code)
	require.Equal(t, rpc.NotExecuted, e.Delivery)
	var setup *transport.SetupError
	require.ErrorAs(t, err, &setup)
}

func TestTCPShutdown(t *testing.T) {
	pooltest.Check(t)
	s := listen(t)
	c := dial(t, s.Addr().String())
	waiting := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := echo(ctx, c, "wait")
		waiting <- err
	}()
	require.Eventually(t, func() bool { return s.Stats().Calls == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.Shutdown(t.Context()))
	require.ErrorIs(t, <-waiting, rpc.DeadlineExceeded)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := echo(ctx, c, "x")
	var e *rpc.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, rpc.NotExecuted, e.Delivery)
}

// A server that restarts at its address loses no call: those under way finish,
// the others wait for the new one (case 74).
func TestTCPServerRestarts(t *testing.T) {
	pooltest.Check(t)
	s := listen(t)
	addr := s.Addr().String()
	c := dial(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				text := fmt.Sprintf("%d/%d", i, n)
				if got, err := echo(ctx, c, text); err != nil || got != text {
					t.Errorf("call %s: %q, %v", text, got, err)
					return
				}
			}
		})
	}
	for range 3 {
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, s.Shutdown(ctx))
		time.Sleep(20 * time.Millisecond)
		s = listenAt(t, addr)
	}
	time.Sleep(20 * time.Millisecond)
	close(stop)
	wg.Wait()
}

const serveEnv = "VERBENA_RPC_TEST_SERVE"

// TestServerProcess is not a test: it is the server of TestServerKilled.
func TestServerProcess(t *testing.T) {
	if os.Getenv(serveEnv) == "" {
		t.Skip("run by TestServerKilled in a process of its own")
	}
	s := listen(t)
	fmt.Println("listening", s.Addr())
	time.Sleep(time.Minute)
}

// A server that is killed leaves its callers with errors at once, and nothing
// else behind.
func TestServerKilled(t *testing.T) {
	pooltest.Check(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerProcess$")
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var addr string
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscanf(line, "listening %s", &addr)
	require.NoError(t, err, line)

	c := dial(t, addr)
	_, err = echo(t.Context(), c, "x")
	require.NoError(t, err)
	errs := make(chan error, 16)
	for range cap(errs) {
		go func() {
			_, err := echo(context.Background(), c, "wait")
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { return c.Stats().Active == 16 }, 10*time.Second, time.Millisecond)
	require.NoError(t, cmd.Process.Kill())
	for range cap(errs) {
		var e *rpc.Error
		require.ErrorAs(t, <-errs, &e)
		require.Equal(t, rpc.Unavailable, e.Code)
	}
}
