package transport

import (
	"context"
	"testing"

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

// TestOrder: of blocks few are sent at once, and a block does not wait behind
// messages that are larger, neither for its turn nor to be open at the peer.
func TestOrder(t *testing.T) {
	for _, large := range []int{2 << 20, 60 << 20, 64 << 20} {
		var o order
		o.init(1000, 64<<20)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		begin := func(size int) error {
			if err := o.of(size).Take(over, size); err != nil {
				return err
			}
			require.NoError(t, o.open.Take(over, size), "in its turn, a message waits")
			return nil
		}
		require.NoError(t, begin(large))
		for n := 1; begin(large) == nil; n++ {
			require.Less(t, n, largerAtOnce)
		}
		for range blocksAtOnce {
			require.NoError(t, begin(blockSize))
		}
		require.Error(t, begin(100<<10))
		o.of(blockSize).Give(1, blockSize)
		for range 10 {
			require.NoError(t, o.of(100<<10).Take(over, 100<<10), "small blocks go together")
		}
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
