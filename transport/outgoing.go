package transport

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/internal/quota"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// carrier is a link as it carries a lane, from one move to the next.
type carrier struct {
	link    Link
	widest  int      // bytes of a payload on it
	helper  Helper   // link, if it is one
	rouser  Rouser   // link, if it is one
	refer   Referrer // link, if it is one
	move    uint32   // its number
	pumping bool     // a goroutine sends what is due; guarded by outgoing.mu
}

func newCarrier(link Link, move uint32) *carrier {
	c := &carrier{link: link, widest: link.MaxPayload(), move: move}
	c.helper, _ = link.(Helper)
	c.rouser, _ = link.(Rouser)
	c.refer, _ = link.(Referrer)
	return c
}

// place claims room for a frame with a payload that is there: n bytes of buf,
// from at on. They are copied where the link cannot send them from there.
func (c *carrier) place(ctx context.Context, class Class, buf *pool.Buf, at, n int) (Slot, error) {
	if c.refer != nil {
		return c.refer.Refer(ctx, class, buf, at, n)
	}
	slot, err := c.link.Reserve(ctx, class, n)
	if err == nil {
		copy(slot.Payload, buf.Bytes()[at:])
		slot.Buf, slot.At = buf, at
	}
	return slot, err
}

// again claims room for a frame that was kept.
func (c *carrier) again(ctx context.Context, k *keptFrame) (Slot, error) {
	class := classOf(&k.h)
	if k.buf != nil {
		return c.place(ctx, class, k.buf, k.at, k.length)
	}
	slot, err := c.link.Reserve(ctx, class, k.length)
	if err == nil {
		copy(slot.Payload, k.bytes())
	}
	return slot, err
}

// outgoing is the sending half of a lane: it numbers frames, keeps them, and
// gives them to the link that carries the lane, in the order of their numbers.
//
// A frame that is added while none before it is due, leaves in the call that
// adds it. Else a pump, a goroutine of the session, sends what is due until it
// has caught up: after a move, or where a frame was made for another link.
type outgoing struct {
	bound atomic.Pointer[carrier] // as carrier, for who looks without mu
	limit atomic.Int64            // bytes of the payload of a frame
	room  [Control]quota.Quota    // for what is kept; Control is reserved as Small

	mu      sync.Mutex
	carrier *carrier // nil: the lane pauses
	sent    sentFrames
	seen    uint32 // of sent.acked, at the last tick
	still   int    // ticks since that moved although frames are kept
	ended   error  // the session has ended
}

func (o *outgoing) init(retain, limit int) {
	for c := range o.room {
		o.room[c] = quota.Quota{MaxCount: retainedFrames / len(o.room), MaxBytes: int64(retain / len(o.room))}
	}
	o.setLimit(limit)
}

func roomOf(c Class) Class {
	if c == Bulk {
		return Bulk
	}
	return Small
}

// setLimit bounds the payloads of frames that are begun from now on.
func (o *outgoing) setLimit(bytes int) {
	o.limit.Store(int64(bytes))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent.setNarrow(bytes)
}

// fits says that all that is kept fits frames with so many bytes of payload.
func (o *outgoing) fits(bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent.fits(bytes)
}

// reserve claims room for one frame, and where a link carries the lane on it.
// If msg is not nil the payload is there, n bytes of it from at on. Slots are
// large: what is done for each frame fills them in, and does not copy them.
func (o *outgoing) reserve(ctx context.Context, class Class, msg *pool.Buf, at, n int, slot *Slot) (err error) {
	if err = o.take(ctx, class, n); err != nil {
		return err
	}
	if c := o.bound.Load(); c != nil && n <= c.widest {
		if msg == nil {
			*slot, err = c.link.Reserve(ctx, class, n)
		} else {
			*slot, err = c.place(ctx, class, msg, at, n)
		}
		if err == nil {
			slot.via, slot.class = c, class
			return nil
		}
		if ctx.Err() != nil {
			o.room[roomOf(class)].Give(1, n)
			return err
		}
	}
	// The lane pauses, or its link is dead: what is sent is kept until it moves.
	if msg == nil {
		msg, at = pool.Get(n), 0
	} else {
		msg.Retain()
	}
	*slot = Slot{Payload: msg.Bytes()[at:][:n:n], Buf: msg, At: at, class: class}
	return nil
}

