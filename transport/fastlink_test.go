package transport_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

var errTest = errors.New("broken by the test")

// TestFastLink sets up sessions with each thing that can go wrong on either
// side. Dial never fails because of it (case 63), both sides agree on the link
// and know the reason, calls work, and nothing is left behind: a bubble ends
// only when all its goroutines have.
func TestFastLink(t *testing.T) {
	const late = "the fast link was not ready within 5s"
	for _, c := range []struct {
		name           string
		client, server *fabric // nil: no fabric
		wantClient     string  // reason; "" is a fast link
		wantServer     string
	}{
		{"works", &fabric{}, &fabric{}, "", ""},
		{"slowly", &fabric{slow: time.Second}, &fabric{slow: time.Second}, "", ""},
		{"no fabric here", nil, &fabric{}, "no fabric is configured", "peer: no fabric is configured"},
		{"no fabric there", &fabric{}, nil, "peer: no fabric is configured", "no fabric is configured"},
		{"none at all", nil, nil, "no fabric is configured", "no fabric is configured"},
		{"client has no device", &fabric{usable: errTest}, &fabric{}, "broken by the test", "peer: broken by the test"},
		{"server has no device", &fabric{}, &fabric{usable: errTest}, "peer: broken by the test", "broken by the test"},
		{"client cannot prepare", &fabric{prepare: errTest}, &fabric{}, "broken by the test", "peer: broken by the test"},
		{"server cannot prepare", &fabric{}, &fabric{prepare: errTest}, "peer: broken by the test", "broken by the test"},
		{"client cannot connect", &fabric{connect: errTest}, &fabric{}, "broken by the test", "peer: broken by the test"},
		{"server cannot connect", &fabric{}, &fabric{connect: errTest}, "peer: broken by the test", "broken by the test"},
		{"client's READY is lost", &fabric{lost: true}, &fabric{}, late, "*"},
		{"server's READY is lost", &fabric{}, &fabric{lost: true}, late, "*"},
		{"client connects for ever", &fabric{slow: 20 * time.Second}, &fabric{}, late, "peer: " + late},
		{"server connects for ever", &fabric{}, &fabric{slow: 20 * time.Second}, late, "peer: " + late},
		{"client's link dies", &fabric{dies: errTest}, &fabric{}, "*", "*"},
		{"server's link dies", &fabric{}, &fabric{dies: errTest}, "*", "*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				cn, sn := networkOf(m, c.client), networkOf(m, c.server)
				cn.Config.RetryAfter = time.Hour
				cp, sp := connectOver(t, cn, sn)
				exchange(t, cp, sp)
				synctest.Wait() // for attempts that have been told to end
				for _, side := range []struct {
					p      peer
					reason string
				}{{cp, c.wantClient}, {sp, c.wantServer}} {
					info := side.p.Transport()
					want := transport.TCP
					if c.wantClient == "" {
						want = transport.RDMA
					}
					require.Equal(t, want, info.Kind)
					require.Equal(t, want, info.Link.Kind)
					if side.reason == "*" { // the link's end or QP_ABANDON, whichever comes first
						require.Contains(t, info.Reason, "fast link")
					} else {
						require.Equal(t, side.reason, info.Reason)
					}
					require.False(t, info.Since.IsZero())
				}
				time.Sleep(time.Minute) // whatever still ran has ended
				for _, f := range []*fabric{c.client, c.server} {
					if f != nil && c.wantClient != "" {
						require.Zero(t, f.live.Load(), "left over from the attempt")
					}
				}
				exchange(t, cp, sp)
				end(t, cp, sp)
				synctest.Wait()
				for _, f := range []*fabric{c.client, c.server} {
					if f != nil {
						require.Zero(t, f.live.Load(), "left over from the session")
					}
				}
			})
		})
	}
}

func networkOf(m *memory, f *fabric) *transport.Network {
	n := &transport.Network{Carrier: m}
	if f != nil {
		f.m = m
		n.Fabric = f
	}
	return n
}

// connectOver makes a session that ends with the test, in its bubble.
func connectOver(t *testing.T, cn, sn *transport.Network) (c, s peer) {
	t.Helper()
	l := serve(t, sn)
	c, err := dial(t, cn, l.addr)
	require.NoError(t, err)
	s = within(t, l.sessions)
	t.Cleanup(func() { end(t, c, s) })
	return c, s
}

