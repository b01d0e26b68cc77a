package transport

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// ErrTooWide says that a message does not fit a frame any more, for the links have
// changed: SendBuf and SendMade send it in chunks.
var ErrTooWide = errors.New("transport: too large for a frame")

// Lane is the ordered channel of messages of a session. Its methods may be
// called from any goroutine, on the client once Dial has returned, on the
// server once the session is there.
//
// One link at a time carries it; the client's Session moves it (moves.go).
// While none does, what is sent is kept until there is one again.
type Lane struct {
	s      *Session
	widest int // bytes of a payload where there is no fast link
	out    outgoing
	in     incoming
	order  order // of messages in chunks that are sent
}

func (l *Lane) init(s *Session, calls, widest int) {
	l.s, l.widest = s, widest
	l.out.init(s.cfg.Retain, widest)
	l.in.parts.maxMessage, l.in.parts.maxParts = s.cfg.MaxMessage, calls
	l.order.init(calls, s.PeerLimits().MaxMessage)
}

// maxWhole is the largest message in bytes that is sent whole where frames may
// be larger: a block of 64 KiB and what codecs add to it. Larger ones leave in
// chunks, which let others pass.
const maxWhole = 64<<10 + 4<<10

// MaxPayload is the largest message in bytes that goes in one frame now.
func (l *Lane) MaxPayload() int { return min(l.maxFrame(), maxWhole) }

// maxFrame is the largest payload of a frame.
func (l *Lane) maxFrame() int { return int(l.out.limit.Load()) }

// Reserve claims room for a whole message, to be encoded in place and given
// back by Commit or Discard; see Link. It waits for the peer where too much is
// kept for it. ErrTooWide: n exceeds MaxPayload, which changes when the lane moves.
func (l *Lane) Reserve(ctx context.Context, class Class, n int) (slot Slot, err error) {
	if n > l.maxFrame() {
		return slot, ErrTooWide
	}
	err = l.out.reserve(ctx, class, nil, 0, n, &slot)
	return slot, err
}

// Refer is Reserve for a message that is there: all of msg, which nobody may change
// any more. It is sent from where it is if the link can do that. The caller
// releases its own reference after Commit or Discard.
func (l *Lane) Refer(ctx context.Context, class Class, msg *pool.Buf) (slot Slot, err error) {
	n := msg.Len()
	if n > l.maxFrame() {
		return slot, ErrTooWide
	}
	err = l.out.reserve(ctx, class, msg, 0, n, &slot)
	return slot, err
}

// Commit sends the message in the slot. It sets Lane, Total, the numbers and
// the flag Sum; of the other fields those must be 0 that docs/PROTOCOL.md says
// to be. After an error nothing of it is sent, and the slot is given back: the session
// has ended, or it is ErrTooWide.
func (l *Lane) Commit(slot Slot, h *wire.Header) error {
	h.Total = uint32(len(slot.Payload))
	err := l.commit(&slot, h, false)
	if err != nil {
		l.Discard(slot)
	}
	return err
}

// Discard gives the slot back unused.
func (l *Lane) Discard(slot Slot) { l.out.discard(&slot) }

// commit sends the frame in the slot, which on error is still the caller's.
func (l *Lane) commit(slot *Slot, h *wire.Header, more bool) error {
	h.Lane = LaneID
	if l.s.sums && len(slot.Payload) > 0 {
		h.Flags |= wire.Sum
	}
	pump, err := l.out.send(slot, h, l.in.mention(), more)
	if err != nil {
		return err
	}
	if pump != nil {
		l.s.mu.Lock()
		l.s.startPump(pump)
		l.s.mu.Unlock()
	}
	return nil
}

// headers are scratch: a header given to a Link escapes.
var headers = sync.Pool{New: func() any { return new(wire.Header) }}

// Send is SendBuf of a copy of msg.
func (l *Lane) Send(ctx context.Context, h wire.Header, msg []byte) error {
	return l.SendMade(ctx, &h, len(msg), func() (*pool.Buf, error) {
		buf := pool.Get(len(msg))
		copy(buf.Bytes(), msg)
		return buf, nil
	})
}

// SendMade is SendBuf of a message of n bytes that make returns, with a reference
// that is released here. make is called once it is the turn of the message, so that
// those who wait hold no memory for theirs. It may set fields of h too. Its error is
// returned as it is, and nothing sent.
func (l *Lane) SendMade(ctx context.Context, h *wire.Header, n int, make func() (*pool.Buf, error)) error {
	if err := l.checkSize(n); err != nil {
		return err
	}
	chunks := n > l.MaxPayload()
	if chunks {
		turn := l.order.of(n)
		if err := turn.Take(ctx, n); err != nil {
			return err
		}
		defer turn.Give(1, n)
	}
	msg, err := make()
	if err != nil {
		return err
	}
	defer msg.Release()
	if !chunks {
		return l.SendBuf(ctx, *h, msg)
	}
	return l.sendChunks(ctx, *h, msg)
}

// SendBuf sends a message of any size the peer takes in: in one frame, or in
// chunks that let smaller messages pass. Nobody may change msg any more, for it
// is sent from where it is, and kept by reference until the peer has taken it
// in; the caller releases its own reference. It waits for room, and in chunks
// for its turn, until ctx is done. On error the peer will never see the whole
// message; what was sent of it is taken back, so nothing further need be sent
// for the call.
func (l *Lane) SendBuf(ctx context.Context, h wire.Header, msg *pool.Buf) error {
	n := msg.Len()
	if err := l.checkSize(n); err != nil {
		return err
	}
	hp := headers.Get().(*wire.Header)
	defer headers.Put(hp)
	*hp = h
	for n <= l.MaxPayload() {
		if err := l.sendFrame(ctx, Small, hp, msg, 0, n, n); err != ErrTooWide {
			return err
		}
	}
	turn := l.order.of(n)
	if err := turn.Take(ctx, n); err != nil {
		return err
	}
	defer turn.Give(1, n)
	return l.sendChunks(ctx, h, msg)
}

