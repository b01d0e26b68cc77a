package transport_test

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// raw is a peer that says what the test tells it to.
type raw struct {
	t      *testing.T
	link   transport.Link
	frames chan rawFrame
	closed chan error
	landed []byte
	id     wire.SessionID // to be said in HELLO
	seq    uint32         // of the next frame of the lane
	got    atomic.Uint32  // frames of the lane
}

type rawFrame struct {
	h       wire.Header
	payload []byte
}

func newRaw(t *testing.T, link transport.Link) *raw {
	r := &raw{t: t, link: link, frames: make(chan rawFrame, 4096), closed: make(chan error, 1)}
	link.Start(r)
	return r
}

func rawDial(t *testing.T, c transport.Carrier, addr string) *raw {
	t.Helper()
	link, err := c.Dial(t.Context(), addr)
	require.NoError(t, err)
	return newRaw(t, link)
}

func rawAccept(t *testing.T, l transport.Listener) *raw {
	t.Helper()
	link, err := l.Accept()
	require.NoError(t, err)
	r := newRaw(t, link)
	f := r.next()
	require.Equal(t, wire.Hello, f.h.Kind)
	var m wire.HelloMsg
	require.NoError(t, m.Parse(f.payload))
	r.id = m.Session
	return r
}

func (r *raw) Take(h *wire.Header, payload []byte) error { return linktest.Take(r, h, payload) }

func (r *raw) Land(h *wire.Header) ([]byte, error) {
	r.landed = make([]byte, h.Length)
	return r.landed, nil
}

func (r *raw) Frame(h *wire.Header) error {
	if h.Kind == wire.Ping {
		r.answer()
		return nil
	}
	if h.Kind.InLane() && h.Kind != wire.Move {
		r.got.Add(1)
	}
	r.frames <- rawFrame{*h, r.landed}
	r.landed = nil
	return nil
}

func (r *raw) Closed(err error) { r.closed <- err }

// answer answers PING.
func (r *raw) answer() {
	if slot, err := r.link.Reserve(context.Background(), transport.Control, 0); err == nil {
		if r.link.Commit(slot, &wire.Header{Kind: wire.Pong}) != nil {
			r.link.Discard(slot)
			return
		}
		r.link.Flush()
	}
}

func (r *raw) next() rawFrame {
	r.t.Helper()
	return within(r.t, r.frames)
}

func (r *raw) commit(h wire.Header, payload []byte) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	slot, err := r.link.Reserve(ctx, transport.Control, len(payload))
	require.NoError(r.t, err)
	copy(slot.Payload, payload)
	require.NoError(r.t, r.link.Commit(slot, &h))
	r.link.Flush()
}

func (r *raw) send(kind wire.Kind, payload []byte) {
	r.t.Helper()
	r.commit(wire.Header{Kind: kind}, payload)
}

func (r *raw) lane(h wire.Header, payload []byte) {
	r.t.Helper()
	h.Lane, h.Seq, h.Ack = transport.LaneID, r.seq, r.got.Load()
	r.seq++
	r.commit(h, payload)
}

// move says MOVE.
func (r *raw) move(number, next uint32) {
	r.t.Helper()
	r.commit(wire.Header{Kind: wire.Move, Lane: transport.LaneID, Arg: number, Ack: next}, nil)
}

// hello exchanges HELLO as a client, and takes the lane to the link; or answers
// as a server.
func (r *raw) hello(f wire.Features) {
	r.t.Helper()
	m := helloMsg()
	m.Features, m.Session = f, r.id
	r.send(wire.Hello, m.Append(nil))
	if r.id == (wire.SessionID{}) {
		require.Equal(r.t, wire.Hello, r.next().h.Kind)
		r.move(1, 0)
		require.Equal(r.t, wire.Move, r.next().h.Kind)
	}
}

func helloMsg() wire.HelloMsg {
	return wire.HelloMsg{MinVersion: 1, MaxVersion: 1, MaxMessage: 1 << 20, MaxCalls: 100}
}

func qp(epoch uint64) []byte {
	q := wire.QP{Epoch: epoch, QPN: 3, Depth: 64, Slot: 4096, MTU: 3}
	return q.Append(nil)
}

func abandon(epoch uint64, text string) []byte {
	return wire.AppendFault(nil, text, binary.LittleEndian.AppendUint64(nil, epoch))
}
