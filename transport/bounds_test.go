package transport

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// fullLink is a link without room: its peer reads nothing.
type fullLink struct {
	*nullLink
	recv    Receiver
	waiting atomic.Int32
}

func (l *fullLink) Start(r Receiver) { l.recv = r }

func (l *fullLink) Close(err error) {
	l.once.Do(func() {
		close(l.done)
		go l.recv.Closed(err)
	})
}

func (l *fullLink) Reserve(ctx context.Context, _ Class, _ int) (Slot, error) {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	select {
	case <-ctx.Done():
		return Slot{}, ctx.Err()
	case <-l.done:
		return Slot{}, errors.New("dead")
	}
}

// fullSession is a server's session over a full link.
func fullSession(t *testing.T) (*Session, *path, *fullLink) {
	n := &Network{Carrier: noCarrier{}, Fabric: nullFabric{}}
	cfg, err := n.config()
	require.NoError(t, err)
	link := &fullLink{nullLink: newNullLink(TCP)}
	m := wire.HelloMsg{MinVersion: 1, MaxVersion: 1, MaxMessage: 1 << 20, MaxCalls: 8, Features: wire.FeatureFastLink}
	s, p := newSession(n, cfg, false, &m, link, reach{})
	link.Start(p)
	s.open(func(*Session) Sink { return nullSink{ended: make(chan error, 1)} })
	s.begin()
	return s, p, link
}

// TestPeerThatSaysAndDoesNotRead: whatever a peer says, what waits to be said to
// it stays bounded, and so do the goroutines that wait (case 77).
func TestPeerThatSaysAndDoesNotRead(t *testing.T) {
	for name, frame := range map[string]func(n uint32) (wire.Header, []byte){
		"PING": func(uint32) (wire.Header, []byte) { return wire.Header{Kind: wire.Ping}, []byte("?") },
		"MOVE": func(n uint32) (wire.Header, []byte) {
			return wire.Header{Kind: wire.Move, Lane: LaneID, Arg: n + 2}, nil
		},
		"CANCEL": func(n uint32) (wire.Header, []byte) {
			return wire.Header{Kind: wire.Cancel, Lane: LaneID, Seq: n, Call: 1}, nil
		},
		"QP_OFFER": func(n uint32) (wire.Header, []byte) {
			qp := wire.QP{Epoch: uint64(n) + 1, QPN: 1, Depth: 64, Slot: 4096, MTU: 1}
			return wire.Header{Kind: wire.QPOffer}, qp.Append(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p, link := fullSession(t)
				require.NoError(t, p.Frame(&wire.Header{Kind: wire.Move, Lane: LaneID, Arg: 1}))
				for n := range uint32(100_000) {
					h, payload := frame(n)
					h.Length = uint32(len(payload))
					if len(payload) > 0 {
						b, err := p.Land(&h)
						require.NoError(t, err)
						copy(b, payload)
					}
					if err := p.Frame(&h); err != nil {
						require.ErrorAs(t, err, new(*wire.ParseError))
						break
					}
					s.mu.Lock()
					require.LessOrEqual(t, len(p.queue), maxQueue)
					s.mu.Unlock()
					if n%1000 == 0 {
						synctest.Wait()
						require.LessOrEqual(t, link.waiting.Load(), int32(2), "goroutines")
					}
				}
				if name == "CANCEL" { // calls, of which ACKs are due
					require.NoError(t, s.Err())
					s.mu.Lock()
					require.NotNil(t, s.control)
					s.mu.Unlock()
				}
				s.Close(nil)
				<-s.Done()
			})
		})
	}
}

// TestWrongFrameEndsSession: a frame of the lane that is wrong would come again
// on another link, whether it has a payload or not.
func TestWrongFrameEndsSession(t *testing.T) {
	for name, h := range map[string]wire.Header{
		"seq":              {Kind: wire.Cancel, Lane: LaneID, Seq: 5},
		"seq with payload": {Kind: wire.Call, Lane: LaneID, Seq: 5, Length: 10, Total: 10},
		"ack":              {Kind: wire.Ack, Lane: LaneID, Ack: 5},
		"lane":             {Kind: wire.Ack, Lane: 2},
		"flood of MOVE":    {Kind: wire.Move, Lane: LaneID, Arg: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := fullSession(t)
			p := newPath(s, newNullLink(RDMA), 7)
			s.mu.Lock()
			s.fast = append(s.fast, p)
			s.mu.Unlock()
			require.NoError(t, p.Frame(&wire.Header{Kind: wire.Move, Lane: LaneID, Arg: 1}))
			var err error
			for range floodLimit + 2*floodBurst {
				if h.Length > 0 {
					_, err = p.Land(&h)
				} else {
					err = p.Frame(&h)
				}
				if err != nil {
					break
				}
			}
			require.ErrorAs(t, err, new(*wire.ParseError))
			if strings.HasPrefix(name, "seq") { // the fast link has lost frames, which are kept
				require.NoError(t, s.Err())
				s.Close(nil)
			} else {
				require.ErrorIs(t, s.Err(), err)
			}
			<-s.Done()
		})
	}
}

