package transport_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"hash/crc32"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestSendObeysContext: senders of large messages give up when their context
// ends although the peer has stopped reading (case 29).
func TestSendObeysContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	go func() { // a peer that says HELLO and never reads again
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		b := make([]byte, 4096)
		n, _ := conn.Read(b)
		var h wire.Header
		var m wire.HelloMsg
		if h.Parse(b) != nil || m.Parse(b[wire.HeaderSize:n]) != nil {
			return
		}
		m.Features = 0
		h.Length = uint32(len(m.Append(nil)))
		head := make([]byte, wire.HeaderSize)
		h.Put(head)
		_, _ = conn.Write(m.Append(head))
		<-t.Context().Done()
		conn.Close()
	}()
	c, err := dial(t, overTCP(), ln.Addr().String())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	const callers = 64
	ends := make(chan error, callers)
	for i := range callers {
		go func() {
			for {
				if err := c.Lane().Send(ctx, wire.Header{Kind: wire.Call, Call: uint64(i)}, make([]byte, 1<<20)); err != nil {
					ends <- err
					return
				}
			}
		}()
	}
	for range callers {
		require.ErrorIs(t, within(t, ends), context.DeadlineExceeded)
	}
	c.Close(nil)
	within(t, c.Done())
}

// TestRefer: what is there already leaves from there, and is released by its sender
// at once; it is refused where it needs chunks.
func TestRefer(t *testing.T) {
	pooltest.Check(t)
	c, s := connect(t, overTCP(), overTCP())
	large := pool.Get(300 << 10)
	_, err := c.Lane().Refer(t.Context(), transport.Small, large)
	require.Equal(t, transport.ErrTooWide, err)
	large.Release()
	for call, size := range []int{1, 60 << 10} {
		msg := pool.Get(size)
		for i := range msg.Bytes() {
			msg.Bytes()[i] = byte(i * (call + 3))
		}
		want := bytes.Clone(msg.Bytes())
		slot, err := c.Lane().Refer(t.Context(), transport.Small, msg)
		require.NoError(t, err)
		require.Same(t, &msg.Bytes()[0], &slot.Payload[0])
		c.Lane().Discard(slot)
		slot, err = c.Lane().Refer(t.Context(), transport.Small, msg)
		require.NoError(t, err)
		require.NoError(t, c.Lane().Commit(slot, &wire.Header{Kind: wire.Call, Call: uint64(call)}))
		msg.Release()
		got := within(t, s.sink.messages)
		require.True(t, bytes.Equal(want, got.Payload.Bytes()), size)
		got.Payload.Release()
	}
	c.Close(nil)
	within(t, c.Done())
	within(t, s.Done())
}

// TestTakenBack: a message whose sender gives up between two chunks never
// arrives, its memory is freed, and the peer is told by CANCEL or an error.
func TestTakenBack(t *testing.T) {
	pooltest.Check(t)
	c, s := connect(t, overTCP(), overTCP())
	send(t, c, wire.Header{Kind: wire.Call, Call: 1}, nil)
	within(t, s.sink.messages)
	for _, way := range []struct {
		from, to peer
		kind     wire.Kind
		told     wire.Kind
	}{{c, s, wire.Call, wire.Cancel}, {s, c, wire.Reply, wire.Reply}} {
		ctx := &expiring{Context: t.Context(), left: 5}
		err := way.from.Lane().Send(ctx, wire.Header{Kind: way.kind, Call: 2}, make([]byte, 4<<20))
		require.ErrorIs(t, err, context.Canceled)
		m := within(t, way.to.sink.messages)
		require.Equal(t, way.told, m.Kind)
		require.Equal(t, uint64(2), m.Call)
		if m.Kind == wire.Reply {
			require.NotZero(t, m.Flags&wire.Error)
			require.Equal(t, uint32(1), m.Arg)
			text, _, err := wire.ParseFault(m.Payload.Bytes())
			require.NoError(t, err)
			require.Equal(t, "reply taken back: context canceled", text)
		}
		payload(m)
	}
	send(t, c, wire.Header{Kind: wire.Call, Call: 3}, make([]byte, 1<<20))
	payload(within(t, s.sink.messages))
}

