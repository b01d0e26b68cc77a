package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestKeepalivesDifferInUse: a side that looks often at its links does not give up one
// that carries a little, although the peer, which looks seldom, need not have said yet
// what it has taken in.
func TestKeepalivesDifferInUse(t *testing.T) {
	for _, often := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		for _, pause := range []time.Duration{300, 500, 700, 900} {
			for _, client := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					m := newMemory()
					cn, sn := networkOf(m, nil), networkOf(m, nil)
					if client {
						cn.Config.Keepalive = often
					} else {
						sn.Config.Keepalive = often
					}
					c, s := connectOver(t, cn, sn)
					for i := range uint64(100) {
						send(t, c, wire.Header{Kind: wire.Call, Call: i}, make([]byte, 10))
						payload(within(t, s.sink.messages))
						if i > 6 { // at first no reply says what has come
							send(t, s, wire.Header{Kind: wire.Reply, Call: i}, make([]byte, 10))
							payload(within(t, c.sink.messages))
						}
						time.Sleep(pause * time.Millisecond)
					}
					require.Zero(t, c.Transport().Resumes, "keepalive %v, a call each %d ms", often, pause)
				})
			}
		}
	}
}

// TestLostAckIsSaidAgain: an ACK that was said on a link that then died is said again
// where the frames come again.
func TestLostAckIsSaidAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		l, err := m.Listen("memory")
		require.NoError(t, err)
		defer l.Close()
		dialed := make(chan peer, 1)
		cn := networkOf(m, &fabric{m: m})
		cn.Config.Standby = -1
		go func() {
			p, err := dial(t, cn, "memory")
			require.NoError(t, err)
			dialed <- p
		}()
		control := rawAccept(t, l)
		control.hello(wire.FeatureFastLink)
		var offer wire.QP
		require.NoError(t, offer.Parse(control.next().payload))
		link, err := (&half{&fabric{m: m}}).Connect(t.Context(), offer.Epoch, offer)
		require.NoError(t, err)
		control.send(wire.QPAnswer, qp(offer.Epoch))
		fast := newRaw(t, link)
		require.Equal(t, wire.Ready, fast.next().h.Kind)
		fast.send(wire.Ready, nil)
		require.Equal(t, wire.Move, fast.next().h.Kind)
		fast.move(1, 0)
		c := within(t, dialed)
		synctest.Wait()
		go func() { _ = c.Migrate(t.Context(), transport.TCP) }()
		require.Equal(t, wire.Move, control.next().h.Kind)
		const frames = 64
		reply := func(r *raw, i int) { r.lane(wire.Header{Kind: wire.Reply, Call: uint64(i), Flags: wire.End}, nil) }
		for i := range frames {
			reply(fast, i)
			payload(within(t, c.sink.messages))
		}
		ack := fast.next()
		require.Equal(t, wire.Ack, ack.h.Kind)
		require.EqualValues(t, frames, ack.h.Ack)
		fast.link.Close(errTest) // and the server has not heard that
		control.move(2, 0)
		for i := range frames {
			reply(control, i)
		}
		for control.next().h.Ack != frames {
		}
		require.EqualValues(t, frames, c.Transport().Retention.Duplicates)
		c.Close(nil)
		control.link.Close(nil)
		within(t, c.Done())
	})
}

// TestCloseBesideDeadControl: the peer hears of the end over the link that works, although
// nobody knows yet that the other carries nothing.
func TestCloseBesideDeadControl(t *testing.T) {
	for _, client := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
			exchange(t, c, s)
			time.Sleep(time.Second)
			m.stallControls()
			exchange(t, c, s)
			closer, other := c, s
			if !client {
				closer, other = s, c
			}
			start := time.Now()
			closer.Close(nil)
			within(t, other.sink.ended)
			require.LessOrEqual(t, time.Since(start), time.Second)
			m.stalled(false)
			m.dark.Store(false)
			within(t, c.Done())
			within(t, s.Done())
		})
	}
}
