package transport

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// errUnsettled is what a lane says before it is known which link carries it.
var errUnsettled = errors.New("transport: no link carries the lane yet")

// Lane is the ordered channel of messages of a session. Its methods may be
// called from any goroutine, on the client once Dial has returned, on the
// server once the first message came.
//
// It is bound to one link at a time; the session binds it before the first
// message and never after.
type Lane struct {
	s     *Session
	bound atomic.Pointer[carrier] // nil until it is settled which link carries the lane

	turns turns // of messages in chunks that are sent

	mu    sync.Mutex // guards parts
	parts assembler
}

// carrier makes a Link fit an atomic pointer.
type carrier struct{ Link }

func (l *Lane) link() (Link, error) {
	if c := l.bound.Load(); c != nil {
		return c.Link, nil
	}
	return nil, errUnsettled
}

func (l *Lane) bind(link Link) { l.bound.Store(&carrier{link}) }

// MaxPayload is the largest message in bytes that goes in one frame.
func (l *Lane) MaxPayload() int {
	if c := l.bound.Load(); c != nil {
		return c.MaxPayload()
	}
	return 0
}

// Reserve claims room for a whole message of at most MaxPayload bytes, to be
// encoded in place and given back by Commit or Discard; see Link.
func (l *Lane) Reserve(ctx context.Context, class Class, n int) (Slot, error) {
	link, err := l.link()
	if err != nil {
		return Slot{}, err
	}
	return link.Reserve(ctx, class, n)
}

// Commit sends the message in the slot. It sets Lane, Total and the flag Sum;
// of the other fields those must be 0 that docs/PROTOCOL.md says to be.
func (l *Lane) Commit(slot Slot, h *wire.Header) error {
	h.Total = uint32(len(slot.Payload))
	return l.commit(slot, h)
}

// Discard gives the slot back unused.
func (l *Lane) Discard(slot Slot) {
	if c := l.bound.Load(); c != nil {
		c.Discard(slot)
	}
}

func (l *Lane) commit(slot Slot, h *wire.Header) error {
	link, err := l.link()
	if err != nil {
		return err
	}
	h.Lane = LaneID
	if l.s.sums && len(slot.Payload) > 0 {
		h.Flags |= wire.Sum
	}
	return link.Commit(slot, h)
}

// headers are scratch: a header given to a Link escapes.
var headers = sync.Pool{New: func() any { return new(wire.Header) }}

// Send sends a message of any size the peer takes in: in one frame, or in
// chunks that let smaller messages pass. msg is not kept. It waits for room,
// and in chunks for its turn, until ctx is done. On error the peer will never see the whole message; what
// was sent of it is taken back, so nothing further need be sent for the call.
func (l *Lane) Send(ctx context.Context, h wire.Header, msg []byte) error {
	if limit := l.s.PeerLimits().MaxMessage; len(msg) > limit {
		return &TooLargeError{Size: len(msg), Max: limit}
	}
	link, err := l.link()
	if err != nil {
		return err
	}
	hp := headers.Get().(*wire.Header)
	defer headers.Put(hp)
	*hp = h
	if len(msg) <= link.MaxPayload() {
		return l.sendFrame(ctx, Small, hp, msg, len(msg))
	}
	return l.sendChunks(ctx, hp, msg, link.MaxPayload())
}

func (l *Lane) sendFrame(ctx context.Context, class Class, h *wire.Header, payload []byte, total int) error {
	slot, err := l.Reserve(ctx, class, len(payload))
	if err != nil {
		return err
	}
	copy(slot.Payload, payload)
	h.Total = uint32(total)
	return l.commit(slot, h)
}

func (l *Lane) sendChunks(ctx context.Context, h *wire.Header, msg []byte, chunk int) error {
	if err := l.turns.take(ctx, len(msg)); err != nil {
		return err
	}
	begun, err := l.chunks(ctx, h, msg, chunk)
	if begun && err != nil {
		l.s.takeBack(h.Kind, h.Call, func() { l.turns.give(len(msg)) })
		return err
	}
	l.turns.give(len(msg))
	return err
}

func (l *Lane) chunks(ctx context.Context, h *wire.Header, msg []byte, chunk int) (begun bool, err error) {
	flags := h.Flags
	for off := 0; off < len(msg); off += chunk {
		end := min(off+chunk, len(msg))
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
		if err != nil {
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
