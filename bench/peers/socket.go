package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"

	"github.com/verbena-rpc/verbena/bench/internal/load"
)

// What the sockets allow callers that are goroutines: frames of one size, told
// once, answered in order, with neither codec nor multiplexing. A lone caller
// writes and reads itself. Of many, the first that finds nobody writing writes
// the frames of all that come meanwhile, and a goroutine reads and wakes them.
// The server writes when it has read all there was.
const (
	socketHeader  = 64       // bytes, as of a real header; it leaves the payload on a cache line
	socketBuffer  = 64 << 10 // bytes read or written at once; larger frames go straight to and from their own memory
	socketLargest = 32 << 20 // bytes of a payload
)

func serveSocket(ready func(net.Addr)) error {
	return serveOn(ready, func(l net.Listener) error {
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			go echoFrames(c)
		}
	})
}

// echoFrames answers until the client closes.
func echoFrames(c net.Conn) {
	defer c.Close() //nolint:errcheck // the client has left
	r, w := bufio.NewReaderSize(c, socketBuffer), bufio.NewWriterSize(c, socketBuffer)
	var size uint32
	if binary.Read(r, binary.BigEndian, &size) != nil || size > socketLargest {
		return
	}
	frame := make([]byte, socketHeader+size)
	for {
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		if _, err := w.Write(frame); err != nil {
			return
		}
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
	}
}

type socketConn struct{ addr string }

func dialSocket(_ context.Context, addr string) (conn, error) { return socketConn{addr}, nil }

func (socketConn) close() error { return nil }

// measure makes a connection, for the server knows one size per connection.
func (s socketConn) measure(ctx context.Context, size int, o load.Options) (load.Result, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return load.Result{}, err
	}
	defer c.Close() //nolint:errcheck // what was measured has been answered
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(size))); err != nil {
		return load.Result{}, err
	}
	if o.Callers == 1 {
		return load.Closed(ctx, func() load.Call { return lone(c, size) }, o)
	}
	p := newPipeline(c, socketHeader+size)
	go p.read()
	return load.Closed(ctx, p.newCall, o)
}

// lone is the call of a caller that has the connection for itself.
func lone(c net.Conn, size int) load.Call {
	request, reply := make([]byte, socketHeader+size), make([]byte, socketHeader+size)
	return func(context.Context) error {
		if _, err := c.Write(request); err != nil {
			return err
		}
		_, err := io.ReadFull(c, reply)
		return err
	}
}

// pipeline is a connection with as many frames in flight as there are callers.
// It ends when the connection is closed.
type pipeline struct {
	c     net.Conn
	frame int
	out   []byte // frames, all alike; whoever is writing has it

	mu      sync.Mutex
	waiting []chan error // callers in the order of their frames; read wakes them
	unsent  int          // frames of theirs that nobody writes yet
	writing bool
	err     error // why no more frames come
}

func newPipeline(c net.Conn, frame int) *pipeline {
	return &pipeline{c: c, frame: frame, out: make([]byte, frame*max(1, socketBuffer/frame))}
}

func (p *pipeline) newCall() load.Call {
	done := make(chan error, 1)
	return func(context.Context) error {
		p.send(done)
		return <-done
	}
}

// send sends a frame, or lets who is writing do it.
func (p *pipeline) send(done chan error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		done <- p.err
		return
	}
	p.waiting = append(p.waiting, done)
	p.unsent++
	if p.writing {
		return
	}
	p.writing = true
	for p.unsent > 0 {
		p.mu.Unlock()
		runtime.Gosched() // to those that were woken together with this caller
		p.mu.Lock()
		n := min(p.unsent, len(p.out)/p.frame)
		p.unsent -= n
		p.mu.Unlock()
		if _, err := p.c.Write(p.out[:n*p.frame]); err != nil {
			_ = p.c.Close() // read tells all
		}
		p.mu.Lock()
	}
	p.writing = false
}

// read wakes callers in the order of their frames, and all with the error once
// there is one.
func (p *pipeline) read() {
	reply, in := make([]byte, p.frame), bufio.NewReaderSize(p.c, socketBuffer)
	var woken []chan error
	for {
		n := 0
		for n == 0 || in.Buffered() >= p.frame {
			if _, err := io.ReadFull(in, reply); err != nil {
				p.fail(err)
				return
			}
			n++
		}
		p.mu.Lock()
		n = min(n, len(p.waiting))
		woken = append(woken[:0], p.waiting[:n]...)
		p.waiting = p.waiting[:copy(p.waiting, p.waiting[n:])]
		p.mu.Unlock()
		for _, done := range woken {
			done <- nil
		}
	}
}

func (p *pipeline) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	for _, done := range p.waiting {
		done <- err
	}
	p.waiting = nil
}
