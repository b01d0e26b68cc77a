package linktest

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// testSizes sends payloads of every edge in both directions, with and without
// a payload sum, and compares all that the caller sets.
func testSizes(t *testing.T, pair Pair) {
	a, b := started(t, pair)
	limit := a.MaxPayload()
	require.Equal(t, limit, a.MaxPayload())
	sizes := []int{0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 1000, 1024,
		limit / 2, limit - 65, limit - 64, limit - 9, limit - 8, limit - 7, limit - 1, limit}
	for i, n := range sizes {
		for _, flags := range []wire.Flags{wire.End, wire.End | wire.Sum} {
			for _, way := range [][2]*side{{a, b}, {b, a}} {
				if n > way[0].MaxPayload() {
					continue
				}
				want := wire.Header{
					Kind: wire.Call, Flags: flags, Lane: transport.LaneID,
					Seq: 3, Ack: 4, Call: uint64(i) << 40, Method: 0xfeedfacecafebeef, Total: uint32(n), Arg: 77,
				}
				msg, h := pattern(n, i), want
				require.NoError(t, way[0].send(transport.Small, &h, msg))
				got := way[1].take(1)[0]
				requireSame(t, msg, got.payload)

				want.Length = uint32(n)
				if n == 0 {
					want.Flags &^= wire.Sum // nothing to sum
				}
				want.Credit, want.Epoch = got.h.Credit, got.h.Epoch
				require.Equal(t, want, got.h)
				require.NotZero(t, got.h.Epoch)
			}
		}
	}
	require.Equal(t, a.Info().Epoch, b.Info().Epoch)
}

// testRefer sends parts of a message from where it is, to a peer that reads only
// after there is no more room, so that frames are written in several steps.
func testRefer(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	a.Start(a)
	link, ok := a.Link.(transport.Referrer)
	if !ok {
		t.Skip("this link copies")
	}
	msg := pool.Get(a.MaxPayload() + 1000)
	copy(msg.Bytes(), pattern(msg.Len(), 1))
	commit := func(slot transport.Slot, i int) {
		h := call(uint64(i))
		h.Total = uint32(len(slot.Payload))
		if i%2 == 1 {
			h.Flags |= wire.Sum
		}
		require.NoError(t, a.Commit(slot, h))
	}
	part := func(i int) (at, n int) { return i * 77 % 1000, a.MaxPayload() - i%3*20_000 }
	n := 0
	for ; ; n++ {
		at, size := part(n)
		ctx, cancel := context.WithTimeout(t.Context(), moment)
		slot, err := link.Refer(ctx, transport.Bulk, msg, at, size)
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			break
		}
		requireSame(t, msg.Bytes()[at:][:size], slot.Payload)
		commit(slot, n)
	}
	want := bytes.Clone(msg.Bytes())
	msg.Release()
	b.Start(b)
	for i, got := range b.take(n) {
		at, size := part(i)
		require.Equal(t, uint64(i), got.h.Call)
		requireSame(t, want[at:][:size], got.payload)
	}
	greet(a, b)

	msg = pool.Get(10)
	defer msg.Release()
	for i := range 2 {
		slot, err := link.Refer(t.Context(), transport.Small, msg, i*10, 10-i*10)
		require.NoError(t, err)
		a.Discard(slot)
	}
	_, err := link.Refer(t.Context(), transport.Small, msg, 0, a.MaxPayload()+1)
	require.Error(t, err)
}

// testOrder sends in both directions at once: frames arrive in order of
// Commit.
func testOrder(t *testing.T, pair Pair) {
	const frames = 1000
	a, b := started(t, pair)
	var senders sync.WaitGroup
	for _, s := range [...]*side{a, b} {
		senders.Go(func() {
			for i := range frames {
				payload := pattern(i*37%min(2048, s.MaxPayload()+1), i)
				if err := s.send(transport.Small, call(uint64(i)), payload); err != nil {
					t.Errorf("frame %d: %v", i, err)
					return
				}
			}
		})
	}
	for _, s := range [...]*side{a, b} {
		for i, got := range s.take(frames) {
			require.Equal(t, uint64(i), got.h.Call)
			requireSame(t, pattern(i*37%min(2048, s.MaxPayload()+1), i), got.payload)
		}
	}
	senders.Wait()
}

