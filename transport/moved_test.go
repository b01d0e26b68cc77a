package transport_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// fallback makes a session that is on TCP, for its first attempt at a fast link
// has failed. The next begins after a second.
func fallback(t *testing.T, fc, fs *fabric, keepalive time.Duration) (m *memory, c, s peer) {
	t.Helper()
	m = newMemory()
	cn, sn := networkOf(m, fc), networkOf(m, fs)
	for _, n := range []*transport.Network{cn, sn} {
		n.Config.Keepalive = keepalive // nothing is acknowledged for a third of it
		n.Config.Standby, n.Config.ReturnAfter = -1, time.Hour
	}
	cn.Config.RetryAfter = time.Second
	fc.connect = errTest
	c, s = connectOver(t, cn, sn)
	fc.connect = nil
	require.Equal(t, transport.TCP, c.Transport().Kind)
	return m, c, s
}

func arrives(t *testing.T, from, to peer, call uint64) {
	t.Helper()
	send(t, from, wire.Header{Kind: wire.Call, Call: call}, make([]byte, 10))
	got := within(t, to.sink.messages)
	payload(got)
	require.Equal(t, call, got.Call)
}

// TestMoveAnswerLost: the server has gone to the link of a MOVE when that dies,
// and its answer with it; the client, which has never left TCP, moves back.
func TestMoveAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fc, fs := &fabric{}, &fabric{}
		var ate atomic.Bool
		fs.eats = func(l *fastLink, h *wire.Header) bool {
			if h.Kind != wire.Move || ate.Swap(true) {
				return false
			}
			l.Close(errTest)
			return true
		}
		_, c, s := fallback(t, fc, fs, time.Hour)
		arrives(t, c, s, 1) // not acknowledged: the client waits for the answer
		time.Sleep(1500 * time.Millisecond)
		require.True(t, ate.Load())
		require.Equal(t, transport.TCP, c.Transport().Kind)
		arrives(t, c, s, 2)
		arrives(t, s, c, 3)
	})
}

// TestMoveUnanswered: the answer is lost on a link that lives, which happens where
// one takes an old packet for a new one.
func TestMoveUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fc, fs := &fabric{}, &fabric{}
		var ate atomic.Bool
		fs.eats = func(l *fastLink, h *wire.Header) bool { return h.Kind == wire.Move && !ate.Swap(true) }
		_, c, s := fallback(t, fc, fs, 9*time.Second)
		time.Sleep(900 * time.Millisecond)
		send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 10))
		payload(within(t, s.sink.messages))
		time.Sleep(700 * time.Millisecond)
		require.True(t, ate.Load())
		arrives(t, c, s, 2)
		arrives(t, s, c, 3)
	})
}

// TestMigrateBack: the client calls a move off that the server may have seen.
func TestMigrateBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fc, fs := &fabric{}, &fabric{}
		fs.eats = func(l *fastLink, h *wire.Header) bool { return h.Kind == wire.Move }
		_, c, s := fallback(t, fc, fs, time.Hour)
		arrives(t, c, s, 1)
		time.Sleep(1500 * time.Millisecond)
		for call := range uint64(10) { // these the server does not take in: they came by TCP
			send(t, c, wire.Header{Kind: wire.Call, Call: 10 + call}, nil)
		}
		synctest.Wait()
		require.NoError(t, c.Migrate(t.Context(), transport.TCP))
		for call := range uint64(10) {
			send(t, c, wire.Header{Kind: wire.Call, Call: 20 + call}, nil)
		}
		for call := range uint64(20) {
			require.Equal(t, 10+call, within(t, s.sink.messages).Call)
		}
		arrives(t, s, c, 1)
		require.NoError(t, c.Err())
	})
}

