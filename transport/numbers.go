package transport

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// What a side may have taken in without having said so, before it sends an ACK
// for that alone. docs/PROTOCOL.md, "Acknowledgement": a sender keeps more.
const (
	owedFrames = 64
	owedBytes  = 256 << 10
)

// numbers are the Numbers of a session's lane, whatever link carries it. One
// link at a time stamps and one delivers; Session sees to that.
//
// Where the lane retains, sent is guarded by mu, for the link that delivers
// brings acknowledgements; else it is the sender's alone. retains and oweAck
// are set before the first frame of the lane.
type numbers struct {
	retains bool
	oweAck  func() // an ACK is due; called by who delivers
	room    [Control]turns

	mu   sync.Mutex
	sent sentFrames

	acked      atomic.Uint32 // as sent.acked, of who delivers
	expected   atomic.Uint32 // written by who delivers
	said       atomic.Uint32 // of expected, to the peer
	owed       atomic.Int64  // bytes taken in since
	duplicates atomic.Uint64
}

// retain switches retention on.
func (n *numbers) retain(bytes int, oweAck func()) {
	n.retains, n.oweAck = true, oweAck
	for c := range n.room {
		n.room[c] = turns{maxCount: retainedFrames / len(n.room), maxBytes: int64(bytes / len(n.room))}
	}
}

// take waits until one more frame may be kept.
func (n *numbers) take(ctx context.Context, class Class, bytes int) error {
	if !n.retains {
		return nil
	}
	return n.room[roomOf(class)].take(ctx, bytes)
}

// give takes back what take took for a frame that was not sent.
func (n *numbers) give(class Class, bytes int) {
	if n.retains {
		n.room[roomOf(class)].give(1, bytes)
	}
}

func roomOf(c Class) Class {
	if c == Bulk {
		return Bulk
	}
	return Small
}

// Stamp implements Numbers.
func (n *numbers) Stamp(h *wire.Header, payload []byte) {
	h.Seq, h.Ack = 0, 0
	switch {
	case h.Kind == wire.Ack:
		h.Lane, h.Ack = LaneID, n.say()
	case !h.Kind.InLane():
	case !n.retains:
		h.Ack, h.Seq = n.say(), n.sent.next
		n.sent.next++
	default:
		n.mu.Lock()
		n.sent.stamp(h, payload)
		n.mu.Unlock()
		h.Ack = n.say()
	}
}

// say is what the peer is told now of what was taken in.
func (n *numbers) say() uint32 {
	e := n.expected.Load()
	if n.retains {
		n.said.Store(e)
		n.owed.Store(0)
	}
	return e
}

// Check implements Numbers.
func (n *numbers) Check(h *wire.Header) (drop bool, err error) {
	if h.Kind == wire.Ack {
		return true, n.ack(h.Ack)
	}
	if !h.Kind.InLane() {
		return false, nil
	}
	if n.retains {
		if err := n.ack(h.Ack); err != nil {
			return false, err
		}
	}
	behind, err := checkSeq(h, n.expected.Load())
	if behind && n.retains {
		n.duplicates.Add(1)
		return true, nil
	}
	return false, err
}

// ack takes in what the peer says that it has taken in.
func (n *numbers) ack(to uint32) error {
	if !n.retains || n.acked.Load() == to {
		return nil
	}
	n.mu.Lock()
	freed, err := n.sent.ack(to)
	n.acked.Store(n.sent.acked)
	n.mu.Unlock()
	for c, f := range freed {
		if f.count > 0 {
			n.room[c].give(f.count, f.bytes)
		}
	}
	return err
}

// Took implements Numbers.
func (n *numbers) Took(h *wire.Header) {
	if !h.Kind.InLane() {
		return
	}
	e := n.expected.Add(1)
	if !n.retains {
		return
	}
	had := n.owed.Load()
	owed := n.owed.Add(int64(h.Length))
	if (e-n.said.Load())%owedFrames == 0 || had/owedBytes != owed/owedBytes {
		n.oweAck()
	}
}

// rewind lets what the peer has not taken in leave again.
func (n *numbers) rewind() (from, to uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent.rewind()
	return n.sent.leaving, n.sent.next
}

// kept is a frame that has to be sent again; the caller releases its payload.
func (n *numbers) kept(number uint32) keptFrame {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := *n.sent.at(number)
	if k.buf != nil {
		k.buf.Retain()
	}
	return k
}

func (n *numbers) info() Retention {
	if !n.retains {
		return Retention{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return Retention{
		Frames: int(n.sent.len()), Bytes: n.sent.bytes,
		Resent: n.sent.again, Duplicates: n.duplicates.Load(),
	}
}

// mayAck says that the peer may have taken in all before the number: not what
// has never left. It may have said more since. The number in a MOVE is older
// than that in an ACK which was due before it and left with it, where frames
// came in meanwhile.
func (n *numbers) mayAck(to uint32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int32(to-n.sent.leaving) <= 0
}

func (n *numbers) reset() {
	if !n.retains {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent.reset()
}
