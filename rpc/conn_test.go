package rpc

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

func requireError(t *testing.T, err error, code Code, d Delivery) *Error {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, "%v", err)
	require.Equal(t, d, e.Delivery, "%v", err)
	return e
}

func TestCallEchoes(t *testing.T) {
	pooltest.Check(t)
	r := join(t, echo)
	for _, text := range []string{"", "x", strings.Repeat("y", 4096), strings.Repeat("z", 4097), strings.Repeat("w", 1<<20)} {
		got, err := r.echo(t.Context(), text)
		require.NoError(t, err)
		require.Equal(t, text, got)
	}
	require.Zero(t, r.conn.Stats())
}

// A caller who has helped does not leave the lane to nobody while another waits.
func TestHelperLeavesTheLaneAttended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			if string(*req) == "slow" {
				<-free
			}
			return req, nil
		})
		defer r.close()
		call := func(text string) {
			_, err := r.echo(t.Context(), text)
			require.NoError(t, err)
		}
		call("alone")
		require.Zero(t, r.client.roused.Load())
		resume := r.remote.hold()
		go call("first")
		synctest.Wait()
		go call("slow")
		synctest.Wait()
		resume()
		synctest.Wait()
		require.EqualValues(t, 1, r.client.roused.Load())
		close(free)
		synctest.Wait()
		require.EqualValues(t, 1, r.client.roused.Load(), "nobody waits")
	})
}

// Case 29: a call ends when its context does, wherever it hangs: for want of
// room, or at a peer that takes nothing in.
func TestCallEndsWithItsContext(t *testing.T) {
	for _, where := range []string{"before", "room", "peer"} {
		t.Run(where, func(t *testing.T) {
			pooltest.Check(t)
			synctest.Test(t, func(t *testing.T) {
				r := join(t, echo)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				want := NotExecuted
				resume := func() {}
				switch where {
				case "before":
					time.Sleep(time.Second)
					synctest.Wait()
				case "room":
					resume = r.client.fill()
				case "peer":
					resume = r.remote.hold()
					want = MaybeExecuted
				}
				start := time.Now()
				_, err := r.echo(ctx, "x")
				requireError(t, err, DeadlineExceeded, want)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.LessOrEqual(t, time.Since(start), time.Second)
				resume()

				got, err := r.echo(t.Context(), "y")
				require.NoError(t, err)
				require.Equal(t, "y", got)
			})
		})
	}
}

func TestCancelTellsTheServer(t *testing.T) {
	pooltest.Check(t)
	over := make(chan error, 1)
	started := make(chan struct{})
	r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
		close(started)
		<-ctx.Done()
		over <- ctx.Err()
		return req, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	_, err := r.echo(ctx, "x")
	requireError(t, err, Canceled, MaybeExecuted)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-over, context.Canceled)

	frames := r.client.frames()
	require.Equal(t, []uint64{frames[0].Call}, r.client.forgotten)
	require.Eventually(t, func() bool { return r.server.Stats().Late == 1 }, 10*time.Second, time.Millisecond)
	require.Len(t, r.remote.frames(), 0, "a response was sent that nobody waits for")
}

// The time that a request waited for room is not given to the server again.
func TestDeadlineCountsTheWaitForRoom(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		left := make(chan time.Duration, 1)
		r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
			deadline, _ := ctx.Deadline()
			left <- time.Until(deadline)
			return req, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		drain := r.client.fill()
		time.AfterFunc(4*time.Second, drain)
		_, err := r.echo(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, 6*time.Second, <-left)
	})
}

// A cancel that finds no room is kept until there is some, or the session ends:
// without a deadline the server would never hear of it.
func TestCancelWaitsForRoom(t *testing.T) {
	for _, room := range []bool{true, false} {
		pooltest.Check(t)
		synctest.Test(t, func(t *testing.T) {
			const calls = 100
			r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
				<-ctx.Done()
				return req, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range calls {
				wg.Go(func() {
					_, err := r.echo(ctx, "x")
					requireError(t, err, Canceled, MaybeExecuted)
				})
			}
			synctest.Wait()
			require.EqualValues(t, calls, r.server.Stats().InFlight)
			drain := r.client.fill()
			cancel()
			wg.Wait()
			synctest.Wait()
			require.EqualValues(t, calls, r.server.Stats().InFlight)
			if room {
				drain()
				synctest.Wait()
				require.Zero(t, r.server.Stats().InFlight)
				require.NoError(t, r.client.Err())
			}
		})
	}
}

