package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

func TestRegisterRefuses(t *testing.T) {
	s := NewServer(nil)
	require.NoError(t, s.Register(echoDesc(echoMethod), echoFunc(echo)))
	other := &Method{Name: "/test.Echo/Other"}
	for _, c := range []struct {
		name string
		desc *ServiceDesc
		impl any
		want string
	}{
		{"again", echoDesc(other, echoMethod), echoFunc(echo), "registered twice"},
		{"twice in one", echoDesc(other, other), echoFunc(echo), "registered twice"},
		{"wrong type", echoDesc(other), 7, "int does not implement it"},
		{"nil", echoDesc(other), nil, "does not implement it"},
		{"no handler", &ServiceDesc{Name: "s", Methods: []MethodDesc{{Method: other}}}, echoFunc(echo), "has no handler"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e *RegisterError
			require.ErrorAs(t, s.Register(c.desc, c.impl), &e)
			require.Contains(t, e.Error(), c.want)
			require.Len(t, s.methods, 1, "a refused service left methods behind")
		})
	}
	// No two names with one XXH64 are at hand, so one is made.
	s.methods[wire.MethodID(other.Name)] = s.methods[wire.MethodID(echoMethod.Name)]
	err := s.Register(echoDesc(other), echoFunc(echo))
	require.ErrorContains(t, err, "has the method id")

	require.NoError(t, s.Close())
	require.ErrorContains(t, s.Register(echoDesc(&Method{Name: "/a.B/C"}), echoFunc(echo)), "listens already")
	require.ErrorIs(t, s.Listen("x"), ErrServerClosed)
	require.ErrorIs(t, s.Serve(), ErrServerClosed)
}

func TestListenRefusesOptions(t *testing.T) {
	require.ErrorContains(t, NewServer(nil, MaxHandlers(0, 1)).Listen("x"), "MaxHandlers")
	require.ErrorContains(t, NewServer(nil, MaxHandlers(1, -1)).Listen("x"), "MaxHandlers")
	require.ErrorContains(t, NewServer(nil, Inline("/a.B/C")).Listen("x"), "/a.B/C")
}

func TestHandlerErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code Code
		text string
	}{
		{&Error{Code: NotFound, Message: "no block 7"}, NotFound, "no block 7"},
		{fmt.Errorf("open: %w", Errorf(Aborted, "lost to %d", 3)), Aborted, "lost to 3"},
		{DataLoss, DataLoss, "data loss"},
		{context.Canceled, Canceled, "context canceled"},
		{fmt.Errorf("disk: %w", context.DeadlineExceeded), DeadlineExceeded, "disk: context deadline exceeded"},
		{errors.New("plain"), Unknown, "plain"},
		{&Error{Code: 0, Message: "no code"}, Unknown, "rpc: code 0: no code (maybe executed)"},
		{&Error{Code: 17, Message: "no such code"}, Unknown, "rpc: code 17: no such code (maybe executed)"},
		{&Error{Code: NotFound, Message: "\xffbad\xff"}, NotFound, "bad"},
		{&Error{Code: NotFound, Delivery: NotExecuted, Message: strings.Repeat("x", 5000)}, NotFound, strings.Repeat("x", 4096)},
		{&Error{Code: NotFound, Message: "big", Details: make([]byte, fakeLimits.MaxMessage)}, NotFound, "big"},
	} {
		for _, inline := range []bool{false, true} {
			t.Run(fmt.Sprintf("%.30s/%v", c.err, inline), func(t *testing.T) {
				pooltest.Check(t)
				var opts []ServerOption
				if inline {
					opts = append(opts, Inline(echoMethod.Name))
				}
				r := join(t, func(context.Context, *[]byte) (*[]byte, error) { return nil, c.err }, opts...)
				_, err := r.echo(t.Context(), "x")
				e := requireError(t, err, c.code, Executed)
				require.Equal(t, c.text, e.Message)
				require.True(t, e.FromPeer())
			})
		}
	}
}