// watchedFabric counts its watchers.
type watchedFabric struct {
	nullFabric
	watchers atomic.Int32
}

func (f *watchedFabric) Watch(func()) (stop func()) {
	f.watchers.Add(1)
	return func() { f.watchers.Add(-1) }
}

// TestEndBeforeBegin: a session that ends while it is made watches nothing.
func TestEndBeforeBegin(t *testing.T) {
	f := &watchedFabric{}
	for range 100 {
		n := &Network{Carrier: noCarrier{}, Fabric: f}
		cfg, err := n.config()
		require.NoError(t, err)
		m := wire.HelloMsg{MinVersion: 1, MaxVersion: 1, MaxMessage: 1 << 20, MaxCalls: 8, Features: wire.FeatureFastLink}
		s, _ := newSession(n, cfg, true, &m, newNullLink(TCP), reach{})
		s.open(func(s *Session) Sink { s.Close(nil); return nullSink{ended: make(chan error, 1)} })
		time.Sleep(time.Duration(100) * time.Microsecond)
		s.begin()
		<-s.Done()
	}
	require.Zero(t, f.watchers.Load())
}

// TestMoveBeforeReady: a lane does not go to a link before this side has said READY.
func TestMoveBeforeReady(t *testing.T) {
	s, _, _ := fullSession(t)
	p := newPath(s, newNullLink(RDMA), 7)
	require.NoError(t, p.Frame(&wire.Header{Kind: wire.Move, Lane: LaneID, Arg: 1}))
	require.Equal(t, 1, s.Transport().Stale)
	require.Zero(t, s.Transport().Kind)
	s.Close(nil)
	<-s.Done()
}

// TestMoveNarrows: what MOVE acknowledges may be what a fast link waited for.
func TestMoveNarrows(t *testing.T) {
	s, _, _ := fullSession(t)
	p := newPath(s, newNullLink(RDMA), 7)
	s.mu.Lock()
	s.fast = append(s.fast, p)
	s.mu.Unlock()
	require.NoError(t, p.Frame(&wire.Header{Kind: wire.Move, Lane: LaneID, Arg: 1}))
	require.NoError(t, s.Lane().Send(t.Context(), wire.Header{Kind: wire.Reply}, make([]byte, 100)))
	s.limit(50)
	narrow := make(chan struct{}, 1)
	s.mu.Lock()
	s.try = &attempt{narrow: narrow}
	s.mu.Unlock()
	require.False(t, s.lane.out.fits(50))
	require.NoError(t, p.Frame(&wire.Header{Kind: wire.Move, Lane: LaneID, Arg: 2, Ack: 1}))
	require.True(t, s.lane.out.fits(50))
	require.Len(t, narrow, 1)
	s.Close(nil)
	<-s.Done()
}

// TestOutage: however long a network is out that lets nobody connect, up to the
// time that sessions live without, they live.
func TestOutage(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorldOf(t, Config{MaxMessage: 1 << 20, MaxCalls: 8, FastLink: NeverFastLink, ResumeWithin: 4 * time.Second})
			for range 2 { // and each anew
				w.step(opRefuse, 1)
				for _, e := range w.n.live() {
					e.die(errDead)
				}
				time.Sleep(3300*time.Millisecond + time.Duration(seed)*5*time.Millisecond)
				w.step(opRefuse, 0)
				for range 7 {
					time.Sleep(100 * time.Millisecond)
					w.deliverAll()
				}
			}
			w.finish()
		})
	}
}