// expiring is a context that is done after it was asked some times.
type expiring struct {
	context.Context
	left int
	with error // nil: context.Canceled
}

func (e *expiring) Err() error {
	if e.left--; e.left < 0 {
		return cmp.Or(e.with, context.Canceled)
	}
	return nil
}

// TestForget: nothing of a forgotten message arrives, whatever the moment, and
// its memory is freed.
func TestForget(t *testing.T) {
	pooltest.Check(t)
	c, s := connect(t, overTCP(), overTCP())
	for call := range uint64(20) {
		forgot := make(chan struct{})
		go func() {
			time.Sleep(time.Duration(call) * 100 * time.Microsecond)
			s.Lane().Forget(call)
			close(forgot)
		}()
		send(t, c, wire.Header{Kind: wire.Call, Call: call}, make([]byte, 3<<20))
		<-forgot
		send(t, c, wire.Header{Kind: wire.Call, Call: 1000 + call}, []byte("next"))
		for {
			m := within(t, s.sink.messages)
			payload(m)
			if m.Call == 1000+call {
				break
			}
			require.Equal(t, call, m.Call)
		}
	}
}

// TestTooLarge: what the peer does not take in is not sent.
func TestTooLarge(t *testing.T) {
	srv := overTCP()
	srv.Config.MaxMessage = 1 << 20
	c, s := connect(t, overTCP(), srv)
	require.Equal(t, 1<<20, c.PeerLimits().MaxMessage)
	require.Equal(t, 4096, c.PeerLimits().MaxCalls)
	err := c.Lane().Send(t.Context(), wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 1<<20+1))
	var tl *transport.TooLargeError
	require.ErrorAs(t, err, &tl)
	require.Equal(t, transport.TooLargeError{Size: 1<<20 + 1, Max: 1 << 20}, *tl)
	send(t, c, wire.Header{Kind: wire.Call, Call: 2}, make([]byte, 1<<20))
	require.Len(t, payload(within(t, s.sink.messages)), 1<<20)
}

// TestPayloadSums: either side can ask for them, and both then send them.
func TestPayloadSums(t *testing.T) {
	for _, asks := range []string{"client", "server"} {
		cn, sn := overTCP(), overTCP()
		cn.Config.PayloadSum = asks == "client"
		sn.Config.PayloadSum = asks == "server"
		c, s := connect(t, cn, sn)
		send(t, c, wire.Header{Kind: wire.Call, Call: 1}, nil)
		within(t, s.sink.messages)
		before := s.Transport().Link.Stats.BytesReceived
		send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 100))
		payload(within(t, s.sink.messages))
		require.Equal(t, uint64(wire.HeaderSize+100+wire.SumSize), s.Transport().Link.Stats.BytesReceived-before)
	}
}

