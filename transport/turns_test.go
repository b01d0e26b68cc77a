package transport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// A peer cannot begin more messages than the lane takes in together, in bytes.
func TestAssemblerBoundsOpenMessages(t *testing.T) {
	pooltest.Check(t)
	const total = 8 << 20
	a := &assembler{maxMessage: total, maxParts: 1 << 20}
	defer a.reset()
	first := func(call uint64) error {
		_, _, err := put(a, wire.Header{Kind: wire.Call, Flags: wire.More, Call: call, Total: total}, []byte("x"))
		return err
	}
	for call := range uint64(minOpen / total) {
		require.NoError(t, first(call))
	}
	var pe *wire.ParseError
	require.ErrorAs(t, first(1000), &pe)
	require.Equal(t, "total", pe.Field)

	_, _, err := put(a, wire.Header{Kind: wire.Cancel, Call: 3}, nil)
	require.NoError(t, err)
	require.NoError(t, first(1000), "what was taken back still counts")
	a.forget(1000)
	require.Error(t, first(1001), "what is forgotten is still sent, and counts")
	_, _, err = put(a, wire.Header{Kind: wire.Cancel, Call: 1000}, nil)
	require.NoError(t, err)
	require.NoError(t, first(1001))
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := turns{maxCount: 3, maxBytes: 10}
		take := func(ctx context.Context, n int) <-chan error {
			got := make(chan error, 1)
			go func() { got <- turns.take(ctx, n) }()
			synctest.Wait()
			return got
		}
		require.NoError(t, <-take(t.Context(), 4))
		require.NoError(t, <-take(t.Context(), 4))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		large, small := take(ctx, 5), take(t.Context(), 1)
		require.Empty(t, large)
		require.Empty(t, small, "passed one that came before")
		require.ErrorIs(t, <-large, context.DeadlineExceeded)
		require.NoError(t, <-small, "the next needs less")
		more := take(t.Context(), 1)
		require.Empty(t, more, "three at once")
		turns.give(1, 1)
		require.NoError(t, <-more)
		turns.give(1, 1)
		turns.give(1, 4)
		turns.give(1, 4)
		require.NoError(t, <-take(t.Context(), 10), "something was not given back")
	})
}

// A sender that gives up in its turn does not keep it.
func TestTurnsRace(t *testing.T) {
	turns := turns{maxCount: 1, maxBytes: 1}
	done := make(chan struct{})
	for range 8 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 2000 {
				ctx, cancel := context.WithCancel(context.Background())
				go cancel()
				if err := turns.take(ctx, 1); err == nil {
					turns.give(1, 1)
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		}()
	}
	for range 8 {
		<-done
	}
	require.NoError(t, turns.take(context.Background(), 1))
}

// TestOrder: of blocks few are sent at once, and a block does not wait behind
// messages that are larger.
func TestOrder(t *testing.T) {
	var o order
	o.init(1000, 64<<20)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range largerAtOnce {
		require.NoError(t, o.of(64<<20).take(over, 64<<20))
	}
	require.Error(t, o.of(64<<20).take(over, 64<<20))
	for range blocksAtOnce {
		require.NoError(t, o.of(blockSize).take(over, blockSize))
	}
	require.Error(t, o.of(100<<10).take(over, 100<<10))
	o.of(blockSize).give(1, blockSize)
	for range 10 {
		require.NoError(t, o.of(100<<10).take(over, 100<<10), "small blocks go together")
	}
}

func TestChunkSize(t *testing.T) {
	for _, c := range []struct{ size, limit, want int }{
		{1 << 20, 256 << 10, 256 << 10},
		{1<<20 + 4, 256 << 10, 209728}, // five, and none of 4 bytes
		{100_000, 256 << 10, 50048},
		{100, 4096, 64},
		{64, 4096, 63}, // two at least
		{2, 1, 1},
	} {
		require.Equal(t, c.want, chunkSize(c.size, c.limit), "%+v", c)
	}
}
