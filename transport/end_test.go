package transport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestCloseEverywhere closes both sides from many goroutines, while messages
// of all sizes go both ways (case 72). Every sink is told once.
func TestCloseEverywhere(t *testing.T) {
	pooltest.Check(t)
	l := serve(t, overTCP())
	for round := range 10 {
		c, err := dial(t, overTCP(), l.addr)
		require.NoError(t, err)
		s := within(t, l.sessions)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				h := wire.Header{Kind: wire.Call, Call: uint64(i + 1)}
				for c.Lane().Send(t.Context(), h, make([]byte, 1+i*20<<10)) == nil {
					h.Call += 100
				}
			})
		}
		drain := func(p peer) {
			for {
				select {
				case m := <-p.sink.messages:
					payload(m)
				case <-p.Done():
					for len(p.sink.messages) > 0 {
						payload(<-p.sink.messages)
					}
					return
				}
			}
		}
		wg.Go(func() { drain(s) })
		wg.Go(func() { drain(c) })
		for range 8 {
			wg.Go(func() {
				time.Sleep(time.Duration(round) * time.Millisecond)
				c.Close(nil)
				s.Close(errTest)
				c.Close(errTest)
			})
		}
		wg.Wait()
		for _, p := range []peer{c, s} {
			require.ErrorAs(t, within(t, p.sink.ended), new(*transport.SessionError))
			require.Empty(t, p.sink.ended)
			require.Error(t, p.Err())
			require.Error(t, p.GoAway())
		}
	}
}

// closer closes its session in each of its methods.
type closer struct {
	s     *transport.Session
	ended chan error
}

func (c *closer) Message(m transport.Message) {
	payload(m)
	c.s.Close(errTest)
}
func (c *closer) GoAway()         { c.s.Close(errTest) }
func (c *closer) Ended(err error) { c.s.Close(nil); c.ended <- err }

// TestCloseInsideSink: a sink may close its session, even as it is made (case 72).
func TestCloseInsideSink(t *testing.T) {
	for _, where := range []string{"new", "Message", "GoAway"} {
		t.Run(where, func(t *testing.T) {
			pooltest.Check(t)
			a, err := overTCP().Listen("127.0.0.1:0")
			require.NoError(t, err)
			made := make(chan *closer, 1)
			go a.Serve(func(s *transport.Session) transport.Sink {
				c := &closer{s, make(chan error, 2)}
				if where == "new" {
					s.Close(errTest)
				}
				made <- c
				return c
			})
			defer a.Close()
			c, err := dial(t, overTCP(), a.Addr().String())
			if where == "new" && err != nil {
				require.ErrorContains(t, err, "broken by the test")
			} else {
				require.NoError(t, err)
				if where == "Message" {
					send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 100))
				} else {
					require.NoError(t, c.GoAway())
				}
				err := within(t, c.sink.ended)
				require.ErrorContains(t, err, "closed by the peer: peer: broken by the test")
				require.ErrorAs(t, err, new(*transport.PeerError))
				within(t, c.Done())
			}
			srv := within(t, made)
			require.ErrorIs(t, within(t, srv.ended), errTest)
			within(t, srv.s.Done())
			require.Empty(t, srv.ended)
		})
	}
}

// TestCloseDuringDial: a context that ends stops Dial at once, wherever it is.
func TestCloseDuringDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		l, err := m.Listen("memory")
		require.NoError(t, err)
		defer l.Close()
		for _, stage := range []string{"HELLO", "fast link"} {
			f := &fabric{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			go func() {
				srv := rawAccept(t, l)
				if stage == "fast link" {
					srv.hello(wire.FeatureFastLink)
				}
				<-srv.closed
			}()
			start := time.Now()
			snk := newSink()
			_, err := networkOf(m, f).Dial(ctx, "memory", func(*transport.Session) transport.Sink { return snk })
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, time.Second, time.Since(start))
			time.Sleep(10 * time.Second)
			require.Zero(t, f.live.Load())
			if stage == "fast link" {
				require.Len(t, snk.ended, 1)
			} else {
				require.Empty(t, snk.ended, "a sink that was never made")
			}
		}
	})
}

// TestRefused: what a peer refuses is told with its reason.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		l, err := m.Listen("memory")
		require.NoError(t, err)
		defer l.Close()
		for _, c := range []struct {
			change func(*wire.HelloMsg)
			want   string
		}{
			{func(h *wire.HelloMsg) { h.MinVersion, h.MaxVersion = 2, 3 }, "versions 2 to 3, this side has 1"},
			{func(h *wire.HelloMsg) { h.Session[0]++ }, "HELLO for session"},
		} {
			go func() {
				srv := rawAccept(t, l)
				h := helloMsg()
				h.Session = srv.id
				c.change(&h)
				srv.send(wire.Hello, h.Append(nil))
				f := srv.next()
				if f.h.Kind != wire.Close {
					t.Errorf("the client says %v", f.h.Kind)
				}
				<-srv.closed
			}()
			_, err := dial(t, &transport.Network{Carrier: m}, "memory")
			require.ErrorContains(t, err, c.want)
		}
		go func() {
			srv := rawAccept(t, l)
			srv.send(wire.Refuse, wire.AppendFault(nil, "not today", nil))
			srv.link.Close(nil)
		}()
		_, err = dial(t, &transport.Network{Carrier: m}, "memory")
		require.ErrorContains(t, err, "peer: not today")
		require.ErrorAs(t, err, new(*transport.PeerError))
	})
}

