package transport

import (
	"fmt"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// sentFrames is what a lane has sent: it numbers frames and keeps a copy of
// each until the peer has said that it took it in, so that they can be sent
// again on another link. It is a pure core.
//
// Numbers are compared modulo 2^32: acked <= leaving <= next. Frames from acked
// to next are kept; those from leaving on have still to leave on the present
// link, the next to leave first.
type sentFrames struct {
	next    uint32 // number of the next new frame
	leaving uint32 // number of the frame that leaves next
	acked   uint32 // number that the peer expects

	kept  []keptFrame // that of number n at n modulo length, a power of two
	bytes int         // of kept payloads
	again uint64      // frames that were sent again
}

// keptFrame is a frame as it left.
type keptFrame struct {
	h   wire.Header
	buf *pool.Buf // of the payload; nil if it is empty
}

// freed is what the peer has taken in, by class.
type freed [Control]struct{ count, bytes int }

func (s *sentFrames) len() uint32 { return s.next - s.acked }

func (s *sentFrames) at(n uint32) *keptFrame { return &s.kept[n&uint32(len(s.kept)-1)] }

// stamp numbers a frame that leaves: the next of those to be sent again, or a
// new one, which it copies.
func (s *sentFrames) stamp(h *wire.Header, payload []byte) {
	h.Seq = s.leaving
	s.leaving++
	if h.Seq != s.next {
		s.again++
		return
	}
	s.next++
	if s.len() > uint32(len(s.kept)) {
		s.grow()
	}
	k := s.at(h.Seq)
	k.h = *h
	if len(payload) > 0 {
		k.buf = pool.Get(len(payload))
		copy(k.buf.Bytes(), payload)
		s.bytes += len(payload)
	}
}

func (s *sentFrames) grow() {
	old := *s
	s.kept = make([]keptFrame, max(16, 2*len(old.kept)))
	for n := s.acked; n != s.next-1; n++ {
		*s.at(n) = *old.at(n)
	}
}

// ack drops what the peer has taken in: all before n. What it said before it
// said something newer changes nothing.
func (s *sentFrames) ack(n uint32) (freed, error) {
	var f freed
	if int32(n-s.acked) < 0 {
		return f, nil
	}
	if n-s.acked > s.leaving-s.acked {
		return f, &wire.ParseError{Field: "ack", Got: uint64(n), Want: fmt.Sprintf("at most %#x, the next to be sent", s.leaving)}
	}
	for ; s.acked != n; s.acked++ {
		k := s.at(s.acked)
		c := &f[classOf(&k.h)]
		c.count++
		if k.buf != nil {
			c.bytes += k.buf.Len()
			s.bytes -= k.buf.Len()
			k.buf.Release()
		}
		*k = keptFrame{}
	}
	return f, nil
}

// rewind makes the frames that the peer has not taken in leave again.
func (s *sentFrames) rewind() { s.leaving = s.acked }

// reset drops everything.
func (s *sentFrames) reset() {
	for ; s.acked != s.next; s.acked++ {
		if k := s.at(s.acked); k.buf != nil {
			k.buf.Release()
		}
	}
	s.kept, s.bytes, s.leaving = nil, 0, s.next
}

// classOf is the class that a frame of a lane was reserved in: chunks are Bulk.
func classOf(h *wire.Header) Class {
	if h.Flags&(wire.More|wire.Cont) != 0 {
		return Bulk
	}
	return Small
}