// A reply that comes after its call has ended is dropped, although its slot
// serves another call by then.
func TestStaleReplyIsDropped(t *testing.T) {
	pooltest.Check(t)
	r := join(t, echo)
	resume := r.client.hold()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := r.echo(ctx, "old")
	requireError(t, err, DeadlineExceeded, MaybeExecuted)
	resume()
	for range 100 {
		got, err := r.echo(t.Context(), "new")
		require.NoError(t, err)
		require.Equal(t, "new", got)
	}
	ids := map[uint64]bool{}
	for _, h := range r.client.frames() {
		if h.Kind == wire.Call {
			require.False(t, ids[h.Call], "call id %#x came twice", h.Call)
			ids[h.Call] = true
		}
	}
}

// Case 71: the cancel of a call that has finished hits no other.
func TestCancelHitsNoOtherCall(t *testing.T) {
	pooltest.Check(t)
	r := join(t, echo)
	r.client.record, r.remote.record = false, false
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	n := 10000
	if testing.Short() {
		n = 1000
	}
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		if rng.IntN(2) == 0 {
			// Races with the reply of the first call, which may fail.
			wg.Go(cancel)
			if _, err := r.echo(ctx, "first"); err != nil {
				require.ErrorIs(t, err, context.Canceled)
			}
		} else {
			_, err := r.echo(ctx, "first")
			require.NoError(t, err)
			wg.Go(cancel)
		}
		got, err := r.echo(t.Context(), "second")
		require.NoError(t, err, "call %d", i)
		require.Equal(t, "second", got)
		wg.Wait()
	}
	require.Zero(t, r.conn.Stats().Active)
}

// Nothing touches the response once the call has returned (case 26, on the
// side of the caller). The race detector sees it if something does.
func TestResponseIsTheCallersAfterReturn(t *testing.T) {
	pooltest.Check(t)
	r := join(t, echo)
	req, resp := []byte(strings.Repeat("q", 512)), make([]byte, 512)
	for i := range 2000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*time.Microsecond)
		_ = Call(ctx, r.conn, echoMethod, &req, &resp)
		req = append(req[:0], strings.Repeat("q", 512)...)
		resp = append(resp[:0], strings.Repeat("p", 512)...)
		cancel()
	}
}

func TestSessionEndsUnderCalls(t *testing.T) {
	for _, c := range []struct {
		name  string
		end   func(r *rig)
		cause error
	}{
		{"cut", func(r *rig) { r.remote.Close(errCut) }, errCut},
		{"closed here", func(r *rig) { _ = r.conn.Close() }, ErrConnClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			pooltest.Check(t)
			synctest.Test(t, func(t *testing.T) {
				r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
					<-ctx.Done() // case 73: it outlives its session, but is told
					return req, nil
				})
				errs := make(chan error, 10)
				for range cap(errs) {
					go func() {
						_, err := r.echo(context.Background(), "x")
						errs <- err
					}()
				}
				synctest.Wait()
				c.end(r)
				for range cap(errs) {
					err := <-errs
					requireError(t, err, Unavailable, MaybeExecuted)
					require.ErrorIs(t, err, c.cause)
				}
				_, err := r.echo(t.Context(), "x")
				requireError(t, err, Unavailable, NotExecuted)
				synctest.Wait()
				require.EqualValues(t, 10, r.server.Stats().Late)
				require.Zero(t, r.server.Stats().InFlight)
				require.Zero(t, r.server.Stats().Sessions)
			})
		})
	}
}

func TestWithoutRoomNothingIsSent(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, echo)
		drain := r.client.fill()
		failed := make(chan error, 1)
		go func() {
			_, err := r.echo(context.Background(), "x")
			failed <- err
		}()
		synctest.Wait()
		r.remote.Close(errCut)
		requireError(t, <-failed, Unavailable, NotExecuted)
		drain()
		require.Empty(t, r.client.frames())
	})
}

// A reply to a request that was never sent ends with that call and does not
// reach the next.
func TestReplyBeforeRequest(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, echo)
		drain := r.client.fill()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := r.echo(ctx, "x")
			failed <- err
		}()
		synctest.Wait()
		id := uint64(1 << indexBits) // the first of a session
		require.NoError(t, r.remote.Send(ctx, wire.Header{Kind: wire.Reply, Flags: wire.End, Call: id}, []byte("early")))
		requireError(t, <-failed, DeadlineExceeded, NotExecuted)
		drain()
		got, err := r.echo(t.Context(), "y")
		require.NoError(t, err)
		require.Equal(t, "y", got)
	})
}