func TestDetailsReachTheCaller(t *testing.T) {
	pooltest.Check(t)
	r := join(t, func(context.Context, *[]byte) (*[]byte, error) {
		return nil, &Error{Code: NotFound, Message: "m", Details: []byte{1, 0, 2}}
	})
	_, err := r.echo(t.Context(), "x")
	require.Equal(t, []byte{1, 0, 2}, requireError(t, err, NotFound, Executed).Details)
}

func TestHandlerDies(t *testing.T) {
	for name, die := range map[string]func(){
		"panic":     func() { panic("at the disco") },
		"nil":       func() { panic(nil) },
		"index":     func() { var none []int; none[0]++ },
		"goexit":    runtime.Goexit,
		"bad error": func() { panic(errors.New("x")) },
	} {
		for _, inline := range []bool{false, true} {
			if inline && name == "goexit" {
				continue // would end the transport's goroutine, as documented
			}
			t.Run(fmt.Sprint(name, inline), func(t *testing.T) {
				pooltest.Check(t)
				hooked := make(chan error, 1)
				opts := []ServerOption{OnError(func(err error) { hooked <- err }), MaxHandlers(1, 8)}
				if inline {
					opts = append(opts, Inline(echoMethod.Name))
				}
				r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
					if string(*req) == "die" {
						die()
					}
					return req, nil
				}, opts...)
				_, err := r.echo(t.Context(), "die")
				requireError(t, err, Internal, Executed)
				var p *PanicError
				require.ErrorAs(t, <-hooked, &p)
				require.Contains(t, string(p.Stack), "TestHandlerDies")
				got, err := r.echo(t.Context(), "live")
				require.NoError(t, err)
				require.Equal(t, "live", got)
				require.EqualValues(t, 1, r.server.Stats().Panics)
			})
		}
	}
}

func TestHandlerReturnsNothing(t *testing.T) {
	pooltest.Check(t)
	r := join(t, func(context.Context, *[]byte) (*[]byte, error) { return nil, nil })
	_, err := r.echo(t.Context(), "x")
	requireError(t, err, Internal, Executed)
}

func TestUnknownMethod(t *testing.T) {
	pooltest.Check(t)
	r := join(t, echo)
	req, resp := []byte("x"), []byte(nil)
	err := Call(t.Context(), r.conn, &Method{Name: "/test.Echo/None", Codec: codec.Raw}, &req, &resp)
	require.True(t, requireError(t, err, Unimplemented, NotExecuted).FromPeer())
	require.EqualValues(t, 1, r.server.Stats().Refused)
}

// Case 80: a handler counts until it returns, however often calls are cancelled.
func TestLimitHoldsUnderCancel(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(100 * time.Millisecond)
			return req, nil
		}, MaxHandlers(4, 16))
		r.client.record = false
		var refused, gone atomic.Int32
		for range 2000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := r.echo(ctx, "x")
			cancel()
			switch CodeOf(err) {
			case DeadlineExceeded:
				gone.Add(1)
			case ResourceExhausted:
				requireError(t, err, ResourceExhausted, NotExecuted)
				refused.Add(1)
				time.Sleep(time.Millisecond)
			default:
				t.Fatal(err)
			}
		}
		require.LessOrEqual(t, most.Load(), int32(4))
		require.Positive(t, refused.Load())
		require.Positive(t, gone.Load())
		time.Sleep(time.Second)
		_, err := r.echo(t.Context(), "x")
		require.NoError(t, err)
	})
}

// A client that has its answer may make another call at once, however long it takes
// until the server is done with the first.
func TestAnsweredCallsDoNotCount(t *testing.T) {
	large := make([]byte, 8<<10) // more than MaxPayload
	for name, f := range map[string]echoFunc{
		"error": func(context.Context, *[]byte) (*[]byte, error) { return nil, Errorf(NotFound, "none") },
		"large": func(context.Context, *[]byte) (*[]byte, error) { return &large, nil },
	} {
		t.Run(name, func(t *testing.T) {
			pooltest.Check(t)
			synctest.Test(t, func(t *testing.T) {
				r := join(t, f)
				r.remote.sink.(*peer).maxCalls = 1
				r.remote.passed = func() { time.Sleep(time.Second) }
				for range 3 {
					if _, err := r.echo(t.Context(), "x"); err != nil {
						require.Equal(t, NotFound, CodeOf(err), err)
					}
				}
				time.Sleep(5 * time.Second)
			})
		})
	}
}

