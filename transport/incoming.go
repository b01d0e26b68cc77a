package transport

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// LaneID is the number of the lane that every session has.
const LaneID = 1

// What a side may have taken in without having said so, before it sends an ACK
// for that alone. docs/PROTOCOL.md, "Acknowledgement": a sender keeps more.
//
// Over TCP the answer to a block says that it was taken in, before an ACK is due for that. Lone
// calls of 1 MiB became more by 28 % without the two ACKs that each had, for they wake
// the peer.
const (
	owedFrames = 64
	owedBytes  = blockSize
)

// lazyFrames is of how many small frames of the lane the frames that go back need
// not say that they were taken in: whoever keeps them has less to do if it is told
// of many at once, and few, 2 KiB, stay kept in each of thousands of sessions. Frames
// that are not small hold buffers: after one of them all is said at once.
const lazyFrames = 8

// incoming is the receiving half of a lane: it takes in each frame once, in
// the order of numbers, from the one path that may deliver, and puts messages
// together. What other paths still bring is dropped: it comes again.
//
// Session.sinkMu guards it, but for what is atomic, and callers of all methods but
// say, mention and unsaid hold it: a frame is taken in under the lock under which the
// message that it completes goes to the sink.
type incoming struct {
	expected   atomic.Uint32 // number of the next frame
	said       atomic.Uint32 // of expected, to the peer
	hasty      atomic.Uint32 // number after the last frame that was not small
	duplicates atomic.Uint64

	from  *path // that may deliver; nil: none
	moved bool  // there was one
	parts assembler
	owed  owed
}

// say is what the peer is told now of what was taken in.
func (in *incoming) say() uint32 {
	e := in.expected.Load()
	if in.said.Load() != e {
		in.said.Store(e)
	}
	return e
}

// mention is what a frame of the lane tells the peer beside its message.
func (in *incoming) mention() uint32 {
	said := in.said.Load()
	if in.expected.Load()-said < lazyFrames && int32(in.hasty.Load()-said) <= 0 {
		return said
	}
	return in.say()
}

// unsaid says that the peer does not know of all that was taken in.
func (in *incoming) unsaid() bool { return in.said.Load() != in.expected.Load() }

// land says where the payload of a frame of the lane goes.
func (in *incoming) land(p *path, h *wire.Header) ([]byte, error) {
	if wanted, err := in.check(p, h); !wanted || err != nil {
		return p.trash(h), err
	}
	p.landing = true
	return in.parts.land(h)
}

// check says whether a frame is the next one; an error where frames before it
// are missing.
func (in *incoming) check(p *path, h *wire.Header) (wanted bool, err error) {
	if in.from != p {
		if !in.moved {
			return false, &wire.ParseError{Field: "seq", Got: uint64(h.Seq), Want: "MOVE before frames of the lane"}
		}
		return false, nil
	}
	want := in.expected.Load()
	switch {
	case h.Lane != LaneID:
		return false, errLane(h)
	case h.Seq == want:
		return true, nil
	case mutateDuplicates:
		return true, nil
	case int32(h.Seq-want) < 0:
		in.duplicates.Add(1)
		in.said.Store(h.Seq) // the peer does not know: where that was said may be lost
		return false, nil
	}
	return false, &wire.ParseError{Field: "seq", Got: uint64(h.Seq), Want: fmt.Sprintf("%#x, the next one", want)}
}

func errLane(h *wire.Header) error {
	return &wire.ParseError{Field: "lane", Got: uint64(h.Lane), Want: "1, the lane of the session"}
}

// frame takes in a frame with its payload, nil where that has landed. whole: m is
// the message that is complete now. due: an ACK is.
func (in *incoming) frame(p *path, h *wire.Header, payload []byte, m *Message) (whole, due bool, err error) {
	wanted := p.landing
	if h.Length == 0 || payload != nil {
		if wanted, err = in.check(p, h); err != nil {
			return false, false, err
		}
	}
	p.landing = false
	if !wanted {
		p.dropStray()
		return false, false, nil
	}
	said := in.said.Load() // first: of what is said meanwhile no ACK is due
	next := in.expected.Add(1)
	if h.Length > smallKept {
		in.hasty.Store(next)
	}
	due = in.owed.add(next, said, h.Length)
	if payload != nil {
		whole, err = in.parts.take(h, payload, m)
	} else {
		whole, err = in.parts.frame(h, m)
	}
	return whole, due, err
}

// owed counts what the peer was not told of. Bytes are not counted for each frame
// but up to a mark, which is set again once the peer knows of the frames before it:
// they may be too many, by those from one mark to the next. Where the peer knows of
// all, they are none too many.
type owed struct {
	taken  uint64 // bytes
	mark   uint32 // number of a frame
	marked uint64 // of taken, before it
	told   uint64 // of taken, to the peer, at least
}

// add counts the frame before e, and says that an ACK is due for it. The peer was
// told of those before said.
func (o *owed) add(e, said uint32, length uint32) (due bool) {
	if int32(said-o.mark) >= 0 {
		if o.told = max(o.told, o.marked); said == e-1 {
			o.told = o.taken
		}
		o.mark, o.marked = e, o.taken+uint64(length)
	}
	o.taken += uint64(length)
	if o.taken-o.told >= owedBytes {
		o.told = o.taken // or soon
		return true
	}
	return (e-said)%owedFrames == 0
}

// move lets p deliver from now on.
func (in *incoming) move(p *path) {
	in.interrupt()
	in.from, in.moved = p, true
}

// interrupt ends the frame that is landing.
func (in *incoming) interrupt() {
	if p := in.from; p != nil && p.landing {
		p.landing = false
		p.stray = in.parts.interrupt()
	}
}

// left says that p delivers nothing any more, nor writes where frames land.
func (in *incoming) left(p *path) {
	if in.from == p {
		in.interrupt()
		in.from = nil
	}
	p.dropStray()
}
