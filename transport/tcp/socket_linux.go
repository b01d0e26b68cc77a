package tcp

import (
	"io"
	"net"
	"os"
	"runtime"
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

// maxVector is how many pieces of frames one write takes. More gain nothing: the cost
// of the call is spread thin long before.
const maxVector = 128

// rawWriter writes to a socket without waiting for it. It belongs to the
// holder of the flush flag.
type rawWriter struct {
	conn    syscall.RawConn
	try     func(fd uintptr) bool // made once: a closure per call would allocate
	persist func(fd uintptr) bool
	few     struct {
		pieces [fewPieces][]byte
		vector [fewPieces]unix.Iovec
	}
	many   *manyPieces  // nil until more than few were written at once
	vector []unix.Iovec // of the write under way
	msg    unix.Msghdr  // of vector
	n      int          // result of the last write
	errno  syscall.Errno
}

// fewPieces is for how many pieces every link has memory.
const fewPieces = 8

// manyPieces is the memory for as many as one write takes, 5 KiB. Links share none:
// with 256 callers that cost a tenth of the calls.
type manyPieces struct {
	pieces [maxVector][]byte
	vector [maxVector]unix.Iovec
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
	w.try = func(fd uintptr) bool { w.send(fd); return true }
	w.persist = func(fd uintptr) bool { w.send(fd); return w.errno != syscall.EAGAIN }
	return w
}

// write writes the frames that fit one system call. With block it waits until the
// socket takes some.
func (w *rawWriter) write(o *outgoing, block bool) (int64, error) {
	pieces, vector, skip := w.few.pieces[:0], w.few.vector[:], o.written
	if len(o.frames)*maxPieces > fewPieces {
		if w.many == nil {
			w.many = new(manyPieces)
		}
		pieces, vector = w.many.pieces[:0], w.many.vector[:]
	}
	for _, f := range o.frames {
		if len(pieces) > maxVector-maxPieces {
			break
		}
		pieces = f.pieces(pieces, skip)
		skip = 0
	}
	w.vector = vector[:len(pieces)]
	for i, b := range pieces {
		w.vector[i].Base = &b[0]
		w.vector[i].SetLen(len(b))
	}
	fn := w.try
	if block {
		fn = w.persist
	}
	err := w.conn.Write(fn)
	clear(w.vector)
	clear(pieces)
	w.vector = nil
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

// acked is how many bytes the peer's system has acknowledged (tcpi_bytes_acked, RFC 4898).
// Any goroutine may call it.
func (w *rawWriter) acked() (n uint64) {
	_ = w.conn.Control(func(fd uintptr) { // an error: it is closed
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Bytes_acked
		}
	})
	return n
}

func (w *rawWriter) send(fd uintptr) {
	if len(w.vector) == 1 {
		w.n, w.errno = transfer(unix.SYS_SENDTO, fd, unsafe.Pointer(w.vector[0].Base), int(w.vector[0].Len), flags)
		return
	}
	w.n, w.errno = transferVector(unix.SYS_SENDMSG, fd, &w.msg, w.vector)
}

// rawReader reads from a socket to two places in one system call, or to one that
// is there once there is something to read. It belongs to who has the turn to read.
type rawReader struct {
	conn   syscall.RawConn
	try    func(fd uintptr) bool // made once: a closure per call would allocate
	late   func(fd uintptr) bool
	vector [2]unix.Iovec
	msg    unix.Msghdr // of vector
	to     *parser     // of readLate
	n      int         // result of the last read
	errno  syscall.Errno

	canSpin bool // others can run meanwhile; fixed
	helped  bool // by who waits for what comes; the reader, who waits for anything, never spins
	first   spin // where a frame is to begin
	rest    spin // where one has begun
}

// newRawReader returns nil if conn is not a TCP connection.
func newRawReader(conn net.Conn) *rawReader {
	rc := rawConn(conn)
	if rc == nil {
		return nil
	}
	r := &rawReader{conn: rc, canSpin: runtime.GOMAXPROCS(0) > 1}
	receive, fill := r.receive, r.fill
	r.try = func(fd uintptr) bool { return r.look(fd, receive, &r.rest) }
	r.late = func(fd uintptr) bool {
		there := r.look(fd, fill, &r.first)
		if !there {
			r.to.give()
		}
		return there
	}
	return r
}

// look says whether there was something to read, or is while it is worth to look
// again.
func (r *rawReader) look(fd uintptr, read func(fd uintptr), s *spin) bool {
	there := func() bool {
		read(fd)
		return r.errno != syscall.EAGAIN
	}
	return there() || r.canSpin && r.helped && s.begin() && s.while(there)
}

// help says that a helper reads.
func (r *rawReader) help(on bool) { r.helped = on }

// read waits until there are bytes and fills first, then second, as far as they
// go. Neither is empty.
func (r *rawReader) read(first, second []byte) (int, error) {
	for i, b := range [...][]byte{first, second} {
		r.vector[i].Base = &b[0]
		r.vector[i].SetLen(len(b))
	}
	err := r.conn.Read(r.try)
	clear(r.vector[:])
	return r.result(err)
}

// readLate waits until there are bytes, and reads some to where p has room. While
// there are none, p has its buffer given back. To try, and to wait, in two calls
// would miss what comes between them.
func (r *rawReader) readLate(p *parser) (int, error) {
	r.to = p
	return r.result(r.conn.Read(r.late))
}

func (r *rawReader) result(err error) (int, error) {
	switch {
	case err != nil:
		return 0, err
	case r.errno != 0:
		return 0, os.NewSyscallError("read", r.errno)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

func (r *rawReader) fill(fd uintptr) {
	b := r.to.room()
	r.n, r.errno = transfer(unix.SYS_RECVFROM, fd, unsafe.Pointer(&b[0]), len(b), flags)
}

func (r *rawReader) receive(fd uintptr) {
	r.n, r.errno = transferVector(unix.SYS_RECVMSG, fd, &r.msg, r.vector[:])
}

// flags have a transfer not wait, whatever mode somebody has put the socket in.
const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL

// transferVector sends from or receives to several places.
func transferVector(call, fd uintptr, m *unix.Msghdr, vector []unix.Iovec) (int, syscall.Errno) {
	m.Iov = &vector[0]
	m.SetIovlen(len(vector))
	return transfer(call, fd, unsafe.Pointer(m), flags, 0)
}

// transfer sends or receives without waiting. So it keeps its P: the runtime takes those
// of system calls that last for 20 µs, as these do where they copy much, and a call that
// finds its P gone waits for another. What has to stop all goroutines waits for it
// instead, as long as it takes to copy what the socket has room for.
//
// arg, third and fourth are those of the call: one place costs the kernel less by
// sendto(2) and recvfrom(2) than in a message.
func transfer(call, fd uintptr, arg unsafe.Pointer, third, fourth int) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(arg), uintptr(third), uintptr(fourth), 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
