package transport

import (
	"fmt"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// sentFrames is what a lane has to send and has sent: it numbers frames and
// keeps each until the peer has said that it took it in, so that it can be sent
// again on another link. It is a pure core.
//
// Numbers are compared modulo 2^32: acked <= leaving <= next and
// acked <= left <= next. Frames from acked to next are kept; those from leaving
// on have still to leave on the present link.
type sentFrames struct {
	next    uint32 // number of the next new frame
	leaving uint32 // number of the frame that leaves next
	left    uint32 // number after the last that left on any link
	acked   uint32 // number that the peer expects

	kept  []keptFrame // that of number n at n modulo length, a power of two
	bytes int         // of kept payloads
	again uint64      // frames that left again

	narrow int // bytes that the payload of a frame should have at most
	wide   int // kept frames that have more
}

// keptFrame is a frame as it leaves, but for Ack. Its payload is length bytes
// of buf, from at on, or of small.
type keptFrame struct {
	h      wire.Header
	buf    *pool.Buf // nil if small has the payload
	at     int
	length int
	small  [smallKept]byte
}

// smallKept is how large a payload is copied into the frame that is kept, in
// bytes, instead of into a buffer: calls over a link that costs nothing became
// 8 % cheaper.
const smallKept = 128

// keep notes the payload in the slot, which came in buf, from at on, if it is not small.
func (k *keptFrame) keep(payload []byte, buf *pool.Buf, at int) {
	k.length = len(payload)
	if k.buf, k.at = buf, at; buf == nil {
		copy(k.small[:], payload)
	}
}

// bytes is the payload.
func (k *keptFrame) bytes() []byte {
	if k.buf == nil {
		return k.small[:k.length]
	}
	return k.buf.Bytes()[k.at:][:k.length]
}

func (k *keptFrame) release() {
	if k.buf != nil {
		k.buf.Release()
		k.buf = nil
	}
}

// freed is what the peer has taken in, by class.
type freed [Control]struct{ count, bytes int }

func (s *sentFrames) len() uint32 { return s.next - s.acked }

func (s *sentFrames) at(n uint32) *keptFrame { return &s.kept[n&uint32(len(s.kept)-1)] }

// add keeps a new frame and sets its number. Its payload is length bytes, which
// the caller has the frame keep.
func (s *sentFrames) add(h *wire.Header, length int) *keptFrame {
	h.Seq = s.next
	s.next++
	if s.len() > uint32(len(s.kept)) {
		s.grow()
	}
	s.bytes += length
	if length > s.narrow {
		s.wide++
	}
	k := s.at(h.Seq)
	k.h = *h
	return k
}

func (s *sentFrames) grow() {
	old := *s
	s.kept = make([]keptFrame, max(4, 2*len(old.kept)))
	for n := s.acked; n != s.next-1; n++ {
		*s.at(n) = *old.at(n)
	}
}

// shed gives back the memory for frames while none is kept.
func (s *sentFrames) shed() {
	if s.len() == 0 {
		s.kept = nil
	}
}

// due says that frames have still to leave.
func (s *sentFrames) due() bool { return s.leaving != s.next }

// leave says that the frame that was due has been given to a link.
func (s *sentFrames) leave() {
	s.leaving++
	if int32(s.leaving-s.left) > 0 {
		s.left = s.leaving
	} else {
		s.again++
	}
}

// ack drops what the peer has taken in: all before n. What it said before it
// said something newer changes nothing. What goes with that is added to f.
func (s *sentFrames) ack(n uint32, f *freed) error {
	if int32(n-s.acked) <= 0 {
		return nil
	}
	if n-s.acked > s.left-s.acked {
		return &wire.ParseError{Field: "ack", Got: uint64(n), Want: fmt.Sprintf("at most %#x, the next to be sent", s.left)}
	}
	if int32(n-s.leaving) > 0 {
		s.leaving = n // it came by an earlier link
	}
	for ; s.acked != n; s.acked++ {
		k := s.at(s.acked)
		c := &f[classOf(&k.h)]
		c.count++
		c.bytes += k.length
		s.bytes -= k.length
		if k.length > s.narrow {
			s.wide--
		}
		k.release()
	}
	return nil
}

// rewind makes the frames that the peer has not taken in leave again.
func (s *sentFrames) rewind() { s.leaving = s.acked }

// setNarrow changes what is counted as wide.
func (s *sentFrames) setNarrow(bytes int) {
	s.narrow, s.wide = bytes, 0
	for n := s.acked; n != s.next; n++ {
		if s.at(n).length > bytes {
			s.wide++
		}
	}
}

// fits says that no kept frame has a larger payload.
func (s *sentFrames) fits(bytes int) bool {
	for n := s.acked; s.wide > 0 && n != s.next; n++ {
		if s.at(n).length > bytes {
			return false
		}
	}
	return true
}

// reset drops everything.
func (s *sentFrames) reset() {
	for ; s.acked != s.next; s.acked++ {
		s.at(s.acked).release()
	}
	s.kept, s.bytes, s.wide, s.leaving, s.left = nil, 0, 0, s.next, s.next
}

// classOf is the class that a frame of a lane was reserved in: chunks are Bulk.
func classOf(h *wire.Header) Class {
	if h.Flags&(wire.More|wire.Cont) != 0 {
		return Bulk
	}
	return Small
}