// take waits for room to keep a frame. Who waits does not help the link, which alone
// hears what the peer has taken in.
func (o *outgoing) take(ctx context.Context, class Class, n int) error {
	room := &o.room[roomOf(class)]
	if room.Take(now, n) == nil {
		return nil
	}
	o.rouse()
	return room.Take(ctx, n)
}

// rouse has the link take in what arrives; see Rouser.
func (o *outgoing) rouse() {
	if c := o.bound.Load(); c != nil && c.rouser != nil {
		c.rouser.Rouse()
	}
}

// discard gives a slot back unused.
func (o *outgoing) discard(s *Slot) {
	o.room[roomOf(s.class)].Give(1, len(s.Payload))
	dropSlot(s)
}

// dropSlot gives back the memory of a slot.
func dropSlot(s *Slot) {
	if s.via == nil {
		s.Buf.Release()
		return
	}
	s.via.link.Discard(*s)
}

// keep makes what the lane keeps of a slot's payload that is not small: the
// memory itself, from at on, or a copy.
func keep(s *Slot) (buf *pool.Buf, at int) {
	switch n := len(s.Payload); {
	case n <= smallKept:
	case s.Buf != nil:
		s.Buf.Retain()
		return s.Buf, s.At
	default:
		buf = pool.Get(n)
		copy(buf.Bytes(), s.Payload)
	}
	return buf, 0
}

// send numbers the frame in the slot and sends it, with more to follow at the
// next flush, or lets it be sent: pump is the carrier that needs a pump for it.
// An error means that the session has ended, or ErrTooWide that the limit has
// come to be lower since the slot was reserved; the slot is still the caller's.
func (o *outgoing) send(slot *Slot, h *wire.Header, ack uint32, more bool) (pump *carrier, err error) {
	buf, at := keep(slot)
	o.mu.Lock()
	if err = o.ended; err == nil && len(slot.Payload) > o.sent.narrow {
		err = ErrTooWide
	}
	if err != nil {
		o.mu.Unlock()
		if buf != nil {
			buf.Release()
		}
		return nil, err
	}
	gone := slot.via != nil && slot.via == o.carrier && !o.sent.due()
	o.sent.add(h, len(slot.Payload)).keep(slot.Payload, buf, at)
	if gone {
		h.Ack = ack
		if gone = slot.via.link.Commit(*slot, h) == nil; gone {
			o.sent.leave()
		}
	}
	if !gone {
		pump = o.needsPump()
	}
	o.mu.Unlock()
	switch {
	case !gone:
		dropSlot(slot)
	case !more:
		slot.via.link.Flush()
	}
	return pump, nil
}

// flush lets leave what send held back for more.
func (o *outgoing) flush() {
	if c := o.bound.Load(); c != nil {
		c.link.Flush() // another has what matters of it sent again
	}
}

// needsPump is the carrier for which a pump has to be started. Callers hold mu.
func (o *outgoing) needsPump() *carrier {
	c := o.carrier
	if c == nil || c.pumping || !o.sent.due() {
		return nil
	}
	c.pumping = true
	return c
}

// pump sends what is due on c until nothing is, or c does not carry the lane
// any more.
func (o *outgoing) pump(ctx context.Context, c *carrier, ack func() uint32) {
	for {
		k, ok := o.next(c)
		if !ok {
			return
		}
		slot, err := c.again(ctx, &k)
		if err != nil {
			k.release()
			return // c.pumping stays: nothing will leave here
		}
		o.mu.Lock()
		gone := o.carrier == c && o.sent.leaving == k.h.Seq
		if gone {
			k.h.Ack = ack()
			if gone = c.link.Commit(slot, &k.h) == nil; gone {
				o.sent.leave()
			}
		}
		o.mu.Unlock()
		if gone {
			c.link.Flush()
		} else {
			c.link.Discard(slot)
		}
		k.release()
	}
}