// testConcurrent has many senders share a link. Each payload carries its
// sender, number and checksum; none may be lost, doubled, torn or overtaken by
// one of the same sender (case 12).
func testConcurrent(t *testing.T, pair Pair) {
	const senders, each = 64, 40
	a, b := started(t, pair)
	var wg sync.WaitGroup
	for id := range senders {
		wg.Go(func() {
			for i := range each {
				size := 12 + (id*131+i*977)%min(4096, a.MaxPayload()-11)
				payload := pattern(size, id+i)
				binary.LittleEndian.PutUint32(payload, uint32(id))
				binary.LittleEndian.PutUint32(payload[4:], uint32(i))
				binary.LittleEndian.PutUint32(payload[8:], crc32.ChecksumIEEE(payload[12:]))
				class := transport.Small
				if id%4 == 0 {
					class = transport.Bulk
				}
				if err := a.send(class, call(uint64(id)), payload); err != nil {
					t.Errorf("sender %d, frame %d: %v", id, i, err)
					return
				}
			}
		})
	}
	next := make([]int, senders)
	for _, got := range b.take(senders * each) {
		p := got.payload
		id, i := binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])
		require.Equal(t, uint64(id), got.h.Call)
		require.Equal(t, binary.LittleEndian.Uint32(p[8:]), crc32.ChecksumIEEE(p[12:]), "sender %d, frame %d", id, i)
		require.Equal(t, next[id], int(i), "order of sender %d", id)
		next[id]++
	}
	wg.Wait()
}

func testStats(t *testing.T, pair Pair) {
	const frames, size = 100, 100
	a, b := started(t, pair)
	before := b.Info().Stats
	for range frames {
		require.NoError(t, a.send(transport.Small, call(1), pattern(size, 0)))
	}
	b.take(frames)
	b.ping() // so that a's completions, or credits, have come in
	a.take(1)
	from, to := a.Info(), b.Info()
	require.Equal(t, a.Kind(), from.Kind)
	require.NotNil(t, from.Local)
	require.NotNil(t, from.Remote)
	require.GreaterOrEqual(t, to.Stats.FramesReceived-before.FramesReceived, uint64(frames))
	require.GreaterOrEqual(t, to.Stats.BytesReceived-before.BytesReceived, uint64(frames*(size+wire.HeaderSize)))
	require.NotZero(t, to.Stats.RecvBatches)
	require.NotZero(t, from.Stats.SendBatches)
	require.Zero(t, to.Stats.Stale)
	// Counters of what was sent may run behind by frames not yet completed.
	require.Eventually(t, func() bool {
		s := a.Info().Stats
		return s.FramesSent >= frames && s.BytesSent >= frames*(size+wire.HeaderSize)
	}, patience, time.Millisecond)
}

// Allocs requires that sending a frame and taking it in allocates nothing on
// either side once the link is warm. It is not part of Run: a simulated device
// may allocate.
func Allocs(t *testing.T, pair Pair) {
	la, lb := pair(t)
	n := nowhere{buf: make([]byte, lb.MaxPayload())}
	la.Start(&nowhere{})
	lb.Start(&n)
	h := call(1)
	sent := int64(0)
	exchange := func() {
		slot, err := la.Reserve(context.Background(), transport.Small, 100)
		if err == nil {
			err = Commit(la, slot, h)
		}
		if err != nil {
			t.Fatal(err)
		}
		sent++
		for n.frames.Load() < sent {
			time.Sleep(10 * time.Microsecond)
		}
	}
	for range 1000 {
		exchange()
	}
	// Half an object: a garbage collection that empties the pools is not a
	// matter of the link.
	most := 0.5
	if pooltest.Forgets() {
		most = 3
	}
	require.Less(t, testing.AllocsPerRun(1000, exchange), most)
	for _, l := range [...]transport.Link{la, lb} {
		l.Close(nil)
	}
	<-la.Done()
	<-lb.Done()
}

// nowhere counts frames.
type nowhere struct {
	buf    []byte
	frames atomic.Int64
}

func (n *nowhere) Take(h *wire.Header, _ []byte) error { return n.Frame(h) }
func (n *nowhere) Land(h *wire.Header) ([]byte, error) { return n.buf[:h.Length], nil }
func (n *nowhere) Frame(*wire.Header) error            { n.frames.Add(1); return nil }
func (n *nowhere) Closed(error)                        {}