// TestWideSlot: a slot that was reserved on TCP cannot be committed when the lane
// has gone to a link with smaller frames, nor reserved there. It is given back.
func TestWideSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, s := fallback(t, &fabric{narrow: 1000}, &fabric{narrow: 1000}, time.Hour)
		slots := map[peer]transport.Slot{}
		time.Sleep(10 * time.Millisecond) // until the server knows that the attempt has failed
		for _, p := range []peer{c, s} {
			slot, err := p.Lane().Reserve(t.Context(), transport.Small, 60<<10)
			require.NoError(t, err)
			slots[p] = slot
		}
		time.Sleep(2 * time.Second)
		require.Equal(t, transport.RDMA, c.Transport().Kind)
		for p, slot := range slots {
			require.Equal(t, transport.ErrTooWide, p.Lane().Commit(slot, &wire.Header{Kind: wire.Call, Call: 9}))
			_, err := p.Lane().Reserve(t.Context(), transport.Small, 60<<10)
			require.Equal(t, transport.ErrTooWide, err)
		}
		arrives(t, c, s, 1)
		arrives(t, s, c, 2)
		require.Zero(t, c.Transport().Retention.Bytes&^0xff)
	})
}

// TestControlDiesBeforeFit: a fast link is ready, but waits for what was cut for
// TCP to be acknowledged, when TCP dies: the lane goes on on a new connection.
func TestControlDiesBeforeFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var armed atomic.Pointer[memory]
		fs := &fabric{narrow: 1000, onPrepare: func() {
			if m := armed.Load(); m != nil {
				m.stallClients()
			}
		}}
		m, c, s := fallback(t, &fabric{narrow: 1000}, fs, time.Hour)
		send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 60<<10))
		payload(within(t, s.sink.messages)) // and not acknowledged
		armed.Store(m)                      // nor will it be, though asked for
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, transport.TCP, c.Transport().Kind)
		m.cut()
		arrives(t, c, s, 2)
		arrives(t, s, c, 3)
		time.Sleep(time.Second)
		require.Equal(t, transport.RDMA, c.Transport().Kind)
	})
}

// TestMigrateToTCPThatGoes: an operator's wish to be on TCP does not stop calls
// where there is only a fast link.
func TestMigrateToTCPThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
		require.NoError(t, c.Migrate(t.Context(), transport.TCP))
		exchange(t, c, s)
		m.refuses.Store(true)
		m.cut()
		exchange(t, c, s)
		require.Equal(t, transport.RDMA, c.Transport().Kind)
		m.refuses.Store(false)
		time.Sleep(10 * time.Second)
		require.Equal(t, transport.TCP, c.Transport().Kind)
		exchange(t, c, s)

		var me *transport.MoveError
		require.ErrorAs(t, c.Migrate(t.Context(), transport.Kind(9)), &me)
		require.ErrorContains(t, me, "no links of that kind")
	})
}

// TestFailover counts moves from links that died, and nothing else.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cn := networkOf(m, &fabric{slow: time.Second})
		cn.Config.Standby = -1
		c, s := connectOver(t, cn, networkOf(m, &fabric{}))
		require.Zero(t, c.Transport().Failover)
		require.Zero(t, s.Transport().Failover)
	})
}

// TestRefusedForNow: a server that refuses a connection may still know the
// session; after three in a row it is taken to be gone.
func TestRefusedForNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, nil), networkOf(m, nil))
		srv := m.listener
		other, err := m.Listen("memory")
		require.NoError(t, err)
		refused := make(chan struct{})
		go func() {
			for range 2 {
				r := rawAccept(t, other)
				r.send(wire.Refuse, wire.AppendFault(nil, "too many connections", nil))
				r.link.Close(nil)
			}
			m.mu.Lock()
			m.listener = srv
			m.mu.Unlock()
			close(refused)
		}()
		m.cut()
		<-refused
		arrives(t, c, s, 1)
		require.Equal(t, 1, c.Transport().Resumes)
	})
}

