package tcp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// frame is a frame between Reserve and the socket: of the caller up to
// Commit, of the queue, then of the holder of the flush flag.
//
// Its memory is one piece, buf with header, payload and room for the sum; or,
// where the payload is part of a message that buf holds, header and sum in ends.
type frame struct {
	h     wire.Header
	buf   *pool.Buf
	at    int // of the payload in buf
	bytes int // payload, as reserved
	class transport.Class
	refer bool // the payload is part of a message
	ends  [wire.HeaderSize + wire.SumSize]byte
}

var frames = sync.Pool{New: func() any { return new(frame) }}

// maxPieces is how many pieces of memory a frame is in at most.
const maxPieces = 3

// pieces appends what is written of a stamped frame, from byte skip on.
func (f *frame) pieces(to [][]byte, skip int) [][]byte {
	if !f.refer {
		return append(to, f.buf.Bytes()[skip:f.h.FrameSize()])
	}
	sum := f.ends[wire.HeaderSize:][:f.h.FrameSize()-wire.HeaderSize-f.bytes]
	for _, piece := range [maxPieces][]byte{f.ends[:wire.HeaderSize], f.payload(), sum} {
		if skip < len(piece) {
			to = append(to, piece[skip:])
		}
		skip = max(0, skip-len(piece))
	}
	return to
}

func (f *frame) payload() []byte { return f.buf.Bytes()[f.at:][:f.bytes:f.bytes] }

// head is where the header goes.
func (f *frame) head() []byte {
	if f.refer {
		return f.ends[:wire.HeaderSize]
	}
	return f.buf.Bytes()
}

// sum is where the payload sum goes.
func (f *frame) sum() []byte {
	if f.refer {
		return f.ends[wire.HeaderSize:]
	}
	return f.buf.Bytes()[f.at+f.bytes:]
}

func (f *frame) release() {
	f.buf.Release()
	*f = frame{}
	frames.Put(f)
}

// Reserve implements transport.Link.
func (l *link) Reserve(ctx context.Context, class transport.Class, n int) (transport.Slot, error) {
	f, err := l.reserve(ctx, class, n)
	if err != nil {
		return transport.Slot{}, err
	}
	f.buf, f.at = pool.Get(wire.HeaderSize+n+wire.SumSize), wire.HeaderSize
	return f.slot(), nil
}

// Refer implements transport.Referrer.
func (l *link) Refer(ctx context.Context, class transport.Class, buf *pool.Buf, at, n int) (transport.Slot, error) {
	f, err := l.reserve(ctx, class, n)
	if err != nil {
		return transport.Slot{}, err
	}
	buf.Retain()
	f.buf, f.at, f.refer = buf, at, true
	return f.slot(), nil
}

func (l *link) reserve(ctx context.Context, class transport.Class, n int) (*frame, error) {
	if n < 0 || n > MaxPayload {
		return nil, fmt.Errorf("tcp: reserve %d bytes, expected 0 to %d", n, MaxPayload)
	}
	if err := l.room[class].Take(ctx, n); err != nil {
		return nil, err
	}
	f := frames.Get().(*frame)
	f.bytes, f.class = n, class
	return f, nil
}

func (f *frame) slot() transport.Slot {
	return transport.Slot{Payload: f.payload(), Ref: f, Buf: f.buf, At: f.at}
}

// Discard implements transport.Link.
func (l *link) Discard(s transport.Slot) {
	f := s.Ref.(*frame)
	class, bytes := f.class, f.bytes
	f.release()
	l.room[class].Give(1, bytes)
}

// Commit implements transport.Link.
func (l *link) Commit(s transport.Slot, h *wire.Header) error {
	f := s.Ref.(*frame)
	f.h = *h
	f.h.Length, f.h.Credit = uint32(f.bytes), 0
	if f.bytes == 0 {
		f.h.Flags &^= wire.Sum
	}
	if f.h.Flags&wire.Sum != 0 {
		binary.LittleEndian.PutUint64(f.sum(), wire.PayloadSum(f.payload()))
	}

	l.mu.Lock()
	if st := &l.state; st.dead || st.failed != nil {
		err := cmp.Or(st.err, st.failed, net.ErrClosed)
		l.mu.Unlock()
		return err
	}
	l.state.queue = append(l.state.queue, f)
	l.mu.Unlock()
	return nil
}

// Flush implements transport.Link.
func (l *link) Flush() {
	if l.tended.Load() {
		return
	}
	l.mu.Lock()
	mine := l.takeFlag()
	l.mu.Unlock()
	if mine {
		// Others are about to commit: let them, and write once for all.
		// Six times less CPU for each of 64 callers (BenchmarkEcho).
		l.crowd.GiveWay()
		l.flush(false)
	}
}

// takeFlag takes the flush flag if it is free and frames may leave. Callers
// hold mu.
func (l *link) takeFlag() bool {
	st := &l.state
	if st.flushing || st.broken || st.epoch == 0 || len(st.queue) == 0 || st.corked && !st.dead {
		return false
	}
	st.flushing = true
	l.tended.Store(true)
	return true
}

