package transport_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestStandby: the lane moves to a fast link that stands by as soon as the one
// dies that carries it, and another takes its place.
func TestStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		fc := &fabric{}
		c, s := connectOver(t, networkOf(m, fc), networkOf(m, &fabric{}))
		require.Equal(t, 1, c.Transport().Ready)
		time.Sleep(time.Second)
		require.Equal(t, 2, c.Transport().Ready)
		require.Equal(t, 2, s.Transport().Ready)
		first := c.Transport().Link.Epoch
		exchange(t, c, s)
		fc.first().Close(errTest)
		exchange(t, c, s)
		info := c.Transport()
		require.Equal(t, transport.RDMA, info.Kind)
		require.NotEqual(t, first, info.Link.Epoch)
		require.Equal(t, 1, info.Moves)
		require.Zero(t, info.Failover, "the move took virtual time")
		time.Sleep(10 * time.Second)
		require.Equal(t, 2, c.Transport().Ready)
		require.Equal(t, 2, s.Transport().Ready)
		require.Equal(t, info.Link.Epoch, c.Transport().Link.Epoch, "the lane moves only where it must")
	})
}

// TestControlCut: the loss of the control link does not hurt calls on a fast
// link, and the client makes a new one.
func TestControlCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
		exchange(t, c, s)
		epoch := c.Transport().Link.Epoch
		m.refuses.Store(true)
		m.cut()
		for range 60 {
			exchange(t, c, s)
			time.Sleep(time.Second)
		}
		require.Zero(t, c.Transport().Resumes)
		m.refuses.Store(false)
		time.Sleep(6 * time.Second)
		for _, p := range []peer{c, s} {
			require.Equal(t, 1, p.Transport().Resumes)
			require.Equal(t, epoch, p.Transport().Link.Epoch, "the lane has no reason to move")
			require.Zero(t, p.Transport().Moves)
		}
		require.NoError(t, s.GoAway())
		within(t, c.sink.goAway)
		m.cut()
		within(t, c.sink.goAway) // again: it may have been lost with the link
	})
}

// TestResumeOverTCP: a session without fast links outlives its connection, and
// what was under way when that was cut arrives once.
func TestResumeOverTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, nil), networkOf(m, nil))
		exchange(t, c, s)
		for round := range uint64(20) {
			for i := range uint64(50) {
				send(t, c, wire.Header{Kind: wire.Call, Call: round<<8 | i}, make([]byte, i*97))
				send(t, s, wire.Header{Kind: wire.Reply, Call: round<<8 | i}, make([]byte, i*97))
				if i == round*2 {
					m.cut()
				}
			}
			for i := range uint64(50) {
				for _, p := range []peer{c, s} {
					got := within(t, p.sink.messages)
					require.Equal(t, round<<8|i, got.Call)
					require.Len(t, payload(got), int(i*97))
				}
			}
		}
		require.Equal(t, 20, c.Transport().Resumes)
		require.Zero(t, len(c.sink.messages)+len(s.sink.messages))
	})
}

// TestUnknownSession: a server that does not know a session any more says so,
// and the client's session ends at once (case 67).
func TestUnknownSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		l := serve(t, networkOf(m, nil))
		c, err := dial(t, networkOf(m, nil), "memory")
		require.NoError(t, err)
		s := within(t, l.sessions)
		serve(t, networkOf(m, nil)) // the same address from now on
		start := time.Now()
		m.cut()
		err = within(t, c.sink.ended)
		require.ErrorContains(t, err, "no such session")
		require.ErrorAs(t, err, new(*transport.PeerError))
		require.Less(t, time.Since(start), time.Second)
		require.Error(t, within(t, s.sink.ended))
		require.InDelta(t, 4, time.Since(start).Seconds(), 0.1, "nobody came back")
		within(t, c.Done())
		within(t, s.Done())
	})
}

