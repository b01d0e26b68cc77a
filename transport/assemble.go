package transport

import (
	"fmt"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

const (
	// firstPart is the least that is allocated for a message in parts, in
	// bytes: several chunks of an RDMA link.
	firstPart = 64 << 10

	// growth is how many times what has arrived is allocated for a message
	// that outgrows its memory. Growing copies, and all else waits for it:
	// with 8 senders of 16 MiB, small calls had a p99 of 54 ms at 2, of 11 ms
	// at 4, and of 12 ms where all was allocated at once.
	growth = 4

	// maxSlack bounds what one lane allocates beyond the bytes that arrived,
	// besides the growth of large messages: those of common block sizes that
	// a peer sends at once get their memory at once and are never copied.
	maxSlack = blocksAtOnce * blockSize
)

// assembler puts messages together. It is a pure core: for each frame of a lane,
// take is called, or land and frame in turn; forget between any two calls, and
// interrupt instead of frame.
type assembler struct {
	maxMessage int // bytes
	maxParts   int // messages in parts at once

	parts map[partKey]*part
	open  int64 // bytes of their totals
	slack int   // bytes allocated beyond what arrived, over all parts

	// between land and frame:
	whole   *pool.Buf // memory of a message that is one frame
	scratch []byte    // where chunks of forgotten messages go
}

type partKey struct {
	kind wire.Kind
	call uint64
}

// part is a message that has arrived in part.
type part struct {
	first     wire.Header // of the first frame
	buf       *pool.Buf   // nil once forgotten and not landing
	arrived   int         // bytes
	landing   bool        // the link writes into buf
	forgotten bool        // to be dropped, up to its last chunk
}

// land says where the payload of the frame goes.
func (a *assembler) land(h *wire.Header) ([]byte, error) {
	if h.Flags&(wire.More|wire.Cont) == 0 {
		if err := a.checkWhole(h); err != nil {
			return nil, err
		}
		a.whole = pool.Get(int(h.Length))
		return a.whole.Bytes(), nil
	}
	p, err := a.chunk(h)
	if err != nil {
		return nil, err
	}
	if p.forgotten {
		if len(a.scratch) < int(h.Length) {
			a.scratch = make([]byte, h.Length)
		}
		return a.scratch[:h.Length], nil
	}
	need := p.arrived + int(h.Length)
	a.grow(p, need)
	p.buf.Resize(need)
	p.landing = true
	return p.buf.Bytes()[p.arrived:need], nil
}

// take takes in a frame whose payload is elsewhere: land, a copy, and frame.
func (a *assembler) take(h *wire.Header, payload []byte, m *Message) (whole bool, err error) {
	if h.Flags&(wire.More|wire.Cont) != 0 && len(payload) > 0 {
		dst, err := a.land(h)
		if err != nil {
			return false, err
		}
		copy(dst, payload)
		return a.frame(h, m)
	}
	whole, err = a.frame(h, m)
	if whole && len(payload) > 0 {
		m.Payload = pool.Get(len(payload))
		copy(m.Payload.Bytes(), payload)
	}
	return whole, err
}

// frame takes in a frame whose payload has landed, and says that it completes m.
func (a *assembler) frame(h *wire.Header, m *Message) (whole bool, err error) {
	if h.Flags&(wire.More|wire.Cont) == 0 {
		if err := a.checkWhole(h); err != nil {
			return false, err
		}
		m.begin(h)
		m.Payload, a.whole = a.whole, nil
		return true, nil
	}
	if h.Length == 0 {
		return false, &wire.ParseError{Field: "length", Got: 0, Want: "at least 1 in a chunk"}
	}
	key := partKey{h.Kind, h.Call}
	p := a.parts[key]
	a.arrive(p, int(h.Length))
	if h.Flags&wire.More != 0 {
		return false, nil
	}
	a.remove(key, p)
	if p.forgotten {
		return false, nil
	}
	m.begin(&p.first)
	m.Payload = p.buf
	return true, nil
}

// begin is all of a message but its payload.
func (m *Message) begin(h *wire.Header) {
	m.Kind, m.Flags = h.Kind, h.Flags&^(wire.More|wire.Cont|wire.Sum)
	m.Call, m.Method, m.Arg = h.Call, h.Method, h.Arg
}

// checkWhole admits a message that is one frame. It ends what arrived of an
// unfinished one of its call: its sender gave that up.
func (a *assembler) checkWhole(h *wire.Header) error {
	if h.Total != h.Length {
		return &wire.ParseError{Field: "total", Got: uint64(h.Total), Want: fmt.Sprintf("the length %d of a message in one frame", h.Length)}
	}
	if int64(h.Length) > int64(a.maxMessage) {
		return a.tooLarge(h.Length)
	}
	if len(a.parts) > 0 {
		kind := h.Kind
		if kind == wire.Cancel {
			kind = wire.Call
		}
		a.drop(partKey{kind, h.Call})
	}
	return nil
}

func (a *assembler) tooLarge(n uint32) error {
	return &wire.ParseError{Field: "total", Got: uint64(n), Want: fmt.Sprintf("at most %d, the limit in HELLO", a.maxMessage)}
}

// chunk finds or makes the message that the chunk belongs to.
func (a *assembler) chunk(h *wire.Header) (*part, error) {
	key := partKey{h.Kind, h.Call}
	p := a.parts[key]
	if h.Flags&wire.Cont == 0 {
		return a.first(key, p, h)
	}
	if p == nil {
		return nil, &wire.ParseError{Field: "flags", Got: uint64(h.Flags), Want: "a first chunk before a continuation"}
	}
	if int(h.Total) != p.arrived {
		return nil, &wire.ParseError{Field: "total", Got: uint64(h.Total), Want: fmt.Sprintf("offset %d", p.arrived)}
	}
	end, total := uint64(h.Total)+uint64(h.Length), uint64(p.first.Total)
	if last := h.Flags&wire.More == 0; end > total || last != (end == total) {
		return nil, &wire.ParseError{Field: "length", Got: uint64(h.Length), Want: fmt.Sprintf("chunks that end with the message, at %d", total)}
	}
	return p, nil
}

func (a *assembler) first(key partKey, p *part, h *wire.Header) (*part, error) {
	switch {
	case p != nil:
		return nil, &wire.ParseError{Field: "flags", Got: uint64(h.Flags), Want: "a continuation of the message that was begun"}
	case int64(h.Total) > int64(a.maxMessage):
		return nil, a.tooLarge(h.Total)
	case h.Length >= h.Total:
		return nil, &wire.ParseError{Field: "total", Got: uint64(h.Total), Want: fmt.Sprintf("more than the %d bytes of the first chunk", h.Length)}
	case len(a.parts) >= a.maxParts:
		return nil, &wire.ParseError{Field: "flags", Got: uint64(h.Flags), Want: fmt.Sprintf("at most %d messages in chunks at once", a.maxParts)}
	}
	if limit := openLimit(a.maxMessage); a.open+int64(h.Total) > limit {
		return nil, &wire.ParseError{Field: "total", Got: uint64(h.Total), Want: fmt.Sprintf("at most %d, what is left of %d for messages in chunks", limit-a.open, limit)}
	}
	a.open += int64(h.Total)
	p = &part{first: *h}
	if a.parts == nil {
		a.parts = make(map[partKey]*part)
	}
	a.parts[key] = p
	return p, nil
}

// grow makes room for need bytes: all of the message if the lane's slack
// allows it, else a multiple of what arrived.
func (a *assembler) grow(p *part, need int) {
	had := 0
	if p.buf != nil {
		if had = p.buf.Cap(); had >= need {
			return
		}
	}
	free := maxSlack - (a.slack - (had - p.arrived))
	total, want := int(p.first.Total), need
	switch {
	case total-need <= free:
		want = total
	case p.arrived > 0:
		want = min(total, max(need, growth*p.arrived))
	case firstPart-need <= free:
		want = max(need, firstPart)
	}
	a.slack -= had - p.arrived
	if p.buf == nil {
		p.buf = pool.Get(want)
		p.buf.Resize(0)
	} else {
		p.buf = pool.Grow(p.buf, want)
	}
	a.slack += p.buf.Cap() - p.arrived
}

// arrive counts a landed chunk.
func (a *assembler) arrive(p *part, n int) {
	p.landing = false
	p.arrived += n
	switch {
	case !p.forgotten:
		a.slack -= n
		if p.arrived == int(p.first.Total) {
			a.slack -= p.buf.Cap() - p.arrived
		}
	case p.buf != nil:
		p.buf.Release()
		p.buf = nil
	}
}

// interrupt ends a frame that is landing and will not be taken in: it comes
// again on another link. It returns the memory that the link may still write
// into, to be released when it does not any more; nothing else uses it.
func (a *assembler) interrupt() *pool.Buf {
	if stray := a.whole; stray != nil {
		a.whole = nil
		return stray
	}
	for key, p := range a.parts {
		if !p.landing {
			continue
		}
		p.landing = false
		stray := p.buf
		switch {
		case p.arrived == 0: // its first frame, as any that opens a message
			if p.buf = nil; !p.forgotten {
				a.slack -= stray.Cap()
			}
			a.remove(key, p)
		case p.forgotten:
			p.buf = nil
		default:
			p.buf = pool.Get(stray.Cap())
			p.buf.Resize(p.arrived)
			copy(p.buf.Bytes(), stray.Bytes())
			a.slack += p.buf.Cap() - stray.Cap()
		}
		return stray
	}
	return nil
}

// forget marks what is there of a call's messages as unwanted.
func (a *assembler) forget(call uint64) {
	for _, kind := range [...]wire.Kind{wire.Call, wire.Reply} {
		if p := a.parts[partKey{kind, call}]; p != nil && !p.forgotten {
			a.unwant(p)
		}
	}
}

// unwant gives memory back, unless the link is still writing into it.
func (a *assembler) unwant(p *part) {
	p.forgotten = true
	a.slack -= p.buf.Cap() - p.arrived
	if !p.landing {
		p.buf.Release()
		p.buf = nil
	}
}

// drop ends a message that its sender gave up.
func (a *assembler) drop(key partKey) {
	if p := a.parts[key]; p != nil {
		if !p.forgotten {
			a.unwant(p)
		}
		a.remove(key, p)
	}
}

func (a *assembler) remove(key partKey, p *part) {
	delete(a.parts, key)
	a.open -= int64(p.first.Total)
}

// reset releases everything; no link delivers any more.
func (a *assembler) reset() {
	if a.whole != nil {
		a.whole.Release()
		a.whole = nil
	}
	for _, p := range a.parts {
		if p.buf != nil {
			p.buf.Release()
		}
	}
	a.parts, a.open, a.slack = nil, 0, 0
}
