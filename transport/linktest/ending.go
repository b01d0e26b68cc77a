package linktest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

var errTest = errors.New("broken by the test")

// requireUnusable: a closed link takes nothing in and says why.
func requireUnusable(t *testing.T, s *side, slot transport.Slot, why error) {
	t.Helper()
	require.ErrorIs(t, s.Commit(slot, call(1)), why)
	s.Discard(slot)
	for _, class := range [...]transport.Class{transport.Small, transport.Bulk, transport.Control} {
		_, err := s.Reserve(t.Context(), class, 1)
		require.ErrorIs(t, err, why)
	}
}

// testCloseRegular closes from many goroutines at once, twice each (case 72).
func testCloseRegular(t *testing.T, pair Pair) {
	a, b := started(t, pair)
	slot, err := a.Reserve(t.Context(), transport.Small, 8)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			a.Close(nil)
			a.Close(errTest) // too late to count
		})
	}
	a.Close(nil)
	requireUnusable(t, a, slot, net.ErrClosed)
	require.NoError(t, a.waitClosed())
	wg.Wait()
	b.waitNotice()
	a.Close(nil)
}

// waitNotice waits until the link has noticed that its peer is gone. Where
// only traffic shows that, there is some.
func (s *side) waitNotice() {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case <-s.Done():
			require.Error(s.t, s.waitClosed(), "the peer closed, not this side")
			return
		case <-time.After(moment):
			ctx, cancel := context.WithTimeout(s.t.Context(), moment)
			if slot, err := s.Reserve(ctx, transport.Control, 0); err == nil {
				if s.Commit(slot, &wire.Header{Kind: wire.Ping}) != nil {
					s.Discard(slot)
				}
			}
			cancel()
		}
	}
	require.FailNow(s.t, "the link has not noticed that its peer is gone")
}

func testCloseError(t *testing.T, pair Pair) {
	a, b := started(t, pair)
	slot, err := a.Reserve(t.Context(), transport.Small, 8)
	require.NoError(t, err)
	a.Close(errTest)
	a.Close(nil)
	requireUnusable(t, a, slot, errTest)
	require.ErrorIs(t, a.waitClosed(), errTest)
	b.waitNotice()
}

// testCloseInsideReceiver closes from Land and from Frame: nothing but Closed
// follows, although more has arrived (case 72).
func testCloseInsideReceiver(t *testing.T, pair Pair) {
	for _, where := range []string{"Land", "Frame"} {
		t.Run(where, func(t *testing.T) {
			a, b := newPair(t, pair)
			calls := 0
			act := func(h *wire.Header) error {
				if h.Kind == wire.Call {
					calls++
					b.Close(nil)
					b.Close(nil)
				}
				return nil
			}
			if where == "Land" {
				b.onLand = act
			} else {
				b.onFrame = act
			}
			a.Start(a)
			for range 8 {
				require.NoError(t, a.send(transport.Small, call(1), pattern(32, 1)))
			}
			b.Start(b)
			require.NoError(t, b.waitClosed())
			require.Equal(t, 1, calls)
			a.waitNotice()
		})
	}
}

// testReceiverError: an error of the receiver closes the link with it.
func testReceiverError(t *testing.T, pair Pair) {
	for _, where := range []string{"Land", "Frame"} {
		t.Run(where, func(t *testing.T) {
			a, b := newPair(t, pair)
			act := func(h *wire.Header) error {
				if h.Kind == wire.Call {
					return errTest
				}
				return nil
			}
			if where == "Land" {
				b.onLand = act
			} else {
				b.onFrame = act
			}
			a.Start(a)
			b.Start(b)
			greet(a, b)
			require.NoError(t, a.send(transport.Small, call(1), pattern(32, 1)))
			require.ErrorIs(t, b.waitClosed(), errTest)
			a.waitNotice()
		})
	}
}

// testCloseWhileBlocked: those who wait for room learn that there will be none.
func testCloseWhileBlocked(t *testing.T, pair Pair) {
	a, _ := newPair(t, pair)
	a.Start(a)
	large := pattern(a.MaxPayload(), 1)
	a.fill(transport.Small, large)
	const waiters = 8
	ends := make(chan error, waiters)
	for range waiters {
		go func() { ends <- a.send(transport.Small, call(1), large) }()
	}
	time.Sleep(moment)
	require.Zero(t, len(ends), "Reserve did not wait")
	a.Close(errTest)
	for range waiters {
		select {
		case err := <-ends:
			require.ErrorIs(t, err, errTest)
		case <-time.After(patience):
			require.FailNow(t, "a sender still waits")
		}
	}
}

// testCloseUnderLoad closes either side while many send both ways (case 13).
func testCloseUnderLoad(t *testing.T, pair Pair) {
	for round := range 4 {
		a, b := started(t, pair)
		var wg sync.WaitGroup
		for _, s := range [...]*side{a, b} {
			for range 8 {
				wg.Go(func() {
					for s.send(transport.Small, call(1), pattern(200, 1)) == nil {
					}
				})
			}
		}
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		if round%2 == 0 {
			a.Close(nil)
			a.waitDone()
			b.waitNotice() // it may be out of credit, and so without traffic
		} else {
			b.Close(errTest)
			b.waitDone()
			a.waitNotice()
		}
		wg.Wait()
	}
}

// testCloseUnstarted: a link that never delivered can be closed, and then not
// be started.
func testCloseUnstarted(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	slot, err := a.Reserve(t.Context(), transport.Small, 8)
	require.NoError(t, err)
	a.Close(nil)
	b.Close(errTest)
	requireUnusable(t, a, slot, net.ErrClosed)
	a.waitDone()
	b.waitDone()
	a.Start(a)
	require.Empty(t, a.closed)
}
