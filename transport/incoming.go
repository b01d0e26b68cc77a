package transport

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// LaneID is the number of the lane that every session has.
const LaneID = 1

// What a side may have taken in without having said so, before it sends an ACK
// for that alone. docs/PROTOCOL.md, "Acknowledgement": a sender keeps more.
const (
	owedFrames = 64
	owedBytes  = 512 << 10
)

// incoming is the receiving half of a lane: it takes in each frame once, in
// the order of numbers, from the one path that may deliver, and puts messages
// together. What other paths still bring is dropped: it comes again.
type incoming struct {
	expected atomic.Uint32 // number of the next frame; written with mu held
	said     atomic.Uint32 // of expected, to the peer
	taken    atomic.Uint64 // bytes taken in; written with mu held, after expected
	told     atomic.Uint64 // of taken, to the peer, at least

	mu         sync.Mutex
	from       *path // that may deliver; nil: none
	moved      bool  // there was one
	parts      assembler
	duplicates uint64
	called     uint64 // of taken, when an ACK for bytes was last due
}

// say is what the peer is told now of what was taken in.
func (in *incoming) say() uint32 {
	taken := in.taken.Load() // first: what is taken in meanwhile is still owed
	e := in.expected.Load()
	if in.said.Load() != e {
		in.said.Store(e)
		in.told.Store(taken)
	}
	return e
}

// unsaid says that the peer does not know of all that was taken in.
func (in *incoming) unsaid() bool { return in.said.Load() != in.expected.Load() }

// land says where the payload of a frame of the lane goes.
func (in *incoming) land(p *path, h *wire.Header) ([]byte, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
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
		in.duplicates++
		return false, nil
	}
	return false, &wire.ParseError{Field: "seq", Got: uint64(h.Seq), Want: fmt.Sprintf("%#x, the next one", want)}
}

func errLane(h *wire.Header) error {
	return &wire.ParseError{Field: "lane", Got: uint64(h.Lane), Want: "1, the lane of the session"}
}

// frame takes in a frame with its payload, nil where that has landed. It returns
// a message and true when one is complete. due: an ACK is.
func (in *incoming) frame(p *path, h *wire.Header, payload []byte) (m Message, whole, due bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	wanted := p.landing
	if h.Length == 0 || payload != nil {
		if wanted, err = in.check(p, h); err != nil {
			return m, false, false, err
		}
	}
	p.landing = false
	if !wanted {
		p.dropStray()
		return m, false, false, nil
	}
	e := in.expected.Add(1)
	due = in.owes(e, in.taken.Add(uint64(h.Length)))
	if payload != nil {
		m, whole, err = in.parts.take(h, payload)
	} else {
		m, whole, err = in.parts.frame(h)
	}
	return m, whole, due, err
}

// owes says that an ACK is due for the frame before e, with which so many bytes
// are taken in. Callers hold mu.
func (in *incoming) owes(e uint32, taken uint64) bool {
	if taken-max(in.told.Load(), in.called) >= owedBytes {
		in.called = taken
		return true
	}
	return (e-in.said.Load())%owedFrames == 0
}

// move lets p deliver from now on.
func (in *incoming) move(p *path) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.interrupt()
	in.from, in.moved = p, true
}

// interrupt ends the frame that is landing. Callers hold mu.
func (in *incoming) interrupt() {
	if p := in.from; p != nil && p.landing {
		p.landing = false
		p.stray = in.parts.interrupt()
	}
}

// left says that p delivers nothing any more, nor writes where frames land.
func (in *incoming) left(p *path) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.from == p {
		in.interrupt()
		in.from = nil
	}
	p.dropStray()
}

func (in *incoming) forget(call uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.parts.forget(call)
}

func (in *incoming) reset() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.parts.reset()
}