// Case 81: the server's own clock ends a handler's context, though no CANCEL comes.
func TestDeadlineIsEnforcedOnTheServer(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		ran := make(chan time.Duration, 1)
		r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
			start := time.Now()
			<-ctx.Done()
			ran <- time.Since(start)
			time.Sleep(time.Millisecond) // the caller goes first
			return nil, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		go func() {
			time.Sleep(time.Millisecond)
			defer r.client.fill()() // no CANCEL gets through
			time.Sleep(300 * time.Millisecond)
		}()
		_, err := r.echo(ctx, "x")
		requireError(t, err, DeadlineExceeded, MaybeExecuted)
		require.LessOrEqual(t, <-ran, 200*time.Millisecond)
		time.Sleep(time.Second)
		for _, h := range r.client.frames() {
			require.Equal(t, wire.Call, h.Kind)
		}
	})
}

// A call whose time ran out in the queue is not run.
func TestQueuedTooLong(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		var ran atomic.Int32
		r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			ran.Add(1)
			time.Sleep(time.Second)
			return req, nil
		}, MaxHandlers(1, 8))
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := r.echo(t.Context(), "x")
			require.NoError(t, err)
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := r.echo(ctx, "x")
		requireError(t, err, DeadlineExceeded, MaybeExecuted)
		wg.Wait()
		synctest.Wait()
		require.EqualValues(t, 1, ran.Load())
		require.Zero(t, r.server.Stats().InFlight)
	})
}

func TestShutdownIsGraceful(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			time.Sleep(time.Second)
			return req, nil
		})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				got, err := r.echo(t.Context(), "x")
				require.NoError(t, err)
				require.Equal(t, "x", got)
			})
		}
		synctest.Wait()
		wg.Go(func() { require.NoError(t, r.server.Shutdown(t.Context())) })
		synctest.Wait()
		sent := len(r.client.frames())
		_, err := r.echo(t.Context(), "late")
		requireError(t, err, Unavailable, NotExecuted)
		require.Len(t, r.client.frames(), sent, "a call was sent after GOAWAY")
		wg.Wait()
		<-r.client.Done()
	})
}

// Shutdown closes a session only when its client has taken in the replies.
func TestShutdownWaitsForClients(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			time.Sleep(time.Millisecond)
			return req, nil
		})
		resume := r.client.hold()
		var wg sync.WaitGroup
		for range 3 { // all but one of the replies wait at the client
			wg.Go(func() {
				_, err := r.echo(t.Context(), "x")
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		wg.Go(func() { require.NoError(t, r.server.Shutdown(t.Context())) })
		time.Sleep(farewell / 2)
		resume()
		wg.Wait()
	})
}

// A client that stays although it was told to go is cut off.
func TestShutdownOfClientThatStays(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(nil)
		client, remote := fakePair(4096)
		remote.start(s.join(remote, remote, fakeLimits))
		client.start(sinkFunc(func(m transport.Message) { release(m.Payload) }))
		start := time.Now()
		require.NoError(t, s.Shutdown(t.Context()))
		require.Equal(t, farewell, time.Since(start))
		<-client.Done()
		require.ErrorIs(t, client.Err(), ErrServerClosed)
	})
}

// A call that crosses the GOAWAY is refused unseen.
func TestCallAfterShutdownIsRefusedUnseen(t *testing.T) {
	pooltest.Check(t)
	r := join(t, echo)
	r.server.draining.Store(true)
	_, err := r.echo(t.Context(), "x")
	requireError(t, err, Unavailable, NotExecuted)
	require.EqualValues(t, 1, r.conn.Stats().Retries)
}

func TestShutdownIsBoundedByItsContext(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
			<-ctx.Done()
			return req, nil
		})
		failed := make(chan error, 1)
		go func() {
			_, err := r.echo(t.Context(), "x")
			failed <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, r.server.Shutdown(ctx), context.DeadlineExceeded)
		requireError(t, <-failed, Unavailable, MaybeExecuted)
	})
}
