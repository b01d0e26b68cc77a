package tcp

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/internal/crowd"
)

// linger bounds how long a regular close waits for frames that were committed
// to leave, and for the peer to close its side. Closing with unread bytes in
// the socket would make TCP throw away what the peer has not read.
const linger = time.Second

// link is a transport.Link over one connection.
//
// Two goroutines serve it: write, from the start until all is released, and
// read, once there is a receiver. Frames leave through whoever holds the flush
// flag: callers of Flush in turn, or write (see send.go). They are taken in by
// whoever has the turn: read, or callers of Help while it rests (see delivery).
//
// It closes in this order: shut sets dead, so that nothing is taken in, and who
// has the turn is interrupted; write gets the flush flag and keeps it; on a
// regular end the frames that are left are written and the peer has time to
// close; the connection is closed; read has the turn, gives it up for good and
// ends; the receiver's Closed is called; frames are released; done is closed.
type link struct {
	conn  net.Conn
	room  room
	raw   *rawWriter // nil where the connection cannot be written without blocking
	wake  chan struct{}
	done  chan struct{}
	crowd crowd.Crowd

	dead   atomic.Bool // as state.dead, for the reader
	tended atomic.Bool // as state.flushing or state.corked, for who has committed: it will leave

	counters counters
	out      outgoing // of the holder of the flush flag
	in       delivery

	mu    sync.Mutex
	state state
}

// state is guarded by link.mu.
type state struct {
	epoch       uint64    // 0: not known yet
	queue       []*frame  // committed, in order
	flushing    bool      // the flush flag
	handed      bool      // its holder left it to the writer
	corked      bool      // the reader will see to it that frames leave
	broken      bool      // nothing can be written any more
	failed      error     // of the write that broke it; the reader ends the link
	until       time.Time // how long the reader may go on; zero: for ever
	interrupted bool      // reads fail, until the reader goes on
	dead        bool
	own         bool  // it ended by Close
	err         error // why; nil: regular end here
	recv        transport.Receiver
	readDone    chan struct{} // nil while there is no reader
}

type counters struct {
	framesSent, framesReceived, bytesSent, bytesReceived, sendBatches, recvBatches atomic.Uint64
}

func newLink(conn net.Conn, cfg Config, epoch uint64) (transport.Link, error) {
	if err := tune(conn, cfg); err != nil {
		conn.Close()
		return nil, err
	}
	l := &link{
		conn:  conn,
		raw:   newRawWriter(conn),
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
		in:    delivery{turn: make(chan struct{}, 1), vacant: make(chan struct{}, 1)},
		state: state{epoch: epoch},
	}
	l.room.init()
	go l.write()
	return l, nil
}

// Kind implements transport.Link.
func (l *link) Kind() transport.Kind { return transport.TCP }

// MaxPayload implements transport.Link.
func (l *link) MaxPayload() int { return MaxPayload }

// Done implements transport.Link.
func (l *link) Done() <-chan struct{} { return l.done }

// Info implements transport.Link.
func (l *link) Info() transport.LinkInfo {
	l.mu.Lock()
	epoch := l.state.epoch
	l.mu.Unlock()
	c := &l.counters
	return transport.LinkInfo{
		Kind: transport.TCP, Epoch: epoch,
		Local: l.conn.LocalAddr(), Remote: l.conn.RemoteAddr(),
		Stats: transport.LinkStats{
			FramesSent: c.framesSent.Load(), FramesReceived: c.framesReceived.Load(),
			BytesSent: c.bytesSent.Load(), BytesReceived: c.bytesReceived.Load(),
			SendBatches: c.sendBatches.Load(), RecvBatches: c.recvBatches.Load(),
		},
	}
}

// Acked implements transport.Acker. It is 0 elsewhere than on Linux.
func (l *link) Acked() uint64 {
	if l.raw == nil {
		return 0
	}
	return l.raw.acked()
}

// Start implements transport.Link.
func (l *link) Start(r transport.Receiver) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.dead {
		if !l.state.own {
			go r.Closed(l.state.err) // who closed it knows
		}
		return
	}
	l.state.recv = r
	l.state.readDone = make(chan struct{})
	go l.read(r, l.state.epoch, l.state.readDone)
}

// Close implements transport.Link.
func (l *link) Close(err error) { l.shut(err, true) }

// shut lets the link die; only the first call counts.
func (l *link) shut(err error, own bool) {
	l.mu.Lock()
	if l.state.dead {
		l.mu.Unlock()
		return
	}
	l.state.dead, l.state.own, l.state.err = true, own, err
	l.state.broken = l.state.broken || err != nil
	l.dead.Store(true)
	if err == nil {
		l.state.until = time.Now().Add(linger)
		_ = l.conn.SetWriteDeadline(l.state.until)
		l.interrupt()
	}
	l.mu.Unlock()

	if err == nil {
		l.room.close(net.ErrClosed)
	} else {
		l.room.close(err)
		l.conn.Close()
	}
	l.in.resume()
	l.wakeWriter()
}

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// write is the goroutine that writes where others would wait, and the one
// that ends the link.
func (l *link) write() {
	for range l.wake {
		l.mu.Lock()
		flush := l.state.handed || l.state.dead && l.takeFlag()
		end := l.state.dead && !l.state.flushing
		l.state.handed = false
		if end {
			l.state.flushing = true // for ever
		}
		l.mu.Unlock()
		switch {
		case flush:
			l.flush(true)
		case end:
			l.tearDown()
			return
		}
	}
}

func (l *link) tearDown() {
	l.mu.Lock()
	regular, err, recv, readDone := l.state.err == nil, l.state.err, l.state.recv, l.state.readDone
	l.mu.Unlock()
	if cw, ok := l.conn.(interface{ CloseWrite() error }); ok && regular && readDone != nil {
		if cw.CloseWrite() == nil {
			<-readDone // until the peer has closed too, or the deadline
		}
	}
	l.conn.Close()
	if readDone != nil {
		<-readDone
	}
	if recv != nil {
		recv.Closed(err)
	}
	l.dropFrames()
	close(l.done)
}
