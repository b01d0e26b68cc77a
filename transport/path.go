package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// path is a link of a session, and its Receiver. The fields of the first group
// are the link's goroutine's, those of the second are guarded by Session.sinkMu,
// those of the third by Session.mu.
type path struct {
	s     *Session
	link  Link
	epoch uint64        // of the attempt; 0: a control link
	gone  chan struct{} // closed when the link is dead

	scratch []byte // where payloads go that are not messages
	flood   bucket
	ack     uint32 // the newest of the peer
	heard   atomic.Uint32

	landing bool      // into memory of the lane
	stray   *pool.Buf // the link may still write into it, for nobody

	queue    []ownFrame // frames of the session that wait for room
	sending  bool       // a goroutine sends them
	entering bool       // MOVE waits for room
	waits    int        // ticks since MOVE was asked for
	life     uint64     // signs of it, at the last tick
	went     uint64     // bytes that the peer's system had, at the last tick
	moves    bool       // these became more in that
	silent   int        // ticks since the last sign of life
	awaited  bool       // of a doubted link; a timer looks for one
	left     bool       // the peer knows that the link is over
	since    time.Time  // when it was there, or could carry the lane
}

// ownFrame is a frame of the session.
type ownFrame struct {
	kind    wire.Kind
	payload []byte
}

func newPath(s *Session, link Link, epoch uint64) *path {
	return &path{s: s, link: link, epoch: epoch, gone: make(chan struct{}), since: time.Now()}
}

func (p *path) fast() bool { return p.epoch != 0 }

// ackedBytes is how many bytes the peer's system has; 0 where nobody knows.
func (p *path) ackedBytes() uint64 {
	if a, ok := p.link.(Acker); ok {
		return a.Acked()
	}
	return 0
}

// lives looks for signs of life since the last tick: frames, and where these take
// long, bytes that have come, or went to the peer. Callers hold Session.mu.
func (p *path) lives() bool {
	acked := uint64(0)
	if !p.s.lane.out.idle() {
		acked = p.ackedBytes()
	}
	life := uint64(p.heard.Load()) + p.link.Info().Stats.BytesReceived + acked
	lives := life != p.life
	p.moves = acked != p.went
	p.life, p.went = life, acked
	return lives
}

// Land implements Receiver.
func (p *path) Land(h *wire.Header) ([]byte, error) {
	if h.Kind.InLane() {
		p.s.sinkMu.Lock()
		b, err := p.s.lane.in.land(p, h)
		p.s.sinkMu.Unlock()
		return b, p.final(err)
	}
	return p.trash(h), nil // Length is bounded by the rules of the kind
}

// trash is where a payload goes that is no message.
func (p *path) trash(h *wire.Header) []byte {
	if n := int(h.Length); cap(p.scratch) < n {
		p.scratch = make([]byte, n)
	}
	return p.scratch[:h.Length]
}

func (p *path) dropStray() {
	if p.stray != nil {
		p.stray.Release()
		p.stray = nil
	}
}

// Take implements Receiver.
func (p *path) Take(h *wire.Header, payload []byte) error {
	p.heard.Store(p.heard.Load() + 1)
	if h.Kind.InLane() || h.Kind == wire.Ack {
		if err := p.ofLane(h, payload); err != nil {
			return p.final(err)
		}
		return nil
	}
	return p.own(h, payload)
}

// Frame implements Receiver.
func (p *path) Frame(h *wire.Header) error {
	p.heard.Store(p.heard.Load() + 1)
	if h.Kind.InLane() || h.Kind == wire.Ack {
		if err := p.ofLane(h, nil); err != nil {
			return p.final(err)
		}
		return nil
	}
	return p.own(h, p.scratch[:h.Length])
}

// final ends the session with what is wrong with a frame of the lane: it would
// come again on another link. Not so where a fast link has lost frames, MOVE or
// those before, as one does that took an old packet for a new one: they come on
// another.
func (p *path) final(err error) error {
	if err != nil && !(p.fast() && isGap(err)) {
		p.s.end("closed here", err, true)
	}
	return err
}

func isGap(err error) bool {
	var wrong *wire.ParseError
	return errors.As(err, &wrong) && wrong.Field == "seq"
}

// ofLane takes in a frame of the lane. payload is nil where it has landed.
func (p *path) ofLane(h *wire.Header, payload []byte) error {
	switch h.Kind {
	case wire.Move:
		if _, err := p.flooded(h.Kind); err != nil {
			return err
		}
		return p.s.takeMove(p, h)
	case wire.Ack:
		return p.acked(h)
	}
	if err := p.acked(h); err != nil {
		return err
	}
	return p.s.take(p, h, payload)
}

func (p *path) acked(h *wire.Header) error {
	if h.Lane != LaneID {
		return errLane(h)
	}
	if h.Ack == p.ack {
		return nil
	}
	narrowed, err := p.s.lane.out.acked(h.Ack)
	if err != nil {
		return err
	}
	p.ack = h.Ack
	if narrowed {
		p.s.narrowed()
	}
	return nil
}

// Closed implements Receiver.
func (p *path) Closed(err error) {
	p.s.sinkMu.Lock()
	p.s.lane.in.left(p)
	p.s.sinkMu.Unlock()
	close(p.gone)
	p.s.linkEnded(p, err)
}

func (p *path) unexpected(k wire.Kind) error {
	return &wire.ParseError{Field: "kind", Got: uint64(k), Want: fmt.Sprintf("no %v here", k)}
}

// flooded says that more frames have come than may; an error, that the peer
// does not mean to stop.
func (p *path) flooded(k wire.Kind) (bool, error) {
	switch {
	case p.flood.take(time.Now()):
		return false, nil
	case p.flood.drowned():
		return true, &wire.ParseError{Field: "kind", Got: uint64(k), Want: fmt.Sprintf("at most %d frames of the session in a second", floodRate)}
	}
	return true, nil
}

// own takes in a frame of the link or session.
func (p *path) own(h *wire.Header, payload []byte) error {
	over, err := p.flooded(h.Kind)
	if err != nil {
		return err
	}
	switch h.Kind {
	case wire.Ping:
		if !over {
			p.s.pong(p, payload)
		}
		return nil
	case wire.Pong:
		return nil
	case wire.Close:
		return p.s.closedByPeer(payload)
	case wire.GoAway:
		p.s.goneAway()
		return nil
	case wire.Ready:
		if p.fast() {
			p.s.ready(p)
			return nil
		}
	case wire.QPOffer, wire.QPAnswer, wire.QPAbandon:
		if !p.fast() {
			return p.exchange(h.Kind, payload)
		}
	}
	return p.unexpected(h.Kind)
}

// exchange takes in a frame of the set-up of fast links.
func (p *path) exchange(kind wire.Kind, payload []byte) error {
	if kind == wire.QPAbandon {
		text, details, err := wire.ParseFault(payload)
		if err != nil {
			return err
		}
		if len(details) != 8 {
			return &wire.ParseError{Field: "QP_ABANDON details", Got: uint64(len(details)), Want: "8 bytes, the epoch"}
		}
		p.s.abandoned(binary.LittleEndian.Uint64(details), text)
		return nil
	}
	var qp wire.QP
	if err := qp.Parse(payload); err != nil {
		return err
	}
	switch {
	case qp.Epoch == 0:
		return &wire.ParseError{Field: "QP epoch", Got: 0, Want: "that of the link to be"}
	case p.s.client != (kind == wire.QPAnswer) || p.s.unable != "":
		return p.unexpected(kind)
	case kind == wire.QPAnswer:
		p.s.answered(qp)
	default:
		p.s.offered(p, qp)
	}
	return nil
}