// cork holds back what is committed while the reader delivers many frames, so
// that the answers leave together.
func (l *link) cork() {
	l.mu.Lock()
	l.state.corked = true
	l.tended.Store(true)
	l.mu.Unlock()
}

// uncork lets frames leave again.
func (l *link) uncork() {
	l.mu.Lock()
	l.state.corked = false
	l.tended.Store(l.state.flushing)
	mine := l.takeFlag()
	l.mu.Unlock()
	if mine {
		l.flush(false)
	}
}

// outgoing belongs to the holder of the flush flag.
type outgoing struct {
	frames  []*frame // stamped, not wholly written
	written int      // bytes of the first
	bufs    net.Buffers
}

// maxRounds is how many batches a caller writes, its own first, before it
// leaves those of others to the writer.
const maxRounds = 4

var errWouldBlock = errors.New("tcp: write would block")

// flush writes what was committed until nothing is left, and puts the flag
// down. Without block, it hands the flag to the writer where it would wait.
func (l *link) flush(block bool) {
	for round := 0; l.nextBatch(); round++ {
		if round == maxRounds && !block {
			l.hand()
			return
		}
		n, err := l.writeOut(block)
		l.wrote(n)
		switch {
		case err == errWouldBlock:
			l.hand()
			return
		case err != nil:
			l.writeFailed(fmt.Errorf("tcp: write: %w", err))
		}
		// To those who came meanwhile, as in Flush: 5 to 20 % more calls of 16 and 256
		// callers.
		l.crowd.GiveWay()
	}
}

// writeFailed ends a link that cannot send any more: at once, or where there
// is a reader, when that has taken in what the peer had sent before. It may
// say why, and is lost with the connection.
func (l *link) writeFailed(err error) {
	l.mu.Lock()
	st := &l.state
	st.broken = true
	reading := st.readDone != nil && !st.dead
	if reading {
		st.failed = err
		st.until = time.Now().Add(linger)
		l.interrupt()
	}
	l.mu.Unlock()
	if reading {
		l.in.resume()
		l.room.close(err)
		return
	}
	l.shut(err, false)
}

// hand leaves the flag to the writer.
func (l *link) hand() {
	l.mu.Lock()
	l.state.handed = true
	l.mu.Unlock()
	l.wakeWriter()
}

// nextBatch stamps what was committed since. It returns false, the flag put
// down, if nothing is left or may leave any more.
func (l *link) nextBatch() bool {
	o := &l.out
	old := len(o.frames)
	l.mu.Lock()
	st := &l.state
	if st.broken || old+len(st.queue) == 0 {
		st.flushing = false
		l.tended.Store(st.corked)
		dead := st.dead
		l.mu.Unlock()
		if dead {
			l.wakeWriter()
		}
		return false
	}
	if old == 0 {
		o.frames, st.queue = st.queue, o.frames
	} else {
		o.frames = append(o.frames, st.queue...)
		clear(st.queue)
		st.queue = st.queue[:0]
	}
	epoch := st.epoch
	l.mu.Unlock()
	for _, f := range o.frames[old:] {
		f.h.Epoch = epoch
		f.h.Put(f.head())
	}
	return true
}

// writeOut writes as much as one system call takes.
func (l *link) writeOut(block bool) (int64, error) {
	if l.raw != nil {
		return l.raw.write(&l.out, block)
	}
	if !block {
		return 0, errWouldBlock
	}
	o := &l.out
	bufs := o.bufs[:0]
	skip := o.written
	for _, f := range o.frames {
		bufs = f.pieces(bufs, skip)
		skip = 0
	}
	o.bufs = bufs // WriteTo cuts the copy that it is given
	return bufs.WriteTo(l.conn)
}

// wrote releases the frames that n more bytes complete.
func (l *link) wrote(n int64) {
	if n <= 0 {
		return
	}
	o := &l.out
	var back [3]amount
	left, done := int(n)+o.written, 0
	for _, f := range o.frames {
		size := f.h.FrameSize()
		if size > left {
			break
		}
		left -= size
		done++
		back[f.class].frames++
		back[f.class].bytes += f.bytes
		f.release()
	}
	rest := copy(o.frames, o.frames[done:])
	clear(o.frames[rest:])
	o.frames, o.written = o.frames[:rest], left
	l.counters.sendBatches.Add(1)
	l.counters.bytesSent.Add(uint64(n))
	l.counters.framesSent.Add(uint64(done))
	l.room.give(&back)
}

// dropFrames releases what will not be sent; the writer calls it at the end.
func (l *link) dropFrames() {
	for _, f := range l.out.frames {
		f.release()
	}
	for _, f := range l.state.queue {
		f.release()
	}
	l.out, l.state.queue = outgoing{}, nil
}
