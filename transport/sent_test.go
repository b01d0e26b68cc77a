package transport

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestSentFrames sends, acknowledges and sends again at random, from any first
// number: what is kept is what was sent and not acknowledged, byte for byte.
func TestSentFrames(t *testing.T) {
	pooltest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint32().Draw(t, "first")
		s := sentFrames{next: first, leaving: first, acked: first}
		defer s.reset()
		sizes := map[uint32]int{} // of all that was sent
		stamp := func(size int) {
			h := wire.Header{Kind: wire.Call, Call: uint64(s.next), Length: uint32(size)}
			want := s.leaving
			payload := make([]byte, size)
			if size >= 4 {
				binary.LittleEndian.PutUint32(payload, want)
			}
			if want == s.next {
				sizes[want] = size
			}
			s.stamp(&h, payload)
			require.Equal(t, want, h.Seq)
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				size := rapid.SampledFrom([]int{0, 4, 100, 5000}).Draw(t, "size")
				for range rapid.IntRange(1, 40).Draw(t, "frames") {
					stamp(size)
				}
			},
			"ack": func(t *rapid.T) {
				n := s.acked + uint32(rapid.IntRange(0, int(s.leaving-s.acked)).Draw(t, "by"))
				want := freed{}
				for at := s.acked; at != n; at++ {
					want[Small].count++
					want[Small].bytes += sizes[at]
				}
				f, err := s.ack(n)
				require.NoError(t, err)
				require.Equal(t, want, f)
			},
			"old ack": func(t *rapid.T) {
				before := s.acked
				f, err := s.ack(s.acked - rapid.Uint32Range(1, 1<<30).Draw(t, "by"))
				require.NoError(t, err)
				require.Zero(t, f)
				require.Equal(t, before, s.acked)
			},
			"ack of what was not sent": func(t *rapid.T) {
				_, err := s.ack(s.leaving + rapid.Uint32Range(1, 1<<20).Draw(t, "by"))
				require.ErrorAs(t, err, new(*wire.ParseError))
			},
			"rewind": func(*rapid.T) { s.rewind() },
			"": func(t *rapid.T) {
				bytes := 0
				for n := s.acked; n != s.next; n++ {
					k := s.at(n)
					require.Equal(t, n, k.h.Seq)
					require.EqualValues(t, sizes[n], k.h.Length)
					bytes += sizes[n]
					if sizes[n] >= 4 {
						require.Equal(t, n, binary.LittleEndian.Uint32(k.buf.Bytes()))
					}
				}
				require.Equal(t, bytes, s.bytes)
				require.LessOrEqual(t, s.leaving-s.acked, s.len())
			},
		})
	})
}

// TestNumbers: what a lane says of frames that come, and when it says it.
func TestNumbers(t *testing.T) {
	var n numbers
	due := 0
	n.retain(1<<20, func() { due++ })
	frame := func(seq uint32, length uint32) wire.Header {
		return wire.Header{Kind: wire.Call, Lane: LaneID, Seq: seq, Length: length}
	}
	take := func(seq, length uint32) {
		h := frame(seq, length)
		drop, err := n.Check(&h)
		require.NoError(t, err)
		require.False(t, drop)
		n.Took(&h)
	}
	take(0, 10)
	again := frame(0, 10)
	drop, err := n.Check(&again)
	require.NoError(t, err)
	require.True(t, drop)
	require.EqualValues(t, 1, n.info().Duplicates)
	gap := frame(2, 10)
	_, err = n.Check(&gap)
	require.ErrorAs(t, err, new(*wire.ParseError))
	h := frame(1, 10)
	h.Ack = 1
	_, err = n.Check(&h)
	require.ErrorAs(t, err, new(*wire.ParseError), "nothing was sent yet")

	for seq := uint32(1); seq < owedFrames; seq++ {
		require.Zero(t, due)
		take(seq, 10)
	}
	require.Equal(t, 1, due, "after so many frames")
	out := wire.Header{Kind: wire.Ack}
	n.Stamp(&out, nil)
	require.Equal(t, wire.Header{Kind: wire.Ack, Lane: LaneID, Ack: owedFrames}, out)
	for seq := range uint32(owedBytes >> 16) {
		require.Equal(t, 1, due)
		take(owedFrames+seq, 1<<16)
	}
	require.Equal(t, 2, due, "after so many bytes")
}

// Keeping a frame allocates nothing once there was as much before.
func TestKeepingAllocatesNothing(t *testing.T) {
	var n numbers
	n.retain(4<<20, func() {})
	payload := make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(1000, func() { keepOne(&n, payload) }))
}

func BenchmarkKeep(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
		keep bool
	}{{"off", 64, false}, {"64B", 64, true}, {"4KiB", 4 << 10, true}, {"64KiB", 64 << 10, true}} {
		b.Run(c.name, func(b *testing.B) {
			var n numbers
			if c.keep {
				n.retain(4<<20, func() {})
			}
			payload := make([]byte, c.size)
			b.ReportAllocs()
			for b.Loop() {
				keepOne(&n, payload)
			}
		})
	}
}

var keptHeader wire.Header

// keepOne is all that is done for a frame that is sent and acknowledged.
func keepOne(n *numbers, payload []byte) {
	_ = n.take(context.Background(), Small, len(payload))
	h := &keptHeader
	*h = wire.Header{Kind: wire.Call, Lane: LaneID, Length: uint32(len(payload))}
	n.Stamp(h, payload)
	_ = n.ack(h.Seq + 1)
}

// The number in a MOVE may be older than what was acknowledged, never newer
// than what has left.
func TestMoveMayBeOlderThanAck(t *testing.T) {
	n := numbers{}
	n.retain(1<<20, func() {})
	for range 3 {
		n.Stamp(&wire.Header{Kind: wire.Call}, nil)
	}
	require.NoError(t, n.ack(2))
	for next, may := range map[uint32]bool{0: true, 1: true, 2: true, 3: true, 4: false, 1 << 30: false} {
		require.Equal(t, may, n.mayAck(next), "next %d", next)
	}
	n.reset()
}
