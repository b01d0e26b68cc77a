package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// nullLink takes everything in and delivers nothing.
type nullLink struct {
	kind Kind
	once sync.Once
	done chan struct{}
	buf  [64 << 10]byte
}

func newNullLink(k Kind) *nullLink { return &nullLink{kind: k, done: make(chan struct{})} }

func (l *nullLink) Kind() Kind      { return l.kind }
func (l *nullLink) Start(Receiver)  {}
func (l *nullLink) Flush()          {}
func (l *nullLink) MaxPayload() int { return 64 << 10 }
func (l *nullLink) Reserve(_ context.Context, _ Class, n int) (Slot, error) {
	return Slot{Payload: l.buf[:n:n]}, nil
}
func (l *nullLink) Commit(Slot, *wire.Header) error { return nil }
func (l *nullLink) Discard(Slot)                    {}
func (l *nullLink) Close(error)                     { l.once.Do(func() { close(l.done) }) }
func (l *nullLink) Done() <-chan struct{}           { return l.done }
func (l *nullLink) Info() LinkInfo                  { return LinkInfo{Kind: l.kind, Remote: &net.TCPAddr{}} }

// nullFabric makes null links.
type nullFabric struct{}

func (nullFabric) Kind() Kind                                      { return RDMA }
func (nullFabric) Usable(net.Addr) error                           { return nil }
func (nullFabric) Prepare(context.Context, net.Addr) (Half, error) { return nullHalf{}, nil }
func (nullFabric) Close() error                                    { return nil }

type nullHalf struct{}

func (nullHalf) Offer() wire.QP { return wire.QP{QPN: 1, Depth: 64, Slot: 4096, MTU: 1} }
func (nullHalf) Abort()         {}
func (nullHalf) Connect(context.Context, uint64, wire.QP) (Link, error) {
	return newNullLink(RDMA), nil
}

type nullSink struct {
	ended chan error
}

func (s nullSink) Message(m Message) {
	if m.Payload != nil {
		m.Payload.Release()
	}
}
func (s nullSink) GoAway()         {}
func (s nullSink) Ended(err error) { s.ended <- err }

