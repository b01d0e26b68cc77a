package transport

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

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
		s := sentFrames{next: first, leaving: first, left: first, acked: first, narrow: 100}
		defer s.reset()
		sizes := map[uint32]int{} // of all that was sent
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				size := rapid.SampledFrom([]int{0, 4, 100, 5000}).Draw(t, "size")
				for range rapid.IntRange(1, 40).Draw(t, "frames") {
					h := wire.Header{Kind: wire.Call}
					want := s.next
					sizes[want] = size
					payload := make([]byte, size)
					if size > 0 {
						binary.LittleEndian.PutUint32(payload, want)
					}
					buf, at := keep(&Slot{Payload: payload})
					s.add(&h, size).keep(payload, buf, at)
					require.Equal(t, want, h.Seq)
				}
			},
			"leave": func(t *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(t, "frames") {
					if s.due() {
						s.leave()
					}
				}
			},
			"ack": func(t *rapid.T) {
				n := s.acked + uint32(rapid.IntRange(0, int(s.left-s.acked)).Draw(t, "by"))
				want := freed{}
				for at := s.acked; at != n; at++ {
					want[Small].count++
					want[Small].bytes += sizes[at]
				}
				var f freed
				require.NoError(t, s.ack(n, &f))
				require.Equal(t, want, f)
			},
			"old ack": func(t *rapid.T) {
				before := s.acked
				var f freed
				require.NoError(t, s.ack(s.acked-rapid.Uint32Range(1, 1<<30).Draw(t, "by"), &f))
				require.Zero(t, f)
				require.Equal(t, before, s.acked)
			},
			"ack of what never left": func(t *rapid.T) {
				err := s.ack(s.left+rapid.Uint32Range(1, 1<<20).Draw(t, "by"), new(freed))
				require.ErrorAs(t, err, new(*wire.ParseError))
			},
			"rewind": func(*rapid.T) { s.rewind() },
			"narrow": func(t *rapid.T) { s.setNarrow(rapid.SampledFrom([]int{0, 100, 9000}).Draw(t, "bytes")) },
			"": func(t *rapid.T) {
				bytes, wide := 0, 0
				for n := s.acked; n != s.next; n++ {
					k := s.at(n)
					require.Equal(t, n, k.h.Seq)
					require.Equal(t, sizes[n], len(k.bytes()))
					bytes += sizes[n]
					if sizes[n] > s.narrow {
						wide++
					}
					if sizes[n] >= 4 {
						require.Equal(t, n, binary.LittleEndian.Uint32(k.bytes()))
					}
				}
				require.Equal(t, bytes, s.bytes)
				require.Equal(t, wide, s.wide)
				require.LessOrEqual(t, s.leaving-s.acked, s.len())
				require.LessOrEqual(t, s.left-s.acked, s.len())
			},
		})
	})
}

// TestIncoming: which frames a lane takes in, and when it says so.
func TestIncoming(t *testing.T) {
	var in incoming
	in.parts.maxMessage, in.parts.maxParts = 1<<20, 10
	p, other := &path{}, &path{}
	frame := func(p *path, seq, length uint32) (whole, due bool, err error) {
		h := wire.Header{Kind: wire.Call, Lane: LaneID, Call: uint64(seq), Seq: seq, Length: length, Total: length}
		var payload []byte
		if seq%2 == 1 {
			payload = make([]byte, length)
		} else if length > 0 {
			if _, err := in.land(p, &h); err != nil {
				return false, false, err
			}
		}
		var m Message
		whole, due, err = in.frame(p, &h, payload, &m)
		if m.Payload != nil {
			m.Payload.Release()
		}
		return whole, due, err
	}
	takes := func(p *path, seq, length uint32, want bool) (due bool) {
		t.Helper()
		whole, due, err := frame(p, seq, length)
		require.NoError(t, err)
		require.Equal(t, want, whole)
		return due
	}
	_, _, err := frame(p, 0, 10)
	require.ErrorAs(t, err, new(*wire.ParseError), "before MOVE")
	in.move(p)
	takes(p, 0, 10, true)
	takes(p, 0, 10, false)
	takes(p, 0, 0, false)
	require.EqualValues(t, 2, in.duplicates.Load())
	takes(other, 1, 10, false)
	in.move(other)
	takes(p, 1, 10, false)
	takes(p, 1, 0, false)
	_, _, err = frame(other, 2, 10)
	require.ErrorAs(t, err, new(*wire.ParseError), "frame 1 is missing")
	for seq := uint32(1); seq < owedFrames; seq++ {
		require.Equal(t, seq == owedFrames-1, takes(other, seq, 10, true), "after so many frames")
	}
	require.EqualValues(t, owedFrames, in.say())
	for seq := range uint32(owedBytes >> 16) {
		require.Equal(t, seq == owedBytes>>16-1, takes(other, owedFrames+seq, 1<<16, true), "after so many bytes")
	}
}

