package transport

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// LaneID is the number of the lane that every session has.
const LaneID = 1

// Sequence is the Numbers of a link that is alone. The zero value is ready.
type Sequence struct {
	sent     uint32        // next number to give; of Stamp alone
	expected atomic.Uint32 // next number from the peer; written by Took
}

// Stamp implements Numbers.
func (s *Sequence) Stamp(h *wire.Header, payload []byte) {
	h.Seq, h.Ack = 0, 0
	if h.Kind.InLane() {
		h.Seq, h.Ack = s.sent, s.expected.Load()
		s.sent++
	}
}

// Check implements Numbers.
func (s *Sequence) Check(h *wire.Header) (drop bool, err error) {
	if !h.Kind.InLane() {
		return h.Kind == wire.Ack, nil
	}
	_, err = checkSeq(h, s.expected.Load())
	return false, err
}

// Took implements Numbers.
func (s *Sequence) Took(h *wire.Header) {
	if h.Kind.InLane() {
		s.expected.Add(1)
	}
}

// checkSeq holds a frame of the lane against the number that is expected. A
// frame from before it returns behind and an error.
func checkSeq(h *wire.Header, want uint32) (behind bool, err error) {
	switch {
	case h.Lane != LaneID:
		return false, &wire.ParseError{Field: "lane", Got: uint64(h.Lane), Want: "1, the lane of the session"}
	case h.Seq != want:
		return int32(h.Seq-want) < 0, &wire.ParseError{Field: "seq", Got: uint64(h.Seq), Want: fmt.Sprintf("%#x, the next one", want)}
	}
	return false, nil
}
