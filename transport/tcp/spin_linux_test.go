package tcp

import (
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// heard is a Receiver that tells of frames, and changes who reads: a helper or not.
type heard struct {
	sinkhole
	vec  *rawReader
	each chan struct{}
}

func (h *heard) Take(hd *wire.Header, payload []byte) error { return linktest.Take(h, hd, payload) }

func (h *heard) Frame(*wire.Header) error {
	h.vec.help(rand.IntN(3) > 0)
	h.each <- struct{}{}
	return nil
}

// TestSpinAndWait: whatever comes is seen, while a helper looks and when nobody does
// any more.
func TestSpinAndWait(t *testing.T) {
	const patience = 10 * time.Second
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // it was listened at
	src, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	conn, err := l.Accept()
	require.NoError(t, err)
	h := &heard{vec: newRawReader(conn), each: make(chan struct{}, 1)}
	h.vec.canSpin = true
	p := parser{src: conn, vec: h.vec, recv: h, owner: h, count: new(counters)}
	done := make(chan error, 1)
	go func() { done <- p.run() }()
	for range 2000 {
		time.Sleep(time.Duration(rand.IntN(3)) * spinTime)
		b, _ := stream(rand.IntN(200))
		_, err := src.Write(b)
		require.NoError(t, err)
		select {
		case <-h.each:
		case <-time.After(patience):
			t.Fatal("nobody was woken")
		}
	}
	_, err = src.Write(make([]byte, 5)) // of the next
	require.NoError(t, err)
	require.NoError(t, src.Close())
	require.ErrorContains(t, <-done, "frame")
	require.NoError(t, conn.Close())
}
