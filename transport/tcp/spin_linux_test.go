package tcp

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
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
	src, conn := sockets(t)
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
	_, err := src.Write(make([]byte, 5)) // of the next
	require.NoError(t, err)
	require.NoError(t, src.Close())
	require.ErrorContains(t, <-done, "frame")
	require.NoError(t, conn.Close())
}

// Who helps looks again before he sleeps, and only he.
func TestHelpersSpin(t *testing.T) {
	a, b := overTCP(t)
	u := &user{link: a.(*link), closed: make(chan error, 1)}
	peer := &user{link: b.(*link), closed: make(chan error, 1)}
	a.Start(u)
	b.Start(peer)
	ping(t, a) // names the epoch
	peer.done.Wait()
	rested := func(look func(r *rawReader)) {
		require.Eventually(t, func() bool {
			go ping(t, b)
			u.wait()
			return u.rests()
		}, 10*time.Second, time.Millisecond)
		u.link.in.turn <- struct{}{}
		look(u.link.in.parser.vec)
		<-u.link.in.turn
	}
	rested(func(r *rawReader) { r.canSpin = true })
	for range 100 {
		go ping(t, b)
		u.wait()
	}
	rested(func(r *rawReader) {
		require.NotZero(t, r.first)
		require.False(t, r.helped)
	})
	for _, l := range []transport.Link{a, b} {
		l.Close(nil)
	}
	<-a.Done()
	<-b.Done()
}
