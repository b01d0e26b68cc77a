package transport

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// LaneID is the number of the lane that every session has.
const LaneID = 1

// Sequence numbers the frames of the lane on one link. Stamp is called by one
// goroutine at a time in the order in which frames leave, Check by one at a
// time in the order in which they arrive; the two may run together.
type Sequence struct {
	sent     uint32        // next number to give; of Stamp alone
	expected atomic.Uint32 // next number from the peer; written by Check
}

// Stamp gives a frame that leaves its Seq and Ack.
func (s *Sequence) Stamp(h *wire.Header) {
	h.Seq, h.Ack = 0, 0
	if h.Kind.InLane() {
		h.Seq, h.Ack = s.sent, s.expected.Load()
		s.sent++
	}
}

// Check takes in a frame that arrived. The error is a *wire.ParseError.
func (s *Sequence) Check(h *wire.Header) error {
	if !h.Kind.InLane() {
		return nil
	}
	if h.Lane != LaneID {
		return &wire.ParseError{Field: "lane", Got: uint64(h.Lane), Want: "1, the lane of the session"}
	}
	if want := s.expected.Load(); h.Seq != want {
		return &wire.ParseError{Field: "seq", Got: uint64(h.Seq), Want: fmt.Sprintf("%#x, the next one", want)}
	}
	s.expected.Add(1)
	return nil
}