// TestKeepalive: a link that carries nothing any more is noticed within the
// keepalive time on both sides, idle or busy, and an idle one that works lives
// (cases 65, 69).
func TestKeepalive(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			cn, sn := networkOf(m, nil), networkOf(m, nil)
			cn.Config.Keepalive, sn.Config.Keepalive = 3*time.Second, 10*time.Second
			c, s := connectOver(t, cn, sn)
			time.Sleep(time.Hour)
			require.Zero(t, c.Transport().Resumes, "an idle link was closed")
			m.refuses.Store(true)
			m.stall()
			if busy {
				for i := range uint64(100) {
					send(t, c, wire.Header{Kind: wire.Call, Call: i}, make([]byte, 1000))
				}
			}
			start := time.Now()
			require.ErrorAs(t, within(t, c.sink.ended), new(*transport.SilentError))
			require.Less(t, time.Since(start), 6*time.Second)
			within(t, s.sink.ended)
			require.Less(t, time.Since(start), 19*time.Second)
			within(t, c.Done())
			within(t, s.Done())
		})
	}
}

// TestIdleSessionsAskOnce: one PING and its answer in two ticks are all that an
// idle session says, for they show both sides that the other lives.
func TestIdleSessionsAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, nil), networkOf(m, nil))
		time.Sleep(time.Minute)
		said := func() (frames uint64) {
			return c.Transport().Link.Stats.FramesSent + s.Transport().Link.Stats.FramesSent
		}
		before := said()
		time.Sleep(time.Hour)
		const most = 2 * (3600/10 + 1) // keepalive is 15 s, a tick 5 s
		require.LessOrEqual(t, said()-before, uint64(most))
		require.Zero(t, c.Transport().Resumes)
	})
}

// TestEndedSessionsAreForgotten: keepalive holds none of them.
func TestEndedSessionsAreForgotten(t *testing.T) {
	m := newMemory()
	clients, servers := networkOf(m, nil), networkOf(m, nil)
	c, s := connectOver(t, clients, servers)
	require.Equal(t, []int{1, 1}, []int{transport.Watched(clients), transport.Watched(servers)})
	c.Close(nil)
	<-c.Done()
	<-s.Done()
	require.Equal(t, []int{0, 0}, []int{transport.Watched(clients), transport.Watched(servers)})
}

// TestProbe: a fast link whose peer is gone is given up soon after the control
// link is lost.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
		exchange(t, c, s)
		m.refuses.Store(true)
		m.stall()
		m.cut()
		start := time.Now()
		require.Error(t, within(t, c.sink.ended))
		require.Error(t, within(t, s.sink.ended))
		require.LessOrEqual(t, time.Since(start), 7*time.Second)
	})
}

// TestMigrate: an operator moves the lane, which stays where it was sent.
func TestMigrate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
		for _, to := range []transport.Kind{transport.TCP, transport.RDMA, transport.RDMA, transport.TCP} {
			require.NoError(t, c.Migrate(t.Context(), to))
			require.Equal(t, to, c.Transport().Kind)
			require.Equal(t, to == transport.TCP, c.Transport().Reason == "TCP was asked for")
			exchange(t, c, s)
			require.Equal(t, to, s.Transport().Kind)
			time.Sleep(time.Hour)
			require.Equal(t, to, c.Transport().Kind)
		}
		var me *transport.MoveError
		require.ErrorAs(t, s.Migrate(t.Context(), transport.TCP), &me)

		plain, _ := connectOver(t, networkOf(m, nil), networkOf(m, nil))
		require.ErrorAs(t, plain.Migrate(t.Context(), transport.RDMA), &me)
		require.ErrorContains(t, me, "no fabric is configured")

		broken := &fabric{connect: errTest}
		failing, _ := connectOver(t, networkOf(m, broken), networkOf(m, &fabric{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, failing.Migrate(ctx, transport.RDMA), context.DeadlineExceeded)
	})
}

// TestReconnect: all links are made anew, and nothing is lost.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
		before := c.Transport().Link.Epoch
		for range 3 {
			for i := range uint64(10) {
				send(t, c, wire.Header{Kind: wire.Call, Call: i}, make([]byte, 100))
			}
			c.Reconnect()
			for i := range uint64(10) {
				m := within(t, s.sink.messages)
				payload(m)
				require.Equal(t, i, m.Call)
			}
			time.Sleep(10 * time.Second)
		}
		require.Equal(t, 3, c.Transport().Resumes)
		require.Equal(t, transport.RDMA, c.Transport().Kind)
		require.NotEqual(t, before, c.Transport().Link.Epoch)
	})
}