// TestDeathIsTold: a side whose fast link dies says so on the control link, for
// the other may not see it: nothing more comes over that link.
func TestDeathIsTold(t *testing.T) {
	for dies := 2; dies <= 3; dies++ { // the server's end, the client's
		synctest.Test(t, func(t *testing.T) {
			w := newWorldOf(t, Config{MaxMessage: 1 << 20, MaxCalls: 8, Standby: -1, ReturnAfter: time.Hour})
			require.Equal(t, RDMA, w.sides[0].s.Transport().Kind)
			ends := w.n.made()
			control, fast := ends[:2], ends[2:4]
			fast[dies-2].die(errDead)
			synctest.Wait()
			for range 3 {
				for _, e := range control {
					for e.deliver(false) {
						synctest.Wait()
					}
				}
			}
			require.True(t, fast[0].isDead() && fast[1].isDead())
			require.Equal(t, TCP, w.sides[0].s.Transport().Kind)
			require.Equal(t, TCP, w.sides[1].s.Transport().Kind)
			w.finish()
		})
	}
}

// TestControlReplaced: a client whose connection has died makes another while the
// server takes the old one for alive; that one is closed.
func TestControlReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOf(t, Config{MaxMessage: 1 << 20, MaxCalls: 8, FastLink: NeverFastLink})
		control := w.n.made()[:2]
		control[0].die(errDead)
		time.Sleep(100 * time.Millisecond)
		for _, e := range w.n.made()[2:] {
			e.deliver(false)
		}
		synctest.Wait()
		require.True(t, control[1].isDead())
		require.Equal(t, 1, w.sides[1].s.Transport().Resumes)
		w.finish()
	})
}

// TestFallenSaidAgain: the peer learns of a link that ended here although the
// control link that said so was lost, or there was none.
func TestFallenSaidAgain(t *testing.T) {
	s, _, _ := fullSession(t)
	for epoch := range uint64(maxFallen + 2) {
		p := newPath(s, newNullLink(RDMA), 1+epoch)
		s.mu.Lock()
		s.fast = append(s.fast, p)
		s.mu.Unlock()
		p.Closed(errors.New("gone"))
		p.link.Close(nil)
	}
	control := &heardLink{nullLink: newNullLink(TCP)}
	_, err := s.attach(control, nil)
	require.NoError(t, err)
	require.Equal(t, maxFallen, control.abandoned)
	s.Close(nil)
	<-s.Done()
}

// heardLink counts QP_ABANDON.
type heardLink struct {
	*nullLink
	abandoned int
}

func (l *heardLink) Commit(s Slot, h *wire.Header) error {
	if h.Kind == wire.QPAbandon {
		l.abandoned++
	}
	return l.nullLink.Commit(s, h)
}

// askedLink counts the PINGs of its session.
type askedLink struct {
	*nullLink
	width int
	pings atomic.Int32
}

func (l *askedLink) MaxPayload() int { return l.width }

func (l *askedLink) Commit(_ Slot, h *wire.Header) error {
	if h.Kind == wire.Ping {
		l.pings.Add(1)
	}
	return nil
}

// TestAsksAgain: a fast link that waits for wide frames has the peer asked for an
// ACK again where the answer to the first PING did not cover all of them, as long
// as it lives, and no longer than it waits.
func TestAsksAgain(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, _, _ := fullSession(t)
			carries, waits := &askedLink{nullLink: newNullLink(RDMA), width: 50}, &askedLink{nullLink: newNullLink(RDMA), width: 30}
			p, fast := newPath(s, carries, 7), newPath(s, waits, 8)
			s.mu.Lock()
			s.fast = append(s.fast, p)
			s.mu.Unlock()
			require.NoError(t, p.Frame(&wire.Header{Kind: wire.Move, Lane: LaneID, Arg: 1}))
			for range 2 {
				require.NoError(t, s.Lane().Send(t.Context(), wire.Header{Kind: wire.Reply}, make([]byte, 40)))
			}
			s.limit(30)
			over := make(chan struct{})
			go func() { defer close(over); s.askAcks(fast) }()
			time.Sleep(time.Second)
			require.NoError(t, p.acked(&wire.Header{Kind: wire.Ack, Lane: LaneID, Ack: 1}))
			time.Sleep(time.Second)
			require.InDelta(t, 20, carries.pings.Load(), 2)
			if dies {
				close(fast.gone)
			} else {
				require.NoError(t, p.acked(&wire.Header{Kind: wire.Ack, Lane: LaneID, Ack: 2}))
			}
			<-over
			time.Sleep(time.Second)
			require.InDelta(t, 20, carries.pings.Load(), 2)
			s.Close(nil)
			<-s.Done()
		})
	}
}
