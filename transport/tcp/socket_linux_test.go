package tcp

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPeerTimeout: whatever a peer that has vanished leaves without an answer,
// data, a closed window or probes of an idle connection, the kernel gives up
// within PeerTimeout (case 65).
func TestPeerTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{0, 5 * time.Second} {
		want := timeout
		if want == 0 {
			want = 15 * time.Second
		}
		c := Carrier{Config{PeerTimeout: timeout}}
		l, err := c.Listen("127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		a, err := c.Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		b, err := l.Accept()
		require.NoError(t, err)
		for _, x := range []*link{a.(*link), b.(*link)} {
			option := func(name int) (value int) {
				rc, err := x.conn.(*net.TCPConn).SyscallConn()
				require.NoError(t, err)
				require.NoError(t, rc.Control(func(fd uintptr) {
					value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name)
				}))
				require.NoError(t, err)
				return value
			}
			user := time.Duration(option(unix.TCP_USER_TIMEOUT)) * time.Millisecond
			probe := time.Duration(option(unix.TCP_KEEPINTVL)) * time.Second
			idle := time.Duration(option(unix.TCP_KEEPIDLE)) * time.Second
			require.LessOrEqual(t, user+probe, want, "data")
			require.LessOrEqual(t, idle+time.Duration(option(unix.TCP_KEEPCNT))*probe, want, "idle")
			require.Equal(t, 1, option(unix.TCP_NODELAY))
			x.Close(nil)
		}
		<-a.Done()
		<-b.Done()
	}
	for _, timeout := range []time.Duration{-1, time.Millisecond, 2 * time.Hour} {
		c := Carrier{Config{PeerTimeout: timeout}}
		_, err := c.Listen("127.0.0.1:0")
		require.ErrorContains(t, err, "PeerTimeout")
	}
}