func exchange(t *testing.T, c, s peer) {
	t.Helper()
	for _, n := range []int{10, 200 << 10} {
		send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, n))
		require.Len(t, payload(within(t, s.sink.messages)), n)
		send(t, s, wire.Header{Kind: wire.Reply, Call: 1}, make([]byte, n))
		require.Len(t, payload(within(t, c.sink.messages)), n)
	}
}

// TestFastLinkPolicy: never asks for none; require makes a session without one
// fail, on the side that requires it and with the reason.
func TestFastLinkPolicy(t *testing.T) {
	const never, require_ = transport.NeverFastLink, transport.RequireFastLink
	for _, c := range []struct {
		name           string
		client, server transport.FastLinkPolicy
		fc, fs         *fabric
		want           string // of the error of Dial, or of the reason
		fails          bool
	}{
		{"client never", never, 0, &fabric{}, &fabric{}, "fast links are switched off", false},
		{"server never", 0, never, &fabric{}, &fabric{}, "peer: fast links are switched off", false},
		{"both require", require_, require_, &fabric{}, &fabric{}, "", false},
		{"client requires, server has none", require_, 0, &fabric{}, nil, "no fast link: peer: no fabric is configured", true},
		{"server requires, client has none", 0, require_, nil, &fabric{}, "peer: no fast link: peer: no fabric is configured", true},
		{"client requires, server fails", require_, 0, &fabric{}, &fabric{prepare: errTest}, "no fast link: peer: broken by the test", true},
		{"client requires and fails", require_, 0, &fabric{connect: errTest}, &fabric{}, "no fast link: broken by the test", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				cn, sn := networkOf(m, c.fc), networkOf(m, c.fs)
				cn.Config.FastLink, sn.Config.FastLink = c.client, c.server
				l := serve(t, sn)
				p, err := dial(t, cn, l.addr)
				if c.fails {
					require.ErrorContains(t, err, c.want)
					require.ErrorAs(t, err, new(*transport.SetupError))
					if c.client == require_ {
						require.ErrorAs(t, err, new(*transport.NoFastLinkError))
					}
					return
				}
				require.NoError(t, err)
				require.Equal(t, c.want, p.Transport().Reason)
				end(t, p, within(t, l.sessions))
			})
		})
	}
}

// TestFastLinkDies: calls that run on a fast link outlive it, and those that
// come later; a session that requires a fast link ends with it.
func TestFastLinkDies(t *testing.T) {
	for _, policy := range []transport.FastLinkPolicy{transport.PreferFastLink, transport.RequireFastLink} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			fc, fs := &fabric{}, &fabric{}
			cn := networkOf(m, fc)
			cn.Config.FastLink = policy
			cn.Config.Standby, cn.Config.ReturnAfter = -1, 10*time.Second
			c, s := connectOver(t, cn, networkOf(m, fs))
			exchange(t, c, s)
			fs.kill(errTest)
			if policy == transport.RequireFastLink {
				var se *transport.SessionError
				require.ErrorAs(t, within(t, c.sink.ended), &se)
				// The other side sees its link die as well, and says so:
				// whichever is noticed first is the reason.
				require.Contains(t, []string{"fast link", "closed by the peer"}, se.What)
				within(t, s.sink.ended)
				within(t, c.Done())
				within(t, s.Done())
				_, err := c.Lane().Reserve(t.Context(), transport.Small, 0)
				require.Error(t, err)
				return
			}
			exchange(t, c, s)
			synctest.Wait() // each side has noticed
			for _, p := range []peer{c, s} {
				info := p.Transport()
				require.Equal(t, transport.TCP, info.Kind)
				require.Contains(t, info.Reason, "fast link: ")
				require.Equal(t, 1, info.Moves)
			}
			synctest.Wait()
			require.Zero(t, fc.live.Load()+fs.live.Load())
			time.Sleep(7 * time.Second)
			require.Equal(t, transport.TCP, c.Transport().Kind, "back before its time")
			time.Sleep(6 * time.Second)
			for _, p := range []peer{c, s} {
				info := p.Transport()
				require.Equal(t, transport.RDMA, info.Kind)
				require.Empty(t, info.Reason)
				require.Equal(t, 2, info.Moves)
			}
			exchange(t, c, s)
		})
	}
}

