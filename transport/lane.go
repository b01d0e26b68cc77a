package transport

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

var (
	// errUnsettled is what a lane says before it is known which link carries it.
	errUnsettled = errors.New("transport: no link carries the lane yet")

	// errMoved says within this package that a slot is not of the link that
	// carries the lane now, or would be too large for that.
	errMoved = errors.New("transport: the lane has moved")
)

// Lane is the ordered channel of messages of a session. Its methods may be
// called from any goroutine, on the client once Dial has returned, on the
// server once the first message came.
//
// One link at a time carries it; carry.go moves it. Who holds gate for reading
// may commit to the link that bound names; the session takes it for writing
// when it changes bound, so that nothing is committed behind its back.
type Lane struct {
	s       *Session
	bound   atomic.Pointer[carrier]  // nil until it is settled which link carries the lane
	gate    sync.RWMutex             // see above; not used where the lane cannot move
	in      atomic.Pointer[receiver] // that may deliver frames of the lane; nil: ask the attempt
	numbers numbers

	turns turns // of messages in chunks that are sent

	mu    sync.Mutex // guards parts
	parts assembler
}

// MaxPayload is the largest message in bytes that goes in one frame now.
func (l *Lane) MaxPayload() int {
	if c := l.bound.Load(); c != nil {
		return c.link.MaxPayload()
	}
	return 0
}

// Reserve claims room for a whole message, to be encoded in place and given
// back by Commit or Discard; see Link. It waits while the lane moves, and for
// the peer where too much is kept for it. n may exceed MaxPayload, which
// changes when the lane moves: such a message is copied once more.
func (l *Lane) Reserve(ctx context.Context, class Class, n int) (Slot, error) {
	slot, err := l.reserve(ctx, class, n)
	if err == errMoved {
		buf := pool.Get(n)
		return Slot{Payload: buf.Bytes(), Ref: buf}, nil
	}
	return slot, err
}

// reserve is Reserve for what fits a frame; errMoved otherwise.
func (l *Lane) reserve(ctx context.Context, class Class, n int) (Slot, error) {
	if err := l.numbers.take(ctx, class, n); err != nil {
		return Slot{}, err
	}
	slot, err := l.room(ctx, class, n)
	if err != nil {
		l.numbers.give(class, n)
	}
	return slot, err
}

// room waits for room on whatever link carries the lane.
func (l *Lane) room(ctx context.Context, class Class, n int) (Slot, error) {
	for {
		c := l.bound.Load()
		if c == nil {
			return Slot{}, errUnsettled
		}
		if c.open {
			if n > c.link.MaxPayload() {
				return Slot{}, errMoved
			}
			slot, err := c.link.Reserve(ctx, class, n)
			if err == nil {
				slot.via, slot.class = c, class
				return slot, nil
			}
			if !l.numbers.retains || ctx.Err() != nil {
				return Slot{}, err
			}
		}
		if err := l.s.awaitMove(ctx, c); err != nil {
			return Slot{}, err
		}
	}
}

// Commit sends the message in the slot. It sets Lane, Total and the flag Sum;
// of the other fields those must be 0 that docs/PROTOCOL.md says to be.
func (l *Lane) Commit(slot Slot, h *wire.Header) error {
	h.Total = uint32(len(slot.Payload))
	err := l.commit(slot, h)
	if err == nil {
		return nil
	}
	if err == errMoved {
		buf := pool.Get(len(slot.Payload))
		copy(buf.Bytes(), slot.Payload)
		err = l.s.sendLater(*h, buf)
	}
	l.Discard(slot)
	return err
}

// Discard gives the slot back unused.
func (l *Lane) Discard(slot Slot) {
	if slot.via == nil {
		slot.Ref.(*pool.Buf).Release()
		return
	}
	l.numbers.give(slot.class, len(slot.Payload))
	slot.via.link.Discard(slot)
}

// commit commits to the link that the slot is of. On error the slot is still
// the caller's; errMoved: the message may be sent another way.
func (l *Lane) commit(slot Slot, h *wire.Header) error {
	c := slot.via
	if c == nil {
		return errMoved
	}
	h.Lane = LaneID
	if l.s.sums && len(slot.Payload) > 0 {
		h.Flags |= wire.Sum
	}
	if !l.numbers.retains {
		return c.link.Commit(slot, h)
	}
	l.gate.RLock()
	defer l.gate.RUnlock()
	if l.bound.Load() != c || c.link.Commit(slot, h) != nil {
		return errMoved
	}
	return nil
}

// headers are scratch: a header given to a Link escapes.
var headers = sync.Pool{New: func() any { return new(wire.Header) }}

// Send sends a message of any size the peer takes in: in one frame, or in
// chunks that let smaller messages pass. msg is not kept. It waits for room,
// and in chunks for its turn, until ctx is done. On error the peer will never
// see the whole message; what was sent of it is taken back, so nothing further
// need be sent for the call.
func (l *Lane) Send(ctx context.Context, h wire.Header, msg []byte) error {
	if limit := l.s.PeerLimits().MaxMessage; len(msg) > limit {
		return &TooLargeError{Size: len(msg), Max: limit}
	}
	if l.bound.Load() == nil {
		return errUnsettled
	}
	hp := headers.Get().(*wire.Header)
	defer headers.Put(hp)
	*hp = h
	for len(msg) <= l.MaxPayload() {
		if err := l.sendFrame(ctx, Small, hp, msg, len(msg)); err != errMoved {
			return err
		}
	}
	return l.sendChunks(ctx, hp, msg)
}

// sendFrame sends one frame; errMoved: not, and it may be tried again.
func (l *Lane) sendFrame(ctx context.Context, class Class, h *wire.Header, payload []byte, total int) error {
	slot, err := l.reserve(ctx, class, len(payload))
	if err != nil {
		return err
	}
	copy(slot.Payload, payload)
	h.Total = uint32(total)
	if err = l.commit(slot, h); err != nil {
		l.Discard(slot)
	}
	return err
}

func (l *Lane) sendChunks(ctx context.Context, h *wire.Header, msg []byte) error {
	if err := l.turns.take(ctx, len(msg)); err != nil {
		return err
	}
	begun, err := l.chunks(ctx, h, msg)
	if begun && err != nil {
		l.s.takeBack(h.Kind, h.Call, func() { l.turns.give(1, len(msg)) })
		return err
	}
	l.turns.give(1, len(msg))
	return err
}

// chunks sends a message in at least two frames, for it did not fit one.
func (l *Lane) chunks(ctx context.Context, h *wire.Header, msg []byte) (begun bool, err error) {
	flags := h.Flags
	for off := 0; off < len(msg); {
		end := min(off+l.MaxPayload(), len(msg))
		if off == 0 && end == len(msg) {
			end = (len(msg) + 1) / 2 // the lane has moved since
		}
		h.Flags = flags
		total := len(msg)
		if off > 0 {
			h.Flags |= wire.Cont
			total = off
		}
		if end < len(msg) {
			h.Flags |= wire.More
		}
		// Room alone does not stop a sender whose caller has gone.
		err := ctx.Err()
		if err == nil {
			err = l.sendFrame(ctx, Bulk, h, msg[off:end], total)
		}
		switch err {
		case nil:
			off = end
		case errMoved:
		default:
			return off > 0, err
		}
	}
	return true, nil
}

// Forget drops what has arrived of a message of that call, and what is still
// to come of it. The sink calls it when nobody waits for the message any more.
func (l *Lane) Forget(call uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts.forget(call)
}

func (l *Lane) interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts.interrupt()
}

func (l *Lane) reset() {
	l.numbers.reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts.reset()
}
