package transport_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// patience is a deadline that only a hang exceeds.
const patience = 30 * time.Second

// sink is a Sink that hands on what it gets.
type sink struct {
	messages chan transport.Message
	came     transport.Signal // a message has come since it was taken
	goAway   chan struct{}
	ended    chan error
	over     bool // Ended was called
}

func newSink() *sink {
	return &sink{
		messages: make(chan transport.Message, 1024),
		goAway:   make(chan struct{}, 16),
		ended:    make(chan error, 16),
	}
}

func (s *sink) Message(m transport.Message) {
	s.check()
	s.messages <- m
	s.came.Set()
}
func (s *sink) GoAway()         { s.check(); s.goAway <- struct{}{} }
func (s *sink) Ended(err error) { s.check(); s.over = true; s.ended <- err }

// check needs no lock: calls of a sink take turns.
func (s *sink) check() {
	if s.over {
		panic("the sink is called after Ended")
	}
}

// within receives from ch, or fails.
func within[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// peer is one end of a session under test.
type peer struct {
	*transport.Session
	sink *sink
}

// server serves sessions and hands them on.
type server struct {
	addr     string
	acceptor *transport.Acceptor
	sessions chan peer
}

func serve(t *testing.T, n *transport.Network) *server {
	t.Helper()
	a, err := n.Listen("127.0.0.1:0")
	require.NoError(t, err)
	s := &server{a.Addr().String(), a, make(chan peer, 1024)}
	served := make(chan error, 1)
	go func() {
		served <- a.Serve(func(ses *transport.Session) transport.Sink {
			p := peer{ses, newSink()}
			s.sessions <- p
			return p.sink
		})
	}()
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, within(t, served))
	})
	return s
}

func dial(t *testing.T, n *transport.Network, addr string) (peer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := peer{sink: newSink()}
	var err error
	p.Session, err = n.Dial(ctx, addr, func(*transport.Session) transport.Sink { return p.sink })
	return p, err
}

// connect makes a session and ends it with the test.
func connect(t *testing.T, client, srv *transport.Network) (c, s peer) {
	t.Helper()
	l := serve(t, srv)
	c, err := dial(t, client, l.addr)
	require.NoError(t, err)
	s = within(t, l.sessions)
	t.Cleanup(func() { end(t, c, s) })
	return c, s
}

func end(t *testing.T, c, s peer) {
	t.Helper()
	c.Close(nil)
	within(t, c.Done())
	within(t, s.Done())
}

func overTCP() *transport.Network {
	n := &transport.Network{Carrier: &tcp.Carrier{}}
	n.Config.ResumeWithin = 100 * time.Millisecond
	return n
}

func send(t *testing.T, p peer, h wire.Header, msg []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.Lane().Send(ctx, h, msg))
}

func payload(m transport.Message) []byte {
	if m.Payload == nil {
		return nil
	}
	defer m.Payload.Release()
	return bytes.Clone(m.Payload.Bytes())
}

func TestSessionOverTCP(t *testing.T) {
	pooltest.Check(t)
	c, s := connect(t, overTCP(), overTCP())
	require.Equal(t, transport.TCP, c.Transport().Kind)
	require.Equal(t, "no fabric is configured", c.Transport().Reason)
	require.Equal(t, c.ID(), s.ID())

	for _, n := range []int{0, 1, 63, 64 << 10, 64<<10 + 1, 1 << 20, 5<<20 + 3} {
		msg := bytes.Repeat([]byte{byte(n)}, n)
		send(t, c, wire.Header{Kind: wire.Call, Call: uint64(n + 1), Flags: wire.End, Method: 7, Arg: 9}, msg)
		m := within(t, s.sink.messages)
		require.Equal(t, uint64(n+1), m.Call)
		require.Equal(t, uint64(7), m.Method)
		require.Equal(t, uint32(9), m.Arg)
		require.Equal(t, wire.End, m.Flags)
		require.True(t, bytes.Equal(msg, payload(m)))
		send(t, s, wire.Header{Kind: wire.Reply, Call: uint64(n + 1), Flags: wire.End}, msg)
		require.True(t, bytes.Equal(msg, payload(within(t, c.sink.messages))))
	}
	require.NoError(t, s.GoAway())
	within(t, c.sink.goAway)

	c.Close(nil)
	require.ErrorIs(t, within(t, c.sink.ended), net.ErrClosed)
	err := within(t, s.sink.ended)
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorContains(t, err, "closed by the peer")
}
