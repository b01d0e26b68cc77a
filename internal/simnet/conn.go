package simnet

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

// maxSegment is how many bytes of a Write travel together.
const maxSegment = 64 << 10

// stream is one direction of a connection. Network.mu guards it.
type stream struct {
	segments []segment // in order of arrival, not read yet
	size     int       // bytes of them
	resetAt  time.Time // when an RST arrives; zero: none
	ended    bool      // a FIN was sent

	readable chan struct{} // one token: the reader looks again
	writable chan struct{} // one token: the writer looks again
}

// segment is bytes that arrive at a time; none are a FIN.
type segment struct {
	data []byte
	at   time.Time
}

func newStream() *stream {
	return &stream{readable: make(chan struct{}, 1), writable: make(chan struct{}, 1)}
}

// send adds a segment, behind those before it.
func (s *stream) send(data []byte, at time.Time) {
	if n := len(s.segments); n > 0 && at.Before(s.segments[n-1].at) {
		at = s.segments[n-1].at
	}
	s.segments = append(s.segments, segment{data, at})
	s.size += len(data)
	signal(s.readable)
}

func (s *stream) reset(at time.Time) {
	if s.resetAt.IsZero() {
		s.resetAt = at
		signal(s.readable)
	}
}

// again has all that did not arrive before the cut arrive at a time.
func (s *stream) again(cut, at time.Time) {
	for i := range s.segments {
		if s.segments[i].at.After(cut) {
			s.segments[i].at = at
		}
	}
	if s.resetAt.After(cut) {
		s.resetAt = at
	}
	signal(s.readable)
}

// take moves what has arrived to b.
func (s *stream) take(b []byte, now time.Time) (n int) {
	for n < len(b) && len(s.segments) > 0 {
		first := &s.segments[0]
		if first.data == nil || first.at.After(now) {
			break
		}
		k := copy(b[n:], first.data)
		n += k
		if k < len(first.data) {
			first.data = first.data[k:]
			break
		}
		s.segments = slices.Delete(s.segments, 0, 1)
	}
	s.size -= n
	return n
}

// conn is one end of a connection. Network.mu guards what is not fixed.
type conn struct {
	n             *Network
	local, remote netip.AddrPort
	path          *path // to the other end
	other         *conn // the other end
	in, out       *stream

	err                         error // why nothing works any more
	readDeadline, writeDeadline time.Time
}

func (c *conn) way() way { return way{c.local.Addr(), c.remote.Addr()} }

// fail ends this end. Network.mu is held.
func (c *conn) fail(why error) {
	if c.err != nil {
		return
	}
	c.err = why
	c.in.segments, c.in.size = nil, 0
	c.n.conns = slices.DeleteFunc(c.n.conns, func(o *conn) bool { return o == c })
	signal(c.in.readable)
	signal(c.in.writable)
	signal(c.out.writable)
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	for {
		c.n.mu.Lock()
		n, next, err := c.read(b)
		c.n.mu.Unlock()
		if n > 0 || err != nil || len(b) == 0 {
			return n, c.opError("read", err)
		}
		wait(c.in.readable, next)
	}
}

// read takes what is there, or says when to look again.
func (c *conn) read(b []byte) (n int, next time.Time, err error) {
	now := time.Now()
	if at := c.in.resetAt; !at.IsZero() && !at.After(now) {
		c.fail(syscall.ECONNRESET)
	}
	if c.err != nil {
		return 0, next, c.err
	}
	if n = c.in.take(b, now); n > 0 {
		signal(c.in.writable)
		return n, next, nil
	}
	next = never
	if len(c.in.segments) > 0 {
		if next = c.in.segments[0].at; !next.After(now) {
			return 0, next, io.EOF
		}
	}
	if at := c.in.resetAt; !at.IsZero() && at.Before(next) {
		next = at
	}
	if d := c.readDeadline; !d.IsZero() {
		if !d.After(now) {
			return 0, next, os.ErrDeadlineExceeded
		}
		if d.Before(next) {
			next = d
		}
	}
	return 0, next, nil
}

// wait waits for a token, or until a time.
func wait(token <-chan struct{}, until time.Time) {
	if until == never {
		<-token
		return
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-token:
	case <-t.C:
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (written int, err error) {
	for written < len(b) {
		c.n.mu.Lock()
		n, next, err := c.write(b[written:])
		c.n.mu.Unlock()
		written += n
		if err != nil {
			return written, c.opError("write", err)
		}
		if n == 0 {
			wait(c.out.writable, next)
		}
	}
	return written, nil
}

// write sends what the window takes, or says when to look again.
func (c *conn) write(b []byte) (n int, next time.Time, err error) {
	switch d := c.writeDeadline; {
	case c.err != nil:
		return 0, next, c.err
	case c.out.ended:
		return 0, next, syscall.EPIPE
	case d.IsZero():
		next = never
	case !d.After(time.Now()):
		return 0, next, os.ErrDeadlineExceeded
	default:
		next = d
	}
	n = min(len(b), maxSegment, c.n.cfg.Window-c.out.size)
	if n <= 0 {
		return 0, next, nil
	}
	data := bytes.Clone(b[:n])
	if c.n.cfg.OnWrite != nil {
		c.n.cfg.OnWrite(c.local.Addr(), c.remote.Addr(), data)
	}
	at := c.n.arrival(c.path, n)
	if c.other.err != nil {
		c.in.reset(at.Add(c.n.cfg.Latency)) // nobody is there to take it
	}
	c.out.send(data, at)
	return n, next, nil
}

// CloseWrite sends a FIN.
func (c *conn) CloseWrite() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.err != nil {
		return c.opError("close", c.err)
	}
	c.finish()
	return nil
}

func (c *conn) finish() {
	if !c.out.ended {
		c.out.ended = true
		c.out.send(nil, c.n.arrival(c.path, 0))
	}
}

// Close implements net.Conn. With bytes that were not read it sends an RST.
func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.err != nil {
		return nil
	}
	if c.in.size > 0 {
		c.out.reset(c.n.arrival(c.path, 0))
	} else {
		c.finish()
	}
	c.fail(net.ErrClosed)
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *conn) setDeadlines(t time.Time, deadlines ...*time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for _, d := range deadlines {
		*d = t
	}
	signal(c.in.readable)
	signal(c.out.writable)
	return nil
}

func (c *conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return opError(op, c.remote, err)
}
