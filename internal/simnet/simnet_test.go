package simnet

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	hostA  = netip.MustParseAddr("10.9.0.1")
	hostB  = netip.MustParseAddr("10.9.1.1")
	portAt = netip.AddrPortFrom(hostB, 7400)
)

// join connects two hosts.
func join(t *testing.T, n *Network) (a, b net.Conn) {
	t.Helper()
	l, err := n.Listen(portAt)
	require.NoError(t, err)
	a, err = n.Dial(t.Context(), hostA, portAt)
	require.NoError(t, err)
	b, err = l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return a, b
}

func TestBytesTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{Latency: 3 * time.Millisecond, Bandwidth: 1000})
		a, b := join(t, n)
		start := time.Now()
		_, err := a.Write(make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, a.(*conn).CloseWrite())
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Len(t, got, 100)
		require.Equal(t, 103*time.Millisecond, time.Since(start))
		require.NoError(t, b.Close())
		require.NoError(t, a.Close())
		require.Zero(t, n.Open())
	})
}

func TestWindowHoldsTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := join(t, New(Config{Window: 10}))
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := a.Write(make([]byte, 30))
		require.Equal(t, 10, n)
		var late net.Error
		require.ErrorAs(t, err, &late)
		require.True(t, late.Timeout())
		_, err = io.ReadFull(b, make([]byte, 10))
		require.NoError(t, err)
	})
}

// What is sent during a cut arrives after it, in order; a connect waits.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{Latency: time.Millisecond})
		a, b := join(t, n)
		n.Cut(hostA, hostB)
		start := time.Now()
		for _, s := range []string{"on", "e"} {
			_, err := a.Write([]byte(s))
			require.NoError(t, err)
		}
		time.AfterFunc(time.Second, func() { n.Heal(hostA, hostB) })
		_, err := n.Dial(t.Context(), hostA, portAt)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.GreaterOrEqual(t, time.Since(start), time.Second)
		got := make([]byte, 3)
		_, err = io.ReadFull(b, got)
		require.NoError(t, err)
		require.Equal(t, "one", string(got))
	})
}

func TestCutTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{})
		a, b := join(t, n)
		start := time.Now()
		n.Cut(hostA, hostB)
		for _, c := range []net.Conn{a, b} {
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
		}
		require.Equal(t, 15*time.Second, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := n.Dial(ctx, hostA, portAt)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// The end of a process, and bytes that nobody read, are an RST to the peer.
func TestResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{Latency: time.Millisecond})
		a, b := join(t, n)
		n.Kill(hostB)
		for _, c := range []net.Conn{a, b} {
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}

		a, b = join(t, n)
		_, err := a.Write([]byte("unread"))
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond)
		require.NoError(t, b.Close())
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)

		a, b = join(t, n)
		require.NoError(t, b.Close())
		_, err = a.Write([]byte("to nobody"))
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond)
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// A process that died behind a cut is found dead after it.
func TestKilledBehindACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{})
		a, _ := join(t, n)
		n.Cut(hostB, hostA)
		n.Kill(hostB)
		time.AfterFunc(time.Second, func() { n.Heal(hostB, hostA) })
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}
