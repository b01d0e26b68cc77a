package tcp

import (
	"io"
	"net"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unsentBytes bounds what the kernel takes in beyond what TCP may send, so
// that a small message waits here, where Bulk has its limit, and not behind
// megabytes in the socket.
const unsentBytes = 256 << 10

// setUserTimeout bounds the time that data, or a closed window, may stay
// without progress; keepalive alone looks at idle connections only (tcp(7)).
func setUserTimeout(tc *net.TCPConn, d time.Duration) error {
	rc, err := tc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = rc.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		if failed == nil {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
		}
	})
	if err == nil {
		err = failed
	}
	return err
}

// maxVector is how many pieces of frames one writev takes. More gain nothing: the cost
// of the call is spread thin long before.
const maxVector = 128

// rawWriter writes to a socket without waiting for it. It belongs to the
// holder of the flush flag.
type rawWriter struct {
	conn    syscall.RawConn
	try     func(fd uintptr) bool // made once: a closure per call would allocate
	persist func(fd uintptr) bool
	pieces  [maxVector][]byte
	vector  [maxVector]unix.Iovec
	used    int
	n       int // result of the last writev
	errno   syscall.Errno
}

// rawConn is the socket of conn; nil if conn is not a TCP connection.
func rawConn(conn net.Conn) syscall.RawConn {
	tc, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	rc, err := tc.SyscallConn()
	if err != nil {
		return nil
	}
	return rc
}

// newRawWriter returns nil if conn is not a TCP connection.
func newRawWriter(conn net.Conn) *rawWriter {
	rc := rawConn(conn)
	if rc == nil {
		return nil
	}
	w := &rawWriter{conn: rc}
	w.try = func(fd uintptr) bool { w.writev(fd); return true }
	w.persist = func(fd uintptr) bool { w.writev(fd); return w.errno != syscall.EAGAIN }
	return w
}

// write writes the frames that fit one writev. With block it waits until the
// socket takes some.
func (w *rawWriter) write(o *outgoing, block bool) (int64, error) {
	pieces, skip := w.pieces[:0], o.written
	for _, f := range o.frames {
		if len(pieces) > maxVector-maxPieces {
			break
		}
		pieces = f.pieces(pieces, skip)
		skip = 0
	}
	for i, b := range pieces {
		w.vector[i].Base = &b[0]
		w.vector[i].SetLen(len(b))
	}
	w.used = len(pieces)
	fn := w.try
	if block {
		fn = w.persist
	}
	err := w.conn.Write(fn)
	clear(w.vector[:w.used])
	clear(w.pieces[:w.used])
	switch {
	case err != nil:
		return 0, err
	case w.errno == syscall.EAGAIN:
		return 0, errWouldBlock
	case w.errno != 0:
		return 0, w.errno
	}
	return int64(w.n), nil
}

func (w *rawWriter) writev(fd uintptr) {
	for {
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&w.vector[0])), uintptr(w.used))
		if errno != syscall.EINTR {
			w.n, w.errno = int(n), errno
			return
		}
	}
}

// rawReader reads from a socket to two places in one system call. It belongs to
// the reader.
type rawReader struct {
	conn   syscall.RawConn
	try    func(fd uintptr) bool // made once: a closure per call would allocate
	vector [2]unix.Iovec
	n      int // result of the last readv
	errno  syscall.Errno
}

// newRawReader returns nil if conn is not a TCP connection.
func newRawReader(conn net.Conn) *rawReader {
	rc := rawConn(conn)
	if rc == nil {
		return nil
	}
	r := &rawReader{conn: rc}
	r.try = func(fd uintptr) bool { r.readv(fd); return r.errno != syscall.EAGAIN }
	return r
}

// read waits until there are bytes and fills first, then second, as far as they
// go. Neither is empty.
func (r *rawReader) read(first, second []byte) (int, error) {
	for i, b := range [...][]byte{first, second} {
		r.vector[i].Base = &b[0]
		r.vector[i].SetLen(len(b))
	}
	err := r.conn.Read(r.try)
	clear(r.vector[:])
	switch {
	case err != nil:
		return 0, err
	case r.errno != 0:
		return 0, r.errno
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

func (r *rawReader) readv(fd uintptr) {
	for {
		n, _, errno := syscall.Syscall(syscall.SYS_READV, fd, uintptr(unsafe.Pointer(&r.vector[0])), uintptr(len(r.vector)))
		if errno != syscall.EINTR {
			r.n, r.errno = int(n), errno
			return
		}
	}
}
