package tcp

import (
	"net"
	"syscall"
	"testing"
	"time"
	"unsafe"

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

// TestTransferNeverWaits: not even where somebody has had the socket block. Nothing
// else could run then.
func TestTransferNeverWaits(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	for _, fd := range fds {
		defer unix.Close(fd) //nolint:errcheck // nothing was written that matters
	}
	b := make([]byte, 1<<20)
	one := unsafe.Pointer(&b[0])
	vector := make([]unix.Iovec, 2)
	for i := range vector {
		vector[i].Base = &b[i*len(b)/2]
		vector[i].SetLen(len(b) / 2)
	}

	rescue := time.AfterFunc(time.Second, func() { unix.Write(fds[1], b[:1]) })
	_, errno := transfer(unix.SYS_RECVFROM, uintptr(fds[0]), one, len(b), flags)
	require.Equal(t, syscall.EAGAIN, errno)
	_, errno = transferVector(unix.SYS_RECVMSG, uintptr(fds[0]), new(unix.Msghdr), vector)
	require.Equal(t, syscall.EAGAIN, errno)
	require.True(t, rescue.Stop())

	rescue = time.AfterFunc(time.Second, func() { unix.Read(fds[1], make([]byte, 1<<20)) })
	n, errno := transferVector(unix.SYS_SENDMSG, uintptr(fds[0]), new(unix.Msghdr), vector)
	require.Zero(t, errno)
	require.Less(t, n, len(b), "what there was room for")
	require.True(t, rescue.Stop())
	for _, call := range []func() syscall.Errno{
		func() syscall.Errno {
			_, errno := transferVector(unix.SYS_SENDMSG, uintptr(fds[0]), new(unix.Msghdr), vector)
			return errno
		},
		func() syscall.Errno {
			_, errno := transfer(unix.SYS_SENDTO, uintptr(fds[0]), one, len(b), flags)
			return errno
		},
	} {
		rescue = time.AfterFunc(time.Second, func() { unix.Read(fds[1], make([]byte, 1<<20)) })
		require.Equal(t, syscall.EAGAIN, call())
		require.True(t, rescue.Stop())
	}
}

// What the peer's system has acknowledged is known, and no more than was sent.
func TestAcked(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	w := newRawWriter(conn)
	before := w.acked()
	n, err := conn.Write(make([]byte, 1000))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.acked() == before+uint64(n) }, 10*time.Second, time.Millisecond)
	require.NoError(t, conn.Close())
	require.Zero(t, w.acked())
}
