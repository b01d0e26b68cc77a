package transport_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// slowConn takes in 64 KiB at once, and lets so many bytes a second through.
type slowConn struct {
	net.Conn
	rate  int
	ahead chan []byte
	done  chan struct{}
	once  sync.Once
	went  atomic.Uint64
}

func newSlowConn(c net.Conn, rate int) *slowConn {
	s := &slowConn{Conn: c, rate: rate, ahead: make(chan []byte, 64), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *slowConn) run() {
	for {
		select {
		case b := <-s.ahead:
			time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(s.rate))
			if _, err := s.Conn.Write(b); err != nil {
				s.Close()
				return
			}
			s.went.Add(uint64(len(b)))
		case <-s.done:
			return
		}
	}
}

func (s *slowConn) Write(b []byte) (n int, err error) {
	for n < len(b) {
		piece := append([]byte(nil), b[n:min(n+1024, len(b))]...)
		select {
		case s.ahead <- piece:
			n += len(piece)
		case <-s.done:
			return n, net.ErrClosed
		}
	}
	return n, nil
}

func (s *slowConn) Close() error {
	s.once.Do(func() { close(s.done) })
	return s.Conn.Close()
}

// slowLink knows what went, as a socket does.
type slowLink struct {
	transport.Link
	conn *slowConn
}

func (l slowLink) Acked() uint64 { return l.conn.went.Load() }

type slowCarrier struct {
	*memory
	rate int
}

func (c slowCarrier) Dial(ctx context.Context, _ string) (transport.Link, error) {
	conn, err := c.pipe(ctx)
	if err != nil {
		return nil, err
	}
	s := newSlowConn(conn, c.rate)
	link, err := tcp.Client(s)
	return slowLink{link, s}, err
}

// TestSlowLink: a link of which a frame takes longer than a peer should be silent lives,
// and carries what it can.
func TestSlowLink(t *testing.T) {
	for _, keepalive := range []time.Duration{15 * time.Second, time.Second} {
		for _, rate := range []int{5 << 10, 20 << 10, 100 << 10, 400 << 10} {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				cn, sn := networkOf(m, nil), networkOf(m, nil)
				cn.Carrier = slowCarrier{m, rate}
				cn.Config.Keepalive, sn.Config.Keepalive = keepalive, keepalive
				c, s := connectOver(t, cn, sn)
				const size = 2 << 20
				start := time.Now()
				go func() {
					_ = c.Lane().Send(t.Context(), wire.Header{Kind: wire.Call, Call: 1}, make([]byte, size))
				}()
				for got := false; !got; {
					select {
					case m := <-s.sink.messages:
						payload(m)
						got = true
					case <-time.After(time.Second):
						require.Zero(t, c.Transport().Resumes, "keepalive %v, %d B/s, after %v", keepalive, rate, time.Since(start))
					}
				}
				require.LessOrEqual(t, time.Since(start), size*time.Second/time.Duration(rate)+2*time.Second)
			})
		}
	}
}

// TestSlowLinkStops: one that carries nothing any more does not, however slow it was.
func TestSlowLinkStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cn, sn := networkOf(m, nil), networkOf(m, nil)
		cn.Carrier = slowCarrier{m, 20 << 10}
		c, s := connectOver(t, cn, sn)
		go func() { _ = c.Lane().Send(t.Context(), wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 1<<20)) }()
		time.Sleep(time.Minute)
		require.Zero(t, c.Transport().Resumes)
		m.stallClients()
		time.Sleep(15 * time.Second) // two looks in silence, and the wait for a sign of life
		require.Equal(t, 1, c.Transport().Resumes)
		payload(within(t, s.sink.messages))
	})
}