// FuzzReceiver takes bytes as frames on the control link of either side and
// on the fast link, 8 bytes and a payload for each. Whatever comes, and in
// whatever order, there is no panic and no hang, faults are *wire.ParseError,
// the sink is told once, and the session ends.
func FuzzReceiver(f *testing.F) {
	add := func(client bool, frames ...[]byte) {
		var b []byte
		for _, fr := range frames {
			b = append(b, fr...)
		}
		f.Add(client, b)
	}
	fr := func(link byte, kind wire.Kind, flags wire.Flags, call byte, total uint16, payload []byte) []byte {
		b := []byte{link, byte(kind), byte(flags), call}
		b = binary.LittleEndian.AppendUint16(b, total)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(payload)))
		return append(b, payload...)
	}
	m := wire.HelloMsg{MinVersion: 1, MaxVersion: 1, MaxMessage: 1 << 20, MaxCalls: 8, Features: wire.FeatureFastLink}
	q := wire.QP{Epoch: 5, QPN: 1, Depth: 64, Slot: 4096, MTU: 1}
	abandon := wire.AppendFault(nil, "no", binary.LittleEndian.AppendUint64(nil, 5))
	add(false, fr(0, wire.QPOffer, 0, 0, 0, q.Append(nil)), fr(1, wire.Ready, 0, 0, 0, nil), fr(1, wire.Call, 0, 1, 3, []byte("abc")))
	add(false, fr(0, wire.QPOffer, 0, 0, 0, q.Append(nil)), fr(0, wire.QPAbandon, 0, 0, 0, abandon), fr(0, wire.Call, wire.More, 1, 9, []byte("abc")))
	add(true, fr(0, wire.QPAnswer, 0, 0, 0, q.Append(nil)), fr(1, wire.Ready, 0, 0, 0, nil), fr(1, wire.Reply, 0, 1, 3, []byte("abc")))
	mv := func(link byte) []byte { return fr(link, wire.Move, 0, 0, 0, nil) }
	call := fr(1, wire.Call, 0, 1, 3, []byte("abc"))
	add(false, mv(0), fr(0, wire.Call, 0, 1, 3, []byte("abc")), fr(0, wire.QPOffer, 0, 0, 0, q.Append(nil)), fr(1, wire.Ready, 0, 0, 0, nil), mv(1), call, mv(0), call)
	add(false, mv(0), fr(0, wire.Call, wire.More, 1, 9, []byte("abc")), mv(1), fr(0, wire.Call, wire.More|wire.Cont, 1, 3, []byte("abc")), call)
	add(true, fr(0, wire.Refuse, 0, 0, 0, abandon))
	add(false, fr(0, wire.Ping, 0, 0, 0, []byte("x")), fr(0, wire.GoAway, 0, 0, 0, nil), fr(0, wire.Close, 0, 0, 0, abandon))

	f.Fuzz(func(t *testing.T, client bool, b []byte) {
		sink := nullSink{ended: make(chan error, 2)}
		n := &Network{Carrier: noCarrier{}, Fabric: nullFabric{}, Config: Config{
			MaxMessage: 1 << 20, MaxCalls: 8, HandshakeTimeout: time.Minute, ReturnAfter: time.Hour, RetryAfter: time.Hour}}
		cfg, err := n.config()
		require.NoError(t, err)
		s, control := newSession(n, cfg, client, &m, newNullLink(TCP), reach{})
		s.open(func(*Session) Sink { return sink })
		s.begin()
		paths := [2]*path{control, newPath(s, newNullLink(RDMA), 5)}
		s.mu.Lock()
		s.fast = append(s.fast, paths[1])
		s.mu.Unlock()
		moves, seq := uint32(0), uint32(0)
		for len(b) >= 8 {
			h := wire.Header{
				Kind: wire.Kind(b[1]), Flags: wire.Flags(b[2]), Call: uint64(b[3]),
				Total: uint32(binary.LittleEndian.Uint16(b[4:])),
			}
			p := paths[b[0]&1]
			n := min(int(binary.LittleEndian.Uint16(b[6:])), len(b)-8)
			payload := b[8 : 8+n]
			b = b[8+n:]
			switch {
			case h.Kind == wire.Move:
				moves++
				h.Lane, h.Call, h.Total, h.Arg = LaneID, 0, 0, moves
			case h.Kind.InLane():
				h.Lane, h.Seq = LaneID, seq
				seq++
			default:
				h.Call, h.Total = 0, 0
			}
			h.Length = uint32(n)
			enc := make([]byte, wire.HeaderSize)
			h.Put(enc)
			if h.Parse(enc) != nil {
				continue // a link would have refused it
			}
			err := func() error {
				if h.Call%2 == 1 {
					return p.Take(&h, payload[:n])
				}
				if n > 0 {
					dst, err := p.Land(&h)
					if err != nil {
						return err
					}
					require.Len(t, dst, n)
					copy(dst, payload)
				}
				return p.Frame(&h)
			}()
			if err != nil {
				require.ErrorAs(t, err, new(*wire.ParseError))
				p.link.Close(err)
				p.Closed(err)
				break
			}
		}
		s.Close(errors.New("over"))
		paths[1].link.Close(nil)
		select {
		case <-s.Done():
		case <-time.After(time.Minute):
			t.Fatal("the session does not end")
		}
		require.Len(t, sink.ended, 1)
	})
}

// noCarrier makes no connections.
type noCarrier struct{}

func (noCarrier) Dial(context.Context, string) (Link, error) { return nil, errors.New("no network") }
func (noCarrier) Listen(string) (Listener, error)            { return nil, errors.New("no network") }

// TestBucket: a burst passes, then the rate, and only who goes on for long is
// found to be drowning.
func TestBucket(t *testing.T) {
	var b bucket
	now := time.Unix(1000, 0)
	took := 0
	for b.take(now) {
		took++
	}
	require.Equal(t, floodBurst, took)
	for range 10 {
		now = now.Add(time.Second)
		took = 0
		for b.take(now) {
			took++
		}
		require.Equal(t, floodRate, took)
	}
	require.False(t, b.drowned())
	now = now.Add(time.Minute)
	require.True(t, b.take(now))
	require.Zero(t, b.over)
	for range floodBurst + floodLimit {
		b.take(now)
	}
	require.True(t, b.drowned())
}
