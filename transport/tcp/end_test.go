package tcp

import (
	"bytes"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

const patience = 20 * time.Second // a deadline that only a hang exceeds

// brokenConn cannot be written to. What the peer had sent before comes out of
// Read once a write has failed.
type brokenConn struct {
	net.Conn // of the methods that nobody calls
	had      io.Reader
	failed   chan struct{}
	closed   chan struct{}
}

func newBrokenConn(had []byte) *brokenConn {
	return &brokenConn{had: bytes.NewReader(had), failed: make(chan struct{}), closed: make(chan struct{})}
}

func (c *brokenConn) Write([]byte) (int, error) {
	close(c.failed)
	return 0, syscall.EPIPE
}

func (c *brokenConn) Read(b []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-c.failed:
	}
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-time.After(20 * time.Millisecond): // the write error comes first
		return c.had.Read(b)
	}
}

func (c *brokenConn) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return nil
}

func (c *brokenConn) SetReadDeadline(time.Time) error  { return nil }
func (c *brokenConn) SetWriteDeadline(time.Time) error { return nil }

// witness notes what a link delivers.
type witness struct {
	sinkhole
	closed chan error
}

func (w *witness) Closed(err error) { w.closed <- err }

func ping(t *testing.T, l transport.Link) {
	t.Helper()
	slot, err := l.Reserve(t.Context(), transport.Control, 0)
	require.NoError(t, err)
	require.NoError(t, linktest.Commit(l, slot, &wire.Header{Kind: wire.Ping}))
}

func (w *witness) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.closed:
		return err
	case <-time.After(patience):
		require.FailNow(t, "the receiver was not told of the end")
		return nil
	}
}

// A link that died before it was started tells its receiver so.
func TestDeathBeforeStart(t *testing.T) {
	l, err := Client(newBrokenConn(nil))
	require.NoError(t, err)
	ping(t, l)
	<-l.Done()
	w := &witness{closed: make(chan error, 2)}
	l.Start(w)
	require.ErrorIs(t, w.wait(t), syscall.EPIPE)
}

// What the peer had sent, its reason above all, is taken in before a write
// error ends the link.
func TestWriteErrorHidesNothing(t *testing.T) {
	b, _ := stream(2*readSize, 1)
	conn := newBrokenConn(b)
	l, err := newLink(conn, Config{}, 77)
	require.NoError(t, err)
	w := &witness{closed: make(chan error, 2)}
	l.Start(w)
	ping(t, l)
	require.ErrorIs(t, w.wait(t), syscall.EPIPE)
	require.Len(t, w.frames, 2)
	_, err = l.Reserve(t.Context(), transport.Small, 1)
	require.ErrorIs(t, err, syscall.EPIPE)
	<-l.Done()
}

// closer closes its link while a payload lands.
type closer struct {
	sinkhole
	over bool
}

func (c *closer) Land(h *wire.Header) ([]byte, error) {
	c.over = true
	return c.sinkhole.Land(h)
}

func (c *closer) stopped() bool { return c.over }

// A frame whose payload was landing when the link was closed is not delivered.
func TestNoFrameAfterClose(t *testing.T) {
	b, _ := stream(2*readSize, 1)
	c := &closer{}
	p := parser{src: bytes.NewReader(b), recv: c, owner: c, count: new(counters), buf: make([]byte, readSize)}
	require.ErrorIs(t, p.run(), errStopped)
	require.Empty(t, c.frames)
}

// What was committed before a regular close arrives although the peer still sends:
// a socket closed over bytes that nobody has read resets the connection, and what
// it has still to send is gone.
func TestCloseWhileThePeerSends(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close() //nolint:errcheck // it was listened at
	peer, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer peer.Close() //nolint:errcheck // it was read to the end
	require.NoError(t, peer.(*net.TCPConn).SetReadBuffer(64<<10))
	conn, err := listener.Accept()
	require.NoError(t, err)
	l, err := newLink(conn, Config{}, 77)
	require.NoError(t, err)
	w := &witness{closed: make(chan error, 2)}
	l.Start(w)

	const frames, size = 8, 64 << 10 // more than the peer's socket holds unread
	for range frames {
		slot, err := l.Reserve(t.Context(), transport.Bulk, size)
		require.NoError(t, err)
		require.NoError(t, linktest.Commit(l, slot, &wire.Header{Kind: wire.Call, Lane: transport.LaneID, Total: size}))
	}
	l.Close(nil)
	b, _ := stream(1)
	for range 20 {
		_, err := peer.Write(b)
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
	}
	got, err := io.Copy(io.Discard, peer)
	require.NoError(t, err)
	require.GreaterOrEqual(t, got, int64(frames*size))
	require.NoError(t, peer.Close())
	require.NoError(t, w.wait(t))
	<-l.Done()
}
