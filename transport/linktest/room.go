package linktest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// testReserveWaits: while the peer does not read, Reserve waits no longer than
// its context, and Commit does not wait at all (case 29). Everything that was
// committed arrives once the peer reads.
func testReserveWaits(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	a.Start(a)
	large := pattern(a.MaxPayload(), 1)
	n := a.fill(transport.Small, large)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := a.Reserve(ctx, transport.Small, len(large))
	require.ErrorIs(t, err, context.Canceled)

	room := make(chan error, 1)
	go func() { room <- a.send(transport.Small, call(uint64(n)), large) }()
	select {
	case err := <-room:
		require.FailNow(t, "Reserve did not wait", "%v", err)
	case <-time.After(moment):
	}
	b.Start(b)
	for i, got := range b.take(n + 1) {
		require.Equal(t, uint64(i), got.h.Call)
	}
	require.NoError(t, <-room)
}

// testReserveNow: a context that is over does not keep Reserve from room that
// is there, of any class, and callers that must not wait rely on it.
func testReserveNow(t *testing.T, pair Pair) {
	a, b := started(t, pair)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, class := range [...]transport.Class{transport.Small, transport.Bulk, transport.Control} {
		for range 100 {
			slot, err := a.Reserve(over, class, 8)
			require.NoError(t, err, "class %d", class)
			a.Discard(slot)
		}
		slot, err := a.Reserve(over, class, 8)
		require.NoError(t, err, "class %d", class)
		copy(slot.Payload, pattern(8, 1))
		require.NoError(t, a.Commit(slot, call(uint64(class))))
		require.Equal(t, uint64(class), b.take(1)[0].h.Call)
	}
}

// testReserveNowBesideWaiters: nor do waiters of another class.
func testReserveNowBesideWaiters(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	a.Start(a)
	large := pattern(a.MaxPayload(), 1)
	n := a.fill(transport.Bulk, large)
	sent := make(chan error, 1)
	go func() { sent <- a.send(transport.Bulk, call(uint64(n)), large) }()
	time.Sleep(moment) // it waits
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		slot, err := a.Reserve(over, transport.Small, 8)
		require.NoError(t, err)
		a.Discard(slot)
	}
	b.Start(b)
	b.take(n + 1)
	require.NoError(t, <-sent)
}

func testReserveTooLarge(t *testing.T, pair Pair) {
	a, _ := started(t, pair)
	for _, n := range []int{-1, a.MaxPayload() + 1, 1 << 30} {
		_, err := a.Reserve(t.Context(), transport.Small, n)
		require.Error(t, err, "%d bytes", n)
	}
}

// testDiscard: slots given back unused are room again, all of it.
func testDiscard(t *testing.T, pair Pair) {
	a, b := started(t, pair)
	for _, class := range [...]transport.Class{transport.Small, transport.Bulk, transport.Control} {
		had := 0
		for round := range 3 {
			var slots []transport.Slot
			for {
				ctx, cancel := context.WithTimeout(t.Context(), moment)
				slot, err := a.Reserve(ctx, class, 16)
				cancel()
				if err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					break
				}
				slots = append(slots, slot)
			}
			if round == 0 {
				had = len(slots)
			}
			require.Positive(t, had)
			require.Len(t, slots, had, "class %d, round %d", class, round)
			for _, s := range slots {
				a.Discard(s)
			}
		}
	}
	greet(a, b)
}

// testControlPasses: frames of the link have room although those of the lane
// have none, on the link that is full and on the one whose peer is.
func testControlPasses(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	a.Start(a)
	n := a.fill(transport.Small, pattern(a.MaxPayload(), 1))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	slot, err := a.Reserve(ctx, transport.Control, 4)
	require.NoError(t, err)
	copy(slot.Payload, "ping")
	require.NoError(t, a.Commit(slot, &wire.Header{Kind: wire.Ping}))

	b.Start(b)
	pings := 0
	for _, got := range b.take(n + 1) {
		if got.h.Kind == wire.Ping {
			pings++
			require.Equal(t, "ping", string(got.payload))
		}
	}
	require.Equal(t, 1, pings)
	greet(a, b)
}

// testSmallPassesBulk: chunks of large messages leave room for small ones
// (case 32).
func testSmallPassesBulk(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	a.Start(a)
	n := a.fill(transport.Bulk, pattern(a.MaxPayload(), 1))
	const small = 2
	for range small {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		slot, err := a.Reserve(ctx, transport.Small, 64)
		cancel()
		require.NoError(t, err)
		require.NoError(t, a.Commit(slot, call(1)))
	}
	b.Start(b)
	b.take(n + small)
}
