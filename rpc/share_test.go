package rpc

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// hog makes n calls at once that last until the test ends, and counts how many
// were refused.
func hog(t *testing.T, r *rig, n int) (refused *atomic.Int32, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	refused = new(atomic.Int32)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, err := r.echo(ctx, "hold")
			if CodeOf(err) == ResourceExhausted {
				require.Equal(t, NotExecuted, err.(*Error).Delivery)
				refused.Add(1)
			}
		})
	}
	synctest.Wait()
	return refused, func() { cancel(); wg.Wait() }
}

// hold echoes; what says so is kept until its caller gives up.
func hold(ctx context.Context, req *[]byte) (*[]byte, error) {
	if string(*req) == "hold" {
		<-ctx.Done()
	}
	return req, nil
}

// Case 80: a client whose handlers hang and whose calls fill all that it may
// have does not keep another client waiting.
func TestOneClientDoesNotStarveAnother(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, hold, MaxHandlers(4, 8))
		victim := r.another(t)
		refused, stop := hog(t, r, 100)
		require.EqualValues(t, 100-3-6, refused.Load(), "three quarters of either limit are one session's")
		start := time.Now()
		for range 50 {
			_, err := victim.echo(t.Context(), "x")
			require.NoError(t, err)
		}
		require.Zero(t, time.Since(start))
		stop()
	})
}

// Sessions whose calls wait for a handler take turns.
func TestQueuedCallsTakeTurns(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			time.Sleep(time.Second)
			return req, nil
		}, MaxHandlers(1, 100))
		victim := r.another(t)
		_, stop := hog(t, r, 50)
		defer time.Sleep(time.Minute) // handlers sleep on
		defer stop()
		start := time.Now()
		_, err := victim.echo(t.Context(), "x")
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 3*time.Second, "the one that runs, one of the other session, and its own")
	})
}

// Calls beyond the limit that the server announced are refused unseen: a
// client that cancelled calls may not know that their handlers still run.
func TestCallsBeyondTheAnnouncedLimit(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(nil)
		defer s.Close()
		require.NoError(t, s.Register(echoDesc(echoMethod), echoFunc(hold)))
		client, remote := fakePair(4096)
		defer client.Close(nil)
		remote.record = true
		p := s.join(remote, remote, fakeLimits)
		require.Equal(t, fakeLimits.MaxCalls, p.maxCalls)
		p.maxCalls = 3
		remote.start(p)
		fakeConn(client)
		call := wire.Header{Kind: wire.Call, Flags: wire.End, Method: wire.MethodID(echoMethod.Name)}
		send := func(id uint64, kind wire.Kind, text string) {
			h := call
			h.Kind, h.Call = kind, id
			require.NoError(t, client.Send(t.Context(), h, []byte(text)))
			synctest.Wait()
		}
		for id := range uint64(5) {
			send(id+1, wire.Call, "hold")
		}
		replies := remote.frames()
		require.Len(t, replies, 2)
		for i, h := range replies {
			require.Equal(t, uint64(i+4), h.Call)
			require.Equal(t, uint32(ResourceExhausted), h.Arg)
			require.NotZero(t, h.Flags&wire.Unseen)
		}
		require.EqualValues(t, 3, s.Stats().InFlight)
		require.EqualValues(t, 2, s.Stats().Refused)
		send(1, wire.Cancel, "")
		send(6, wire.Call, "x")
		last := remote.frames()[2]
		require.Equal(t, uint64(6), last.Call)
		require.Zero(t, last.Flags&wire.Error)
	})
}

func TestMaxPerSessionIsChecked(t *testing.T) {
	require.ErrorContains(t, NewServer(nil, MaxPerSession(0, 1)).Listen("x"), "MaxPerSession")
	require.ErrorContains(t, NewServer(nil, MaxPerSession(1, -1)).Listen("x"), "MaxPerSession")
}