// TestSilence: a link over which nothing comes is closed when the keepalive
// time is over, and at most a third of it later.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cn, sn := networkOf(m, nil), networkOf(m, nil)
		cn.Config.Keepalive, sn.Config.Keepalive = 3*time.Second, time.Hour
		c, _ := connectOver(t, cn, sn)
		time.Sleep(30 * time.Second)
		c.Lane() // idle, and alive
		require.Zero(t, c.Transport().Resumes)
		stalled := time.Now() // something came up to two ticks before: PONG to the last PING
		m.refuses.Store(true)
		m.stall()
		within(t, c.sink.ended)
		require.GreaterOrEqual(t, time.Since(stalled), time.Second)
		require.LessOrEqual(t, time.Since(stalled), 4*time.Second+100*time.Millisecond)
	})
}

// TestSlowResume: the client gives a new connection up over which the server
// has gone on, but not answered in time: the session lives.
func TestSlowResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cn, sn := networkOf(m, nil), networkOf(m, nil)
		cn.Config.ResumeWithin, sn.Config.ResumeWithin = time.Minute, time.Minute
		c, s := connectOver(t, cn, sn)
		m.mute.Store(true)
		m.cut()
		time.Sleep(4 * time.Second)
		require.Equal(t, 1, s.Transport().Resumes)
		require.Zero(t, c.Transport().Resumes)
		m.mute.Store(false)
		arrives(t, c, s, 1)
		arrives(t, s, c, 2)
		require.Equal(t, 1, c.Transport().Resumes)
	})
}

// TestFastLinkUnderWideTraffic: a fast link with small frames comes up although
// there is never a moment without a large frame that is not acknowledged.
func TestFastLinkUnderWideTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, s := fallback(t, &fabric{narrow: 1000}, &fabric{narrow: 1000}, time.Hour)
		wide := func(p peer, call uint64) { send(t, p, wire.Header{Kind: wire.Call, Call: call}, make([]byte, 60<<10)) }
		wide(c, 0)
		wide(s, 0)
		for call := range uint64(400) {
			wide(c, call+1)
			wide(s, call+1)
			for _, p := range []peer{c, s} {
				got := within(t, p.sink.messages)
				payload(got)
				require.Equal(t, call, got.Call)
			}
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, transport.RDMA, c.Transport().Kind)
		payload(<-c.sink.messages)
		payload(<-s.sink.messages)
	})
}

// TestFlappingControl: control connections that are made and die at once are not made
// again in a storm (case 8).
func TestFlappingControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, nil), networkOf(m, nil))
		for range 30 * 1000 {
			m.cut()
			time.Sleep(time.Millisecond)
		}
		require.Less(t, c.Transport().Resumes, 300)
		arrives(t, c, s, 1)
	})
}

// TestStreakEnds: attempts that failed before a link that held do not count for
// the next outage, however many there are in the life of a session.
func TestStreakEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		fc, fs := &fabric{}, &fabric{}
		cn := networkOf(m, fc)
		cn.Config.Standby, cn.Config.ReturnAfter, cn.Config.RetryAfter = -1, 50*time.Millisecond, 50*time.Millisecond
		c, _ := connectOver(t, cn, networkOf(m, fs))
		for outage := range 10 {
			before := c.Transport()
			require.Equal(t, transport.RDMA, before.Kind, "after %d outages", outage)
			fs.down.Store(true)
			fc.kill(errTest)
			time.Sleep(500 * time.Millisecond)
			require.GreaterOrEqual(t, c.Transport().Fallbacks, before.Fallbacks+2, "in outage %d", outage)
			fs.down.Store(false)
			time.Sleep(2 * time.Second)
		}
	})
}

// TestReconnectNow: an operator need not wait for the pause between attempts at a
// control connection.
func TestReconnectNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
		exchange(t, c, s)
		m.refuses.Store(true)
		m.cut()
		time.Sleep(10 * time.Minute) // pauses are as long as they become
		m.refuses.Store(false)
		c.Reconnect()
		time.Sleep(5 * time.Millisecond)
		require.Equal(t, 1, c.Transport().Resumes)
	})
}
