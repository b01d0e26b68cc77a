package tcp

import (
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// ears is a Receiver that counts what comes.
type ears struct {
	sinkhole
	got chan wire.Header
}

func (e *ears) Take(h *wire.Header, payload []byte) error { return linktest.Take(e, h, payload) }

func (e *ears) Frame(h *wire.Header) error {
	e.got <- *h
	return nil
}

// TestIdleLinkHoldsNoBuffer: a link that waits for its peer holds no memory to
// read into, nor any to write from.
func TestIdleLinkHoldsNoBuffer(t *testing.T) {
	const (
		pairs = 128
		most  = 8 << 10 // bytes of both links; the buffer alone is 64 KiB
	)
	var links []transport.Link
	pair := func() {
		a, b := overTCP(t)
		links = append(links, a, b)
		heard := &ears{got: make(chan wire.Header, 1)}
		a.Start(&ears{})
		b.Start(heard)
		slot, err := a.Reserve(t.Context(), transport.Small, 100)
		require.NoError(t, err)
		require.NoError(t, linktest.Commit(a, slot, &wire.Header{Kind: wire.Call, Lane: transport.LaneID, Total: 100}))
		<-heard.got
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // pools let go with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	pair() // makes what is there once
	before := heap()
	for range pairs {
		pair()
	}
	var each int64
	require.Eventually(t, func() bool {
		each = (heap() - before) / pairs
		return each <= most
	}, 20*time.Second, 50*time.Millisecond, "pairs of links hold more than %d bytes", most)
	t.Logf("%d bytes for each pair", each)
	for _, l := range links {
		l.Close(nil)
	}
	for _, l := range links {
		<-l.Done()
	}
}

// TestDribble: frames that come byte by byte, with waits anywhere, are the same
// frames.
func TestDribble(t *testing.T) {
	pooltest.Check(t)
	src, conn := sockets(t)
	defer conn.Close() //nolint:errcheck // it was read only
	b, payload := stream(0, 1, 100, 0, 300)
	go func() {
		defer src.Close() //nolint:errcheck // the stream ends here
		for i := range b {
			if _, err := src.Write(b[i : i+1]); err != nil {
				return
			}
			if i%16 == 0 {
				time.Sleep(time.Millisecond) // the reader waits, with or without a part of a frame
			}
		}
	}()
	s := &sinkhole{}
	p := parser{src: conn, vec: newRawReader(conn), recv: s, owner: s, count: new(counters)}
	require.ErrorIs(t, p.run(), io.EOF)
	p.give()
	require.Len(t, s.frames, 5)
	require.Equal(t, payload, s.payload)
}