func TestMessagesThatCannotGo(t *testing.T) {
	pooltest.Check(t)
	r := join(t, func(context.Context, *[]byte) (*[]byte, error) {
		big := make([]byte, fakeLimits.MaxMessage+1)
		return &big, nil
	}, OnError(func(error) {}))

	big := make([]byte, fakeLimits.MaxMessage+1)
	var resp []byte
	err := Call(t.Context(), r.conn, echoMethod, &big, &resp)
	requireError(t, err, ResourceExhausted, NotExecuted)
	require.Empty(t, r.client.frames())

	err = Call(t.Context(), r.conn, echoMethod, "not bytes", &resp)
	requireError(t, err, Internal, NotExecuted)
	require.ErrorIs(t, err, codec.ErrType)

	_, err = r.echo(t.Context(), "x")
	require.True(t, requireError(t, err, ResourceExhausted, Executed).FromPeer())
}

func TestTooManyCalls(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, echo)
		r.session().calls.limit = 3
		resume := r.remote.hold()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := r.echo(t.Context(), "x")
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		_, err := r.echo(t.Context(), "x")
		requireError(t, err, ResourceExhausted, NotExecuted)
		resume()
		wg.Wait()
	})
}

// Replies that no correct server sends.
func TestBadReplies(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags wire.Flags
		arg   uint32
		body  string
		code  Code
		d     Delivery
	}{
		{"no END", 0, 0, "x", Internal, Executed},
		{"error without payload", wire.End | wire.Error, uint32(NotFound), "", NotFound, Executed},
		{"unreadable error", wire.End | wire.Error, uint32(NotFound), "abc", NotFound, Executed},
		{"text longer than payload", wire.End | wire.Error, uint32(NotFound), "\xff\xff\x00\x00x", NotFound, Executed},
		{"code 0", wire.End | wire.Error, 0, "", Unknown, Executed},
		{"code 17", wire.End | wire.Error | wire.Unseen, 17, "", Unknown, NotExecuted},
	} {
		t.Run(c.name, func(t *testing.T) {
			pooltest.Check(t)
			client, server := fakePair(4096)
			server.start(sinkFunc(func(m transport.Message) {
				release(m.Payload)
				h := wire.Header{Kind: wire.Reply, Flags: c.flags, Call: m.Call, Arg: c.arg}
				require.NoError(t, server.Send(t.Context(), h, []byte(c.body)))
				require.NoError(t, server.Send(t.Context(), h, []byte(c.body))) // and twice
			}))
			conn := fakeConn(client)
			req, resp := []byte("q"), []byte(nil)
			requireError(t, Call(t.Context(), conn, echoMethod, &req, &resp), c.code, c.d)
			require.Eventually(t, func() bool { return conn.Stats().Stale == 1 }, 10*time.Second, time.Millisecond)
			for _, call := range []uint64{0, 1, indexMask, 1 << indexBits, ^uint64(0)} {
				require.NoError(t, server.Send(t.Context(), wire.Header{Kind: wire.Reply, Call: call}, nil))
			}
			require.Eventually(t, func() bool { return conn.Stats().Stale == 6 }, 10*time.Second, time.Millisecond)
			require.NoError(t, server.Send(t.Context(), wire.Header{Kind: wire.Call, Call: 1}, nil))
			<-client.Done()
			var unexpected *unexpectedError
			require.ErrorAs(t, client.Err(), &unexpected)
			<-server.Done()
		})
	}
}

type sinkFunc func(transport.Message)

func (f sinkFunc) Message(m transport.Message) { f(m) }
func (f sinkFunc) GoAway()                     {}
func (f sinkFunc) Ended(error)                 {}

// Case 72.
// What is left of a session that ended by itself, Close waits for.
func TestCloseWaitsForEndedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := join(t, echo)
		r.client.lingers, r.remote.lingers = time.Second, 2*time.Second
		r.client.Close(errCut)
		synctest.Wait()
		require.Zero(t, r.server.Stats().Sessions)
		require.NoError(t, r.conn.Close())
		require.True(t, isClosed(r.client.done))
		require.NoError(t, r.server.Close())
		require.True(t, isClosed(r.remote.done))
		synctest.Wait()
		require.Empty(t, r.conn.sessions)
		require.Empty(t, r.server.peers)
	})
}

func TestCloseAnywhere(t *testing.T) {
	pooltest.Check(t)
	for range 50 {
		r := join(t, echo)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					if _, err := r.echo(context.Background(), "x"); err != nil {
						var e *Error
						if !errors.As(err, &e) || e.Code != Unavailable {
							t.Errorf("%v", err)
						}
						return
					}
				}
			})
			wg.Go(func() { _ = r.conn.Close() })
			wg.Go(func() { _ = r.server.Close() })
			wg.Go(func() { _ = r.server.Shutdown(context.Background()) })
		}
		wg.Wait()
	}
}
