package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/load"
)

// What the sockets allow: frames of one size, told once, with neither codec nor
// multiplexing. A lone caller writes and reads itself. Many are a goroutine that
// writes, one that reads, and a channel between them through which each call
// goes once, as it must where callers are goroutines. Writes are batched on both
// sides: they leave when there is nothing more to add.
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
	return pipelined(c, size, o)
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

// pipelined keeps as many frames in flight as there are callers.
func pipelined(c net.Conn, size int, o load.Options) (load.Result, error) {
	var (
		idle  = make(chan struct{}, o.Callers)
		sent  = make([]atomic.Int64, o.Callers) // when the frames in flight were written, in ns since epoch; a ring
		epoch = time.Now()
	)
	for range o.Callers {
		idle <- struct{}{}
	}
	go func() {
		if writeFrames(c, size, idle, func(n int) { sent[n%o.Callers].Store(int64(time.Since(epoch))) }) != nil {
			_ = c.Close() // the reader says why
		}
	}()
	defer close(idle)

	reply, in := make([]byte, socketHeader+size), bufio.NewReaderSize(c, socketBuffer)
	r := load.Result{Latency: load.NewHistogram()}
	for {
		if _, err := io.ReadFull(in, reply); err != nil {
			return r, fmt.Errorf("read: %w", err)
		}
		now := time.Since(epoch)
		took := now - o.Warmup
		if took >= 0 {
			r.Latency.Record(now - time.Duration(sent[r.AllCalls%int64(o.Callers)].Load()))
			r.Calls++
		}
		r.AllCalls++
		if took >= o.Duration && (r.Calls >= int64(o.Callers) || took >= 10*o.Duration) {
			r.Seconds = took.Seconds()
			return r, nil
		}
		idle <- struct{}{}
	}
}

// writeFrames writes one for each caller that is idle, until idle is closed.
func writeFrames(c net.Conn, size int, idle <-chan struct{}, sending func(n int)) error {
	request, w := make([]byte, socketHeader+size), bufio.NewWriterSize(c, socketBuffer)
	n := 0
	for range idle {
		sending(n)
		n++
		if _, err := w.Write(request); err != nil {
			return err
		}
		if len(idle) == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}