// next is the frame that is due, its payload retained.
func (o *outgoing) next(c *carrier) (keptFrame, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.carrier != c || !o.sent.due() {
		c.pumping = false
		return keptFrame{}, false
	}
	k := *o.sent.at(o.sent.leaving)
	if k.buf != nil {
		k.buf.Retain()
	}
	return k, true
}

// acked takes in what the peer says that it has taken in. narrowed: with that,
// the last frame went that was beyond the limit.
func (o *outgoing) acked(to uint32) (narrowed bool, err error) {
	o.mu.Lock()
	wide := o.sent.wide
	var f freed
	err = o.sent.ack(to, &f)
	narrowed = wide > 0 && o.sent.wide == 0
	o.mu.Unlock()
	for c := range f {
		if f[c].count > 0 {
			o.room[c].Give(f[c].count, f[c].bytes)
		}
	}
	return narrowed, err
}

// announce says MOVE on c, if that is not dead. A lane that another link carries
// goes on there until bind. One that this very link carries pauses: the peer may
// have dropped what left here before, and what follows MOVE must not have a gap.
func (o *outgoing) announce(c *carrier, slot Slot, next uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.link.Commit(slot, &wire.Header{Kind: wire.Move, Lane: LaneID, Arg: c.move, Ack: next}) != nil {
		return false
	}
	if o.carrier != nil && o.carrier.link == c.link {
		o.pause()
	}
	return true
}

// bind lets c carry the lane, from the peer's next number on. It is called again
// where the answer comes to a move that was bound at once.
func (o *outgoing) bind(c *carrier) (pump *carrier) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.carrier == nil || o.carrier.move != c.move {
		o.sent.rewind()
		o.still = 0 // it has all the time that the one before had
		o.turnTo(c)
	}
	return o.needsPump()
}

func (o *outgoing) pause() { o.turnTo(nil) }

// turnTo has c carry the lane; nil: nothing. Who has helped the link before does
// not come back to it, so that takes in itself what the session gets there.
// Callers hold mu.
func (o *outgoing) turnTo(c *carrier) {
	before := o.carrier
	o.carrier = c
	o.bound.Store(c)
	if before != nil && before.rouser != nil {
		before.rouser.Rouse()
	}
}

// idle says that the peer has taken in all that was sent.
func (o *outgoing) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent.len() == 0
}

// stillTicks is for how many ticks frames are kept of which the peer has taken in
// none, as far as it said, nor anything of what their link sends: then that moves.
// It is called once in a tick. A lane that sent nothing since the last gives its
// memory back: after a burst that can be a megabyte, and there are thousands of
// lanes.
func (o *outgoing) stillTicks(moves bool) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sent.acked != o.seen || o.sent.len() == 0 || moves {
		if o.sent.acked == o.seen {
			o.sent.shed()
		}
		o.seen, o.still = o.sent.acked, 0
	} else {
		o.still++
	}
	return o.still
}

// lost takes the lane from a dead link.
func (o *outgoing) lost(link Link) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.carrier == nil || o.carrier.link != link {
		return false
	}
	o.pause()
	return true
}

// end lets everyone fail who sends.
func (o *outgoing) end(err error) {
	o.mu.Lock()
	o.ended = err
	o.mu.Unlock()
	for c := range o.room {
		o.room[c].End(err)
	}
}

func (o *outgoing) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pause()
	o.sent.reset()
}

func (o *outgoing) info() Retention {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Retention{Frames: int(o.sent.len()), Bytes: o.sent.bytes, Resent: o.sent.again}
}
