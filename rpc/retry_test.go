package rpc

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool/pooltest"
)

// address is where one server after another listens, or none.
type address struct {
	mu     sync.Mutex
	server *Server // nil: refuses
	silent bool    // dials hang
	dials  []time.Time
	ends   []*fakeEnd // of the clients, one for each session
}

// listen has whoever dials from now on reach s.
func (a *address) listen(s *Server) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = s
}

func (a *address) dial(ctx context.Context, c *Conn) (*clientSession, error) {
	a.mu.Lock()
	a.dials = append(a.dials, time.Now())
	s, silent := a.server, a.silent
	a.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s == nil {
		return nil, errNobody
	}
	client, remote := fakePair(4096)
	a.mu.Lock()
	a.ends = append(a.ends, client)
	a.mu.Unlock()
	remote.start(s.join(remote, remote, fakeLimits))
	cs := newClientSession(c, client, client, fakeLimits)
	client.start((*clientSink)(cs))
	return cs, nil
}

func (a *address) sessions() []*fakeEnd {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]*fakeEnd(nil), a.ends...)
}

var idempotentEcho = &Method{Name: "/test.Echo/Again", Codec: codec.Raw, Idempotent: true}

func serverOf(t *testing.T, f echoFunc) *Server {
	s := NewServer(nil)
	require.NoError(t, s.Register(echoDesc(echoMethod, idempotentEcho), f))
	return s
}

// counts counts how often each request was executed.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(req *[]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[string(*req)]++
}

func callText(ctx context.Context, c *Conn, m *Method, text string) error {
	req, resp := []byte(text), []byte(nil)
	return Call(ctx, c, m, &req, &resp)
}

// A server that is shut down finishes its calls and refuses others unseen; these
// go to the next one. No call fails and none runs twice (cases 74, 76).
func TestCallsGoToTheNextServer(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		var ran counts
		work := func(_ context.Context, req *[]byte) (*[]byte, error) {
			ran.add(req)
			time.Sleep(time.Millisecond)
			return req, nil
		}
		at := &address{}
		server := serverOf(t, work)
		at.listen(server)
		c := newConn(at.dial)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for n := range 500 {
					if err := callText(t.Context(), c, echoMethod, fmt.Sprint(i, n)); err != nil {
						t.Errorf("call %d of %d: %v", n, i, err)
					}
				}
			})
		}
		for range 3 {
			time.Sleep(100 * time.Millisecond)
			next := serverOf(t, work)
			at.listen(next)
			require.NoError(t, server.Shutdown(t.Context()))
			server = next
		}
		wg.Wait()
		require.Len(t, ran.of, 16*500)
		for req, n := range ran.of {
			require.Equal(t, 1, n, req)
		}
		require.Len(t, at.sessions(), 4)
		require.Zero(t, c.Stats().Active)
		require.NoError(t, c.Close())
		require.NoError(t, server.Close())
	})
}

// A call whose request has left is made again only if its method says that it
// may be (case 76).
func TestMaybeExecutedIsRepeatedOnlyIfIdempotent(t *testing.T) {
	for _, m := range []*Method{echoMethod, idempotentEcho} {
		pooltest.Check(t)
		synctest.Test(t, func(t *testing.T) {
			var ran counts
			at := &address{}
			server := serverOf(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
				ran.add(req)
				if len(at.sessions()) == 1 {
					<-ctx.Done()
				}
				return req, nil
			})
			at.listen(server)
			c := newConn(at.dial)
			time.AfterFunc(time.Second, func() { at.sessions()[0].Close(errCut) })
			err := callText(t.Context(), c, m, "x")
			if m.Idempotent {
				require.NoError(t, err)
				require.Equal(t, 2, ran.of["x"])
				require.EqualValues(t, 1, c.Stats().Retries)
			} else {
				requireError(t, err, Unavailable, MaybeExecuted)
				require.ErrorIs(t, err, errCut)
				require.Equal(t, 1, ran.of["x"])
				require.NoError(t, callText(t.Context(), c, m, "y"), "the next call finds a new session")
			}
			require.NoError(t, c.Close())
			require.NoError(t, server.Close())
		})
	}
}