// TestServerRefuses: a client of other versions hears why.
func TestServerRefuses(t *testing.T) {
	l := serve(t, overTCP())
	c := rawDial(t, overTCP().Carrier, l.addr)
	h := helloMsg()
	h.MinVersion, h.MaxVersion = 2, 2
	c.send(wire.Hello, h.Append(nil))
	f := c.next()
	require.Equal(t, wire.Refuse, f.h.Kind)
	text, _, err := wire.ParseFault(f.payload)
	require.NoError(t, err)
	require.Equal(t, "versions 2 to 2, this side has 1", text)
	require.ErrorIs(t, within(t, c.closed), io.EOF)
}

// TestPeerVanishes: a connection that ends without CLOSE is not a regular end.
func TestPeerVanishes(t *testing.T) {
	l := serve(t, overTCP())
	c := rawDial(t, overTCP().Carrier, l.addr)
	c.hello(0)
	s := within(t, l.sessions)
	c.link.Close(errTest)
	var se *transport.SessionError
	err := within(t, s.sink.ended)
	require.ErrorAs(t, err, &se)
	require.Equal(t, "control link", se.What)
	require.False(t, errors.Is(err, net.ErrClosed))
}

// TestEndReleases: what has half arrived is given back with the session, and
// what comes late is too.
func TestEndReleases(t *testing.T) {
	pooltest.Check(t)
	l := serve(t, overTCP())
	for range 5 {
		c := rawDial(t, overTCP().Carrier, l.addr)
		c.hello(0)
		s := within(t, l.sessions)
		c.lane(wire.Header{Kind: wire.Call, Call: 1, Flags: wire.More, Total: 1 << 20}, make([]byte, 4096))
		c.lane(wire.Header{Kind: wire.Call, Call: 2, Total: 1}, []byte{1})
		payload(within(t, s.sink.messages))
		for range 20 {
			c.lane(wire.Header{Kind: wire.Call, Call: 3, Total: 4096}, make([]byte, 4096))
		}
		s.Close(nil)
		within(t, s.sink.ended)
		within(t, s.Done())
		for len(s.sink.messages) > 0 {
			payload(<-s.sink.messages)
		}
		c.link.Close(nil)
		<-c.link.Done()
	}
}

// TestPingFlood: pings are answered, a flood of them is not, and whoever does
// not stop is closed, he alone (case 69).
func TestPingFlood(t *testing.T) {
	l := serve(t, overTCP())
	good, err := dial(t, overTCP(), l.addr)
	require.NoError(t, err)
	within(t, l.sessions)
	c := rawDial(t, overTCP().Carrier, l.addr)
	c.hello(0)
	s := within(t, l.sessions)
	c.send(wire.Ping, []byte("12345"))
	pong := c.next()
	require.Equal(t, wire.Pong, pong.h.Kind)
	require.Equal(t, "12345", string(pong.payload))
	for {
		slot, err := c.link.Reserve(t.Context(), transport.Control, 0)
		if err == nil {
			if err = c.link.Commit(slot, &wire.Header{Kind: wire.Ping}); err != nil {
				c.link.Discard(slot)
			}
		}
		if err != nil {
			break
		}
		c.link.Flush()
		for len(c.frames) > 0 {
			<-c.frames
		}
	}
	require.ErrorAs(t, within(t, s.sink.ended), new(*wire.ParseError))
	require.NoError(t, good.Err())
	good.Close(nil)
	within(t, good.Done())
}

// TestConfig: a Config out of range is refused by name.
func TestConfig(t *testing.T) {
	for field, change := range map[string]func(*transport.Config){
		"MaxMessage":       func(c *transport.Config) { c.MaxMessage = 100 },
		"MaxCalls":         func(c *transport.Config) { c.MaxCalls = -1 },
		"MaxHandshakes":    func(c *transport.Config) { c.MaxHandshakes = -1 },
		"HandshakeTimeout": func(c *transport.Config) { c.HandshakeTimeout = 1 },
		"Keepalive":        func(c *transport.Config) { c.Keepalive = 1 },
		"ResumeWithin":     func(c *transport.Config) { c.ResumeWithin = -1 },
		"Standby":          func(c *transport.Config) { c.Standby = 5 },
		"MaxSessions":      func(c *transport.Config) { c.MaxSessions = -1 },
		"FastLink":         func(c *transport.Config) { c.FastLink = transport.RequireFastLink },
	} {
		n := overTCP()
		change(&n.Config)
		_, err := n.Listen("127.0.0.1:0")
		var ce *transport.ConfigError
		require.ErrorAs(t, err, &ce)
		require.Equal(t, field, ce.Field)
		_, err = n.Dial(t.Context(), "127.0.0.1:1", nil)
		require.ErrorAs(t, err, &ce)
	}
	_, err := (&transport.Network{}).Listen("")
	require.ErrorContains(t, err, "Carrier")
}