// No ACK is due, however much is taken in, where frames that go back say so in time.
func TestRepliesAreAcknowledgements(t *testing.T) {
	var o owed
	for e := uint32(1); e < 1000; e++ {
		said := e - e%3 // frames go back after two or three
		require.False(t, o.add(e, min(said, e-1), owedBytes/6), e)
	}
}

// No ACK is due for a block whose answer says that it was taken in.
func TestBlocksAreAnswered(t *testing.T) {
	const chunks, length = 4, 1<<18 + 1<<10
	var o owed
	for e := uint32(1); e < 1000; e++ {
		said := (e - 1) / chunks * chunks
		require.False(t, o.add(e, said, length), e)
	}
	for e := uint32(1000); e < 1004; e++ { // but where it is not
		require.False(t, o.add(e, 999, length), e)
	}
	require.True(t, o.add(1004, 999, length))
}

// Frames tell the peer of small frames when there are many, of others at once.
func TestMention(t *testing.T) {
	var in incoming
	in.parts.maxMessage = 1 << 10
	p := &path{}
	in.move(p)
	takes := func(length uint32) {
		t.Helper()
		var m Message
		h := wire.Header{Kind: wire.Call, Lane: LaneID, Seq: in.expected.Load(), Length: length, Total: length}
		_, _, err := in.frame(p, &h, make([]byte, length), &m)
		require.NoError(t, err)
		if m.Payload != nil {
			m.Payload.Release()
		}
	}
	for range lazyFrames - 1 {
		takes(smallKept)
		require.Zero(t, in.mention())
	}
	require.True(t, in.unsaid())
	takes(0)
	require.EqualValues(t, lazyFrames, in.mention())
	require.False(t, in.unsaid())
	takes(1)
	require.EqualValues(t, lazyFrames, in.mention())
	takes(smallKept + 1)
	takes(1)
	require.EqualValues(t, lazyFrames+3, in.mention(), "it holds a buffer of the peer's")
	takes(1)
	require.EqualValues(t, lazyFrames+3, in.mention())
	require.EqualValues(t, lazyFrames+4, in.say())
}

// What is taken in while the peer is told of what was before counts as owed: an
// ACK is due after so many bytes, whatever this side says meanwhile.
func TestOwedWhileSaying(t *testing.T) {
	const large = owedBytes - 1<<10 // of each second frame; the others have a byte
	before := func(seq uint32) int { return int(seq/2)*(1+large) + int(seq%2) }
	var in incoming
	in.parts.maxMessage = large
	p := &path{}
	in.move(p)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			in.say()
			for began, gap := time.Now(), rand.N(2*time.Microsecond); time.Since(began) < gap; {
			}
		}
	}()
	var m Message
	told := uint32(0) // of the frames before that, the peer knows or is about to
	for seq := range uint32(3_000_000) {
		length := 1 + seq%2*(large-1)
		p.landing = true
		_, due, err := in.frame(p, &wire.Header{Kind: wire.Call, Lane: LaneID, Seq: seq, Length: length, Total: length}, nil, &m)
		require.NoError(t, err)
		if said := in.said.Load(); due {
			told = seq + 1
		} else if int32(said-told) > 0 {
			told = said
		}
		if unsaid := before(seq+1) - before(told); unsaid >= owedBytes {
			t.Fatalf("%d bytes are owed after frame %d, and no ACK is due", unsaid, seq)
		}
	}
}