// TestManySenders: messages of all sizes, from many senders, interleaved on
// one lane, arrive whole, and small ones in place.
func TestManySenders(t *testing.T) {
	c, s := connect(t, overTCP(), overTCP())
	const senders, each = 32, 20
	var wg sync.WaitGroup
	for id := range senders {
		wg.Go(func() {
			for i := range each {
				call := uint64(id*each + i)
				n := 8 + (id*id*i*9973)%(300<<10)
				if i%2 == 0 {
					n = 8 + i
				}
				msg := bytes.Repeat([]byte{byte(call)}, n)
				binary.LittleEndian.PutUint32(msg, crc32.ChecksumIEEE(msg[4:]))
				h := wire.Header{Kind: wire.Call, Call: call}
				if err := c.Lane().Send(t.Context(), h, msg); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	seen := map[uint64]bool{}
	for range senders * each {
		m := within(t, s.sink.messages)
		require.False(t, seen[m.Call], "twice")
		seen[m.Call] = true
		b := payload(m)
		require.Equal(t, binary.LittleEndian.Uint32(b), crc32.ChecksumIEEE(b[4:]), "call %d of %d bytes", m.Call, len(b))
	}
	wg.Wait()
}

// BenchmarkSend sends messages one way, by size.
func BenchmarkSend(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"64B", 64}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}, {"16MiB", 16 << 20}} {
		b.Run(size.name, func(b *testing.B) {
			n := &transport.Network{Carrier: &tcp.Carrier{}}
			a, err := n.Listen("127.0.0.1:0")
			require.NoError(b, err)
			k := &counter{got: make(chan struct{}, 1<<16)}
			go a.Serve(func(*transport.Session) transport.Sink { return k })
			s, err := n.Dial(b.Context(), a.Addr().String(), func(*transport.Session) transport.Sink { return k })
			require.NoError(b, err)
			msg := make([]byte, size.n)
			b.SetBytes(int64(size.n))
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				for i := range b.N {
					if err := s.Lane().Send(b.Context(), wire.Header{Kind: wire.Call, Call: uint64(i)}, msg); err != nil {
						b.Error(err)
					}
				}
			}()
			for range b.N {
				<-k.got
			}
			b.StopTimer()
			s.Close(nil)
			<-s.Done()
			a.Close()
		})
	}
}

// counter drops messages and counts them.
type counter struct{ got chan struct{} }

func (c *counter) Message(m transport.Message) {
	if m.Payload != nil {
		m.Payload.Release()
	}
	c.got <- struct{}{}
}
func (c *counter) GoAway()     {}
func (c *counter) Ended(error) {}

// TestOpenMessages: senders of large messages take turns, so that what the
// peer has taken in part stays within what a lane may hold.
func TestOpenMessages(t *testing.T) {
	const senders, size = 12, 16 << 20 // 1.5 times what may be open
	c, s := connect(t, overTCP(), overTCP())
	var wg sync.WaitGroup
	for id := range senders {
		wg.Go(func() {
			if err := c.Lane().Send(t.Context(), wire.Header{Kind: wire.Call, Call: uint64(id)}, make([]byte, size)); err != nil {
				t.Error(err)
			}
		})
	}
	for range senders {
		m := within(t, s.sink.messages)
		require.Equal(t, size, m.Payload.Len())
		m.Payload.Release()
	}
	wg.Wait()
}

// TestTakenBackInTurn: the next message does not begin before the peer has
// heard that the last one will not come.
func TestTakenBackInTurn(t *testing.T) {
	srv := overTCP()
	srv.Config.MaxCalls = 1
	c, s := connect(t, overTCP(), srv)
	for call := range uint64(200) {
		ctx := &expiring{Context: t.Context(), left: 1}
		err := c.Lane().Send(ctx, wire.Header{Kind: wire.Call, Call: 2 * call}, make([]byte, 256<<10))
		require.ErrorIs(t, err, context.Canceled)
		send(t, c, wire.Header{Kind: wire.Call, Call: 2*call + 1}, make([]byte, 256<<10))
		require.Equal(t, wire.Cancel, within(t, s.sink.messages).Kind)
		require.Len(t, payload(within(t, s.sink.messages)), 256<<10)
	}
}

// TestTakenBackInTime: a reply that a deadline cuts short fails with that code
// (case 81).
func TestTakenBackInTime(t *testing.T) {
	c, s := connect(t, overTCP(), overTCP())
	send(t, c, wire.Header{Kind: wire.Call, Call: 1}, nil)
	within(t, s.sink.messages)
	ctx := &expiring{Context: t.Context(), left: 5, with: context.DeadlineExceeded}
	err := s.Lane().Send(ctx, wire.Header{Kind: wire.Reply, Call: 1}, make([]byte, 4<<20))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	m := within(t, c.sink.messages)
	require.NotZero(t, m.Flags&wire.Error)
	require.EqualValues(t, 4, m.Arg)
	payload(m)
}