func (l *Lane) checkSize(n int) error {
	if limit := l.s.PeerLimits().MaxMessage; n > limit {
		return &TooLargeError{Size: n, Max: limit}
	}
	return nil
}

// sendFrame sends one frame with the bytes of msg from at to end; ErrTooWide:
// not, and it may be tried again in chunks.
func (l *Lane) sendFrame(ctx context.Context, class Class, h *wire.Header, msg *pool.Buf, at, end, total int) error {
	if end-at > l.maxFrame() {
		return ErrTooWide
	}
	var slot Slot
	if err := l.out.reserve(ctx, class, msg, at, end-at, &slot); err != nil {
		return err
	}
	h.Total = uint32(total)
	err := l.commit(&slot, h, class == Bulk)
	if err != nil {
		l.out.discard(&slot)
	}
	return err
}

// sendChunks sends a message whose turn it is in at least two frames.
func (l *Lane) sendChunks(ctx context.Context, h wire.Header, msg *pool.Buf) error {
	n, open := msg.Len(), &l.order.open
	if err := open.Take(ctx, n); err != nil {
		return err
	}
	hp := headers.Get().(*wire.Header)
	defer headers.Put(hp)
	*hp = h
	begun, err := l.chunks(ctx, hp, msg)
	if begun && err != nil {
		l.takeBack(h.Kind, h.Call, err, func() { open.Give(1, n) })
		return err
	}
	open.Give(1, n)
	return err
}

// chunkSize is the size of the chunks of a message, but for the last: at least
// two, all but equal, and in whole cache lines.
func chunkSize(size, limit int) int {
	count := max(2, (size+limit-1)/limit)
	n := (size + count - 1) / count
	return min((n+63)&^63, limit, size-1)
}

// chunks says how far it came: begun where the peer has something of the message.
func (l *Lane) chunks(ctx context.Context, h *wire.Header, msg *pool.Buf) (begun bool, err error) {
	defer l.out.flush() // as many at once as there is room for: each write wakes the peer
	flags, size := h.Flags, msg.Len()
	for off := 0; off < size; {
		end := min(off+chunkSize(size, l.maxFrame()), size)
		h.Flags = flags
		total := size
		if off > 0 {
			h.Flags |= wire.Cont
			total = off
		}
		if end < size {
			h.Flags |= wire.More
		}
		// Room alone does not stop a sender whose caller has gone.
		if err := ctx.Err(); err != nil {
			return off > 0, err
		}
		err := l.sendFrame(now, Bulk, h, msg, off, end, total)
		if err != nil && err != ErrTooWide { // no room at once, or a link that is dead
			l.out.flush()
			err = l.sendFrame(ctx, Bulk, h, msg, off, end, total)
		}
		switch err {
		case nil:
			off = end
		case ErrTooWide:
		default:
			return off > 0, err
		}
	}
	return true, nil
}

// Help lets a caller take in what arrives while it waits; see Helper.
func (l *Lane) Help(done *Signal, waiting *atomic.Int32) bool {
	c := l.out.bound.Load()
	return c != nil && c.helper != nil && c.helper.Help(done, waiting)
}

// Rouse ends what Help does and has the link take in what arrives; see Rouser.
func (l *Lane) Rouse() { l.out.rouse() }

// Forget drops what has arrived of a message of that call, and then what is still
// to come of it; one of which nothing is there yet comes to the sink. Who waited
// for the message calls it when nobody does any more, and not from within the sink.
func (l *Lane) Forget(call uint64) {
	l.s.sinkMu.Lock()
	defer l.s.sinkMu.Unlock()
	l.in.parts.forget(call)
}

// takeBack tells the peer that the rest of a message will not come, why, and calls
// told then. It waits for room as long as the session lives, and not in the
// caller's time.
func (l *Lane) takeBack(kind wire.Kind, call uint64, why error, told func()) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		told()
		return
	}
	s.workers.Go(func() {
		defer told()
		h := wire.Header{Kind: wire.Cancel, Call: call}
		var payload []byte
		if kind == wire.Reply {
			h.Kind, h.Flags, h.Arg = wire.Reply, wire.Error|wire.End, codeCanceled
			if errors.Is(why, context.DeadlineExceeded) {
				h.Arg = codeDeadlineExceeded
			}
			payload = wire.AppendFault(nil, "reply taken back: "+why.Error(), nil)
		}
		// If it cannot be sent the session ends, and the message with it.
		_ = l.Send(s.ctx, h, payload)
	})
}

// Canonical status codes of a call whose reply is taken back.
const (
	codeCanceled         = 1
	codeDeadlineExceeded = 4
)

func (l *Lane) retention() Retention {
	r := l.out.info()
	r.Duplicates = l.in.duplicates.Load()
	return r
}

// end lets all senders fail.
func (l *Lane) end(err error) {
	l.out.end(err)
	l.order.end(err)
}

// reset gives back what is kept; no link is left.
func (l *Lane) reset() {
	l.out.reset()
	l.s.sinkMu.Lock()
	defer l.s.sinkMu.Unlock()
	l.in.parts.reset()
}