// A link that loses the lane while a frame lands keeps the memory that it may
// write into, and nobody else has it (case 12).
func TestLandingInterrupted(t *testing.T) {
	pooltest.Check(t)
	for name, flags := range map[string]wire.Flags{"whole": 0, "first chunk": wire.More, "later chunk": wire.More | wire.Cont} {
		t.Run(name, func(t *testing.T) {
			var in incoming
			in.parts.maxMessage, in.parts.maxParts = 1<<20, 10
			defer in.parts.reset()
			old, next := &path{}, &path{}
			in.move(old)
			total := uint32(300)
			h := wire.Header{Kind: wire.Call, Lane: LaneID, Call: 1, Length: 100, Total: total, Flags: wire.More}
			if flags&wire.Cont != 0 {
				b, err := in.land(old, &h)
				require.NoError(t, err)
				copy(b, "begin")
				_, _, err = in.frame(old, &h, nil, nil)
				require.NoError(t, err)
				h.Seq, h.Total = 1, 100
			}
			if h.Flags = flags; flags == 0 {
				h.Total = h.Length
			}
			stray, err := in.land(old, &h)
			require.NoError(t, err)
			in.move(next)
			b, err := in.land(next, &h)
			require.NoError(t, err)
			copy(b, "right")
			copy(stray, "WRONG")
			require.Equal(t, "right", string(b[:5]))
			var m Message
			whole, _, err := in.frame(next, &h, nil, &m)
			require.NoError(t, err)
			require.Equal(t, flags == 0, whole)
			copy(stray, "WRONG")
			whole, _, err = in.frame(old, &h, nil, nil)
			require.NoError(t, err)
			require.False(t, whole)
			if flags != 0 {
				h.Seq++
				h.Flags, h.Total, h.Length = wire.Cont, h.Total*uint32(flags>>1&1)+100, total-100-100*uint32(flags>>1&1)
				_, err = in.land(next, &h)
				require.NoError(t, err)
				whole, _, err = in.frame(next, &h, nil, &m)
				require.NoError(t, err)
				require.True(t, whole)
			}
			got := m.Payload.Bytes()
			require.NotContains(t, string(got), "WRONG")
			require.Contains(t, string(got), "right")
			m.Payload.Release()
			in.left(old)
			in.left(next)
		})
	}
}

// Keeping a frame allocates nothing once there was as much before.
func TestKeepingAllocatesNothing(t *testing.T) {
	o := newOutgoing()
	payload := make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(1000, func() { keepOne(o, payload) }))
}

// TestIdleLaneGivesBack: what a burst took for frames that are kept goes when
// nothing was sent for a tick, and not while something is kept.
func TestIdleLaneGivesBack(t *testing.T) {
	o := newOutgoing()
	for range 100 {
		var slot Slot
		require.NoError(t, o.reserve(context.Background(), Small, nil, 0, 10, &slot))
		_, err := o.send(&slot, &keptHeader, 0, false)
		require.NoError(t, err)
	}
	require.Equal(t, 1, o.stillTicks(false))
	require.Len(t, o.sent.kept, 128)
	_, err := o.acked(o.sent.next)
	require.NoError(t, err)
	require.Zero(t, o.stillTicks(false))
	require.NotEmpty(t, o.sent.kept, "something came in this tick")
	require.Zero(t, o.stillTicks(false))
	require.Empty(t, o.sent.kept)
	keepOne(o, make([]byte, 10))
	require.Equal(t, 0, o.info().Frames)
}

func BenchmarkKeep(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{{"64B", 64}, {"4KiB", 4 << 10}, {"64KiB", 64 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			o := newOutgoing()
			payload := make([]byte, c.size)
			b.ReportAllocs()
			for b.Loop() {
				keepOne(o, payload)
			}
		})
	}
}

func newOutgoing() *outgoing {
	o := new(outgoing)
	o.init(4<<20, 64<<10)
	o.bind(newCarrier(newNullLink(TCP), 1))
	return o
}

var keptHeader wire.Header

// keepOne is all that is done for a frame that is sent and acknowledged.
func keepOne(o *outgoing, payload []byte) {
	var slot Slot
	_ = o.reserve(context.Background(), Small, nil, 0, len(payload), &slot)
	copy(slot.Payload, payload)
	h := &keptHeader
	*h = wire.Header{Kind: wire.Call, Lane: LaneID}
	_, _ = o.send(&slot, h, 0, false)
	_, _ = o.acked(h.Seq + 1)
}

// A link to which the lane moves has as long as the one before to have something
// acknowledged.
func TestMoveBeginsAnew(t *testing.T) {
	o := newOutgoing()
	var slot Slot
	require.NoError(t, o.reserve(context.Background(), Small, nil, 0, 10, &slot))
	_, err := o.send(&slot, &keptHeader, 0, false)
	require.NoError(t, err)
	for n := range ticks + 1 {
		require.Equal(t, n+1, o.stillTicks(false))
	}
	o.pause()
	o.bind(&carrier{move: 2})
	require.Equal(t, 1, o.stillTicks(false))
}