// What may have been executed once stays so, however the later tries fail.
func TestDeliveryOfARepeatedCall(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		at := &address{}
		server := serverOf(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
			<-ctx.Done()
			return req, nil
		})
		at.listen(server)
		c := newConn(at.dial)
		time.AfterFunc(time.Second, func() {
			at.listen(nil)
			at.sessions()[0].Close(errCut)
		})
		err := callText(t.Context(), c, idempotentEcho, "x")
		requireError(t, err, Unavailable, MaybeExecuted)
		require.ErrorIs(t, err, errNobody)

		requireError(t, callText(t.Context(), c, idempotentEcho, "y"), Unavailable, NotExecuted)
		require.NoError(t, c.Close())
		require.NoError(t, server.Close())
	})
}

// A server that dies under every call does not keep a call for ever.
func TestTriesAreBounded(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		at := &address{}
		server := serverOf(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
			ends := at.sessions()
			ends[len(ends)-1].Close(errCut)
			return req, nil
		})
		at.listen(server)
		c := newConn(at.dial)
		requireError(t, callText(t.Context(), c, idempotentEcho, "x"), Unavailable, MaybeExecuted)
		require.Len(t, at.sessions(), c.policy.tries)
		require.NoError(t, c.Close())
		require.NoError(t, server.Close())
	})
}

// While nobody listens there is one dial at a time for all calls, later and later,
// and calls without a deadline end too (case 74).
func TestDialsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := &address{}
		c := newConn(at.dial)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				err := callText(context.Background(), c, echoMethod, "x")
				requireError(t, err, Unavailable, NotExecuted)
				require.ErrorIs(t, err, errNobody)
			})
		}
		start := time.Now()
		wg.Wait()
		require.Len(t, at.dials, c.policy.dials)
		most := c.policy.first
		for i, when := range at.dials {
			require.LessOrEqual(t, when.Sub(start), most, "dial %d", i)
			start, most = when, min(2*most, c.policy.most)
		}

		start = time.Now()
		requireError(t, callText(context.Background(), c, echoMethod, "x"), Unavailable, NotExecuted)
		require.LessOrEqual(t, time.Since(start), c.policy.most)
		require.Len(t, at.dials, c.policy.dials+1, "a later call waits for one dial")

		server := serverOf(t, echo)
		at.listen(server)
		require.NoError(t, callText(context.Background(), c, echoMethod, "x"))
		require.Zero(t, c.dials.Load(), "an answer makes an end of it")
		require.NoError(t, c.Close())
		require.NoError(t, server.Close())
	})
}

func TestDelay(t *testing.T) {
	p := &defaultRetryPolicy
	for dials, want := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000} {
		require.Zero(t, p.delay(dials, 0))
		require.Equal(t, want*time.Millisecond/2, p.delay(dials, 0.5), "after %d dials", dials)
	}
	require.Equal(t, p.most/2, p.delay(1<<30, 0.5))
}

// A call that waits for a session ends with its context, whatever the dial does.
func TestCallThatWaitsForASessionEndsWithItsContext(t *testing.T) {
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newConn((&address{silent: silent}).dial)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			err := callText(ctx, c, echoMethod, "x")
			requireError(t, err, DeadlineExceeded, NotExecuted)
			require.LessOrEqual(t, time.Since(start), 50*time.Millisecond)
			if !silent {
				require.ErrorContains(t, err, errNobody.Error(), "what it waited for is not said")
			}
			require.NoError(t, c.Close())
		})
	}
}

// Case 72: Close from many goroutines while a dial hangs and calls wait for it.
func TestCloseDuringDial(t *testing.T) {
	pooltest.Check(t)
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := serverOf(t, echo)
			c := newConn((&address{silent: silent, server: server}).dial)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					err := callText(context.Background(), c, echoMethod, "x")
					if !silent && err == nil {
						return // it was quicker
					}
					requireError(t, err, Unavailable, err.(*Error).Delivery)
					require.ErrorIs(t, err, ErrConnClosed)
				})
			}
			if silent {
				time.Sleep(time.Second)
			}
			for range 4 {
				wg.Go(func() {
					require.NoError(t, c.Close())
					<-c.Done()
				})
			}
			wg.Wait()
			requireError(t, callText(context.Background(), c, echoMethod, "x"), Unavailable, NotExecuted)
			require.NoError(t, server.Close())
		})
	}
}