// TestFramesFitEveryLink: what was cut for TCP is acknowledged before the lane
// goes to a fast link with smaller frames.
func TestFramesFitEveryLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		fc, fs := &fabric{narrow: 1000}, &fabric{narrow: 1000}
		cn := networkOf(m, fc)
		cn.Config.Standby, cn.Config.ReturnAfter = -1, 5*time.Millisecond
		c, s := connectOver(t, cn, networkOf(m, fs))
		require.Equal(t, 1000, c.Lane().MaxPayload())
		for i := range 40 {
			exchange(t, c, s)
			if i%4 == 0 {
				[]*fabric{fc, fs}[i/4%2].kill(errTest)
			}
			exchange(t, c, s)
			time.Sleep(time.Duration(i) * time.Millisecond)
		}
		require.NoError(t, c.Err())
		require.NoError(t, s.Err())
		require.Greater(t, c.Transport().Moves, 10)
	})
}

// TestMaxSessions: a server that has as many as it may says so.
func TestMaxSessions(t *testing.T) {
	n := overTCP()
	n.Config.MaxSessions = 2
	l := serve(t, n)
	for range 2 {
		c, err := dial(t, overTCP(), l.addr)
		require.NoError(t, err)
		defer func() { c.Close(nil); within(t, c.Done()) }()
		within(t, l.sessions)
	}
	_, err := dial(t, overTCP(), l.addr)
	require.ErrorContains(t, err, "2 sessions")
	require.True(t, errors.As(err, new(*transport.PeerError)))
}

// TestReturnWithWideFrames: the lane comes back to a fast link with smaller
// frames at once, though the last frames over TCP were large and nothing else
// is said that would acknowledge them.
func TestReturnWithWideFrames(t *testing.T) {
	for _, last := range []string{"the client's", "the server's"} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			fc := &fabric{narrow: 1000}
			cn := networkOf(m, fc)
			cn.Config.Standby, cn.Config.ReturnAfter = -1, 100*time.Millisecond
			c, s := connectOver(t, cn, networkOf(m, &fabric{narrow: 1000}))
			fc.first().Close(errTest)
			synctest.Wait()
			require.Equal(t, transport.TCP, c.Transport().Kind)
			send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 20_000))
			payload(within(t, s.sink.messages))
			if last == "the server's" {
				send(t, s, wire.Header{Kind: wire.Reply, Call: 1}, make([]byte, 20_000))
				payload(within(t, c.sink.messages))
			}
			time.Sleep(time.Second)
			require.Equal(t, transport.RDMA, c.Transport().Kind, "last %s; %s", last, c.Transport().Reason)
		})
	}
}

// TestLastFrameLost: a link that lives and loses the last frame, behind which
// nothing comes, is given up; the frame comes on another.
func TestLastFrameLost(t *testing.T) {
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				fabrics := map[string]*fabric{"client": {}, "server": {}}
				var ate atomic.Bool
				fabrics[side].eats = func(_ *fastLink, h *wire.Header) bool {
					return (h.Kind == wire.Call || h.Kind == wire.Reply) && h.Call == 7 && !ate.Swap(true)
				}
				c, s := connectOver(t, networkOf(m, fabrics["client"]), networkOf(m, fabrics["server"]))
				exchange(t, c, s)
				start := time.Now()
				send(t, c, wire.Header{Kind: wire.Call, Call: 7}, nil)
				within(t, s.sink.messages)
				send(t, s, wire.Header{Kind: wire.Reply, Call: 7}, nil)
				within(t, c.sink.messages)
				require.True(t, ate.Load())
				require.Less(t, time.Since(start), 26*time.Second)
				time.Sleep(time.Minute)
				moves := c.Transport().Moves
				time.Sleep(time.Hour)
				require.Equal(t, moves, c.Transport().Moves, "an idle link was given up")
			})
		})
	}
}

// TestKeepalivesDiffer: a side that looks often does not give up a healthy idle
// link to one that looks, and so acknowledges by itself, seldom (case 69).
func TestKeepalivesDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cn, sn := networkOf(m, nil), networkOf(m, nil)
		cn.Config.Keepalive, sn.Config.Keepalive = time.Second, time.Hour
		c, s := connectOver(t, cn, sn)
		send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 10))
		payload(within(t, s.sink.messages))
		time.Sleep(10 * time.Minute)
		require.Zero(t, c.Transport().Resumes)
		require.Zero(t, c.Transport().Retention.Frames)
	})
}