// TestLease: a server takes an attempt back whose client says nothing more,
// and the session stays of use (case 82).
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f := &fabric{}
		l := serve(t, networkOf(m, f))
		c := rawDial(t, m, l.addr)
		c.hello(wire.FeatureFastLink)
		s := within(t, l.sessions)
		require.Zero(t, f.prepared.Load(), "nothing is prepared before there is an offer")
		c.send(wire.QPOffer, qp(5))
		require.Equal(t, wire.QPAnswer, c.next().h.Kind)
		require.Equal(t, int32(1), f.live.Load())
		start := time.Now()
		require.Equal(t, wire.QPAbandon, c.next().h.Kind)
		require.Equal(t, 15*time.Second, time.Since(start))
		synctest.Wait()
		require.Zero(t, f.live.Load())
		require.Equal(t, "the fast link was not ready within 15s", s.Transport().Reason)
		c.lane(wire.Header{Kind: wire.Call, Call: 3}, nil)
		require.Equal(t, uint64(3), within(t, s.sink.messages).Call)
		c.link.Close(nil)
		within(t, s.Done())
	})
}

// TestLateAnswer: answers of another attempt change nothing (case 3).
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f := &fabric{}
		l, err := m.Listen("memory")
		require.NoError(t, err)
		defer l.Close()
		dialed := make(chan peer, 1)
		go func() {
			p, err := dial(t, networkOf(m, f), "memory")
			require.NoError(t, err)
			dialed <- p
		}()
		srv := rawAccept(t, l)
		srv.hello(wire.FeatureFastLink)
		require.Equal(t, wire.QPOffer, srv.next().h.Kind)
		srv.send(wire.QPAnswer, qp(1234))
		srv.send(wire.QPAbandon, abandon(1234, "stale"))
		time.Sleep(time.Second)
		require.Empty(t, dialed)
		require.Equal(t, wire.QPAbandon, srv.next().h.Kind) // after 5 s
		c := within(t, dialed)
		require.Equal(t, 2, c.Transport().Stale)
		require.Equal(t, 1, c.Transport().Fallbacks)
		synctest.Wait()
		require.Zero(t, f.live.Load())
		c.Close(nil)
		within(t, c.Done())
	})
}

// TestDeviceComesLater: a session begun while one side has no device uses it
// once it is there.
func TestDeviceComesLater(t *testing.T) {
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				fc, fs := &fabric{}, &fabric{}
				late := map[string]*fabric{"client": fc, "server": fs}[side]
				late.down.Store(true)
				cn := networkOf(m, fc)
				c, s := connectOver(t, cn, networkOf(m, fs))
				exchange(t, c, s)
				require.Equal(t, transport.TCP, c.Transport().Kind)
				require.Contains(t, c.Transport().Reason, "broken by the test")
				time.Sleep(5 * time.Minute)
				require.Equal(t, transport.TCP, c.Transport().Kind)
				late.down.Store(false)
				time.Sleep(2 * time.Minute)
				require.Equal(t, transport.RDMA, c.Transport().Kind, c.Transport().Reason)
				exchange(t, c, s)
			})
		})
	}
}

// TestOfferSupersedes: a server whose attempt still waits for a client that has
// given it up takes the client's next offer.
func TestOfferSupersedes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f := &fabric{}
		l := serve(t, networkOf(m, f))
		c := rawDial(t, m, l.addr)
		c.hello(wire.FeatureFastLink)
		s := within(t, l.sessions)
		for epoch := uint64(5); epoch < 8; epoch++ {
			c.send(wire.QPOffer, qp(epoch))
			answer := c.next()
			require.Equal(t, wire.QPAnswer, answer.h.Kind)
			var got wire.QP
			require.NoError(t, got.Parse(answer.payload))
			require.Equal(t, epoch, got.Epoch)
			synctest.Wait()
			require.Equal(t, int32(1), f.live.Load(), "the earlier link is left over")
		}
		c.link.Close(nil)
		s.Close(nil)
		within(t, s.Done())
		synctest.Wait()
		require.Zero(t, f.live.Load())
	})
}

// TestSilentPeerMayNotKnow: a side that gave up its last link for silence waits
// as long again for the other to notice.
func TestSilentPeerMayNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cn, sn := networkOf(m, nil), networkOf(m, nil)
		sn.Config.Keepalive = 10 * time.Second
		c, s := connectOver(t, cn, sn)
		exchange(t, c, s)
		m.refuses.Store(true)
		m.stall()
		time.Sleep(18 * time.Second)
		require.NoError(t, s.Err(), "the server gave up after ResumeWithin alone")
		time.Sleep(10 * time.Second)
		require.ErrorAs(t, s.Err(), new(*transport.SilentError))
	})
}
