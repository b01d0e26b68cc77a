package tcp

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// halting gives some bytes at a time, and now and then none by a deadline.
type halting struct {
	*bytes.Reader
	t *rapid.T
}

func (h halting) Read(b []byte) (int, error) {
	if rapid.IntRange(0, 3).Draw(h.t, "halt") == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	most := rapid.SampledFrom([]int{1, 7, wire.HeaderSize, 5000, readSize}).Draw(h.t, "most")
	return h.Reader.Read(b[:min(most, len(b))])
}

// TestParserHalts: wherever a deadline stops the parser, nothing is lost.
func TestParserHalts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 60, 3000, 9000, 20 << 10}), 1, 12).Draw(rt, "sizes")
		b, payload := stream(sizes...)
		s := &sinkhole{}
		p := parser{src: halting{bytes.NewReader(b), rt}, recv: s, owner: s, count: new(counters), buf: make([]byte, readSize)}
		err := p.run()
		require.ErrorContains(rt, err, "EOF")
		require.Len(rt, s.frames, len(sizes))
		require.True(rt, bytes.Equal(payload, s.payload))
		require.Zero(rt, s.corked)
	})
}

// user is a receiver that wakes who waits for frames, and knows who delivers them.
type user struct {
	sinkhole
	link    *link
	done    transport.Signal
	waiting atomic.Int32
	inside  atomic.Bool
	helped  int // frames delivered by Help
	onFrame func() error
	closed  chan error
}

func (u *user) Take(h *wire.Header, payload []byte) error { return linktest.Take(u, h, payload) }

func (u *user) Frame(h *wire.Header) error {
	if u.inside.Load() {
		u.helped++
	}
	if u.onFrame != nil {
		if err := u.onFrame(); err != nil {
			return err
		}
	}
	u.done.Set()
	return nil
}

func (u *user) Closed(err error) { u.closed <- err }

func (u *user) help() bool {
	u.inside.Store(true)
	defer u.inside.Store(false)
	return u.link.Help(&u.done, &u.waiting)
}

// rests says whether the reader of its link does.
func (u *user) rests() bool {
	u.link.mu.Lock()
	defer u.link.mu.Unlock()
	return u.link.in.resting
}

// wait waits as a lone caller does.
func (u *user) wait() {
	u.waiting.Add(1)
	u.help()
	u.done.Wait()
	u.waiting.Add(-1)
}

// lingering is a connection whose peer does not see that one side has closed.
type lingering struct{ net.Conn }

func (lingering) CloseWrite() error { return nil }

// users are two ends in a bubble, over a stream in memory.
func users(t *testing.T) (u, peer *user) {
	ca, cb := net.Pipe()
	a, err := Client(lingering{ca})
	require.NoError(t, err)
	b, err := Server(cb)
	require.NoError(t, err)
	ends := [2]*user{}
	for i, l := range []transport.Link{a, b} {
		ends[i] = &user{link: l.(*link), closed: make(chan error, 2)}
		l.Start(ends[i])
	}
	t.Cleanup(func() {
		a.Close(nil)
		b.Close(nil)
		<-a.Done()
		<-b.Done()
	})
	ping(t, a) // names the epoch
	ends[1].done.Wait()
	synctest.Wait() // both readers have begun
	return ends[0], ends[1]
}

// answers has u wait for n frames of the peer, one at a time.
func answers(t *testing.T, u, peer *user, n int) {
	for range n {
		go func() {
			time.Sleep(100 * time.Microsecond)
			ping(t, peer.link)
		}()
		u.wait()
		synctest.Wait()
	}
}

// settle makes the reader of u rest: every frame of the peer finds a helper.
func settle(t *testing.T, u, peer *user) {
	answers(t, u, peer, 2*loneAnswers)
	require.True(t, u.rests())
}

func inBubble(t *testing.T, run func(t *testing.T, u, peer *user)) {
	synctest.Test(t, func(t *testing.T) {
		u, peer := users(t)
		run(t, u, peer)
	})
}

// Who waits alone takes in himself what he waits for.
func TestHelpDelivers(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		settle(t, u, peer)
		before := u.helped
		for range 100 {
			go func() {
				time.Sleep(300 * time.Microsecond)
				ping(t, peer.link)
			}()
			u.wait()
		}
		require.Equal(t, before+100, u.helped)
	})
}

// What nobody waits for is taken in soon, be the helper gone for good.
func TestUnsolicitedWhileResting(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		for range 20 {
			settle(t, u, peer)
		}
		start := time.Now()
		ping(t, peer.link)
		u.done.Wait()
		require.LessOrEqual(t, time.Since(start), 2*maxRest)
	})
}

// Others who wait are served as soon as the helper has left.
func TestHelperLeavesOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		settle(t, u, peer)
		u.waiting.Add(1) // another
		go ping(t, peer.link)
		u.wait()
		start := time.Now()
		ping(t, peer.link)
		u.done.Wait()
		require.Zero(t, time.Since(start), "the reader has gone on")
	})
}

// A helper in vain gives up in time, and the next ones do not try.
func TestHelpInVain(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		settle(t, u, peer)
		start := time.Now()
		require.False(t, u.help())
		require.LessOrEqual(t, time.Since(start), 2*maxRest)
		require.Positive(t, time.Since(start))
		synctest.Wait()
		start = time.Now()
		for range minDecline {
			require.False(t, u.help())
		}
		require.Zero(t, u.link.in.offers.Load(), "they were turned away")
		ping(t, peer.link)
		u.done.Wait()
		require.Zero(t, time.Since(start), "the reader has gone on")
	})
}

// An entry that the link does not bring is seen in time, and with Rouse at once;
// the reader goes on then.
func TestHelpedFromElsewhere(t *testing.T) {
	for _, rouse := range []bool{false, true} {
		inBubble(t, func(t *testing.T, u, peer *user) {
			settle(t, u, peer)
			const after = time.Millisecond
			go func() {
				time.Sleep(after)
				u.done.Set()
				if rouse {
					u.link.Rouse()
				}
			}()
			start := time.Now()
			require.True(t, u.help())
			if rouse {
				require.Equal(t, after, time.Since(start))
			} else {
				require.LessOrEqual(t, time.Since(start), 2*maxRest)
			}
			u.done.Wait()
			start = time.Now()
			synctest.Wait()
			ping(t, peer.link)
			u.done.Wait()
			require.Zero(t, time.Since(start), "the reader has gone on")
		})
	}
}

// A reader that is roused when it is about to rest does not.
func TestRousedBeforeRest(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		answers(t, u, peer, loneAnswers-1)
		require.False(t, u.rests())
		u.link.Rouse()
		answers(t, u, peer, 1)
		require.False(t, u.rests())
		answers(t, u, peer, loneAnswers)
		require.True(t, u.rests(), "once")
	})
}

// A close ends a Help at once, wherever it comes from, and Closed comes once.
func TestCloseDuringHelp(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, u, peer *user){
		"regular": func(_ *testing.T, u, _ *user) { u.link.Close(nil) },
		"error":   func(_ *testing.T, u, _ *user) { u.link.Close(os.ErrInvalid) },
		"peer":    func(_ *testing.T, _, peer *user) { peer.link.Close(nil) },
		"write":   func(_ *testing.T, u, _ *user) { u.link.writeFailed(os.ErrInvalid) },
		"receiver": func(t *testing.T, u, peer *user) {
			u.onFrame = func() error { u.link.Close(nil); u.link.Close(nil); return nil }
			ping(t, peer.link)
		},
		"fault": func(t *testing.T, u, peer *user) {
			u.onFrame = func() error { return os.ErrInvalid }
			ping(t, peer.link)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, u, peer *user) {
				settle(t, u, peer)
				go func() {
					time.Sleep(time.Millisecond)
					end(t, u, peer)
				}()
				start := time.Now()
				u.help()
				require.Equal(t, time.Millisecond, time.Since(start))
				err := <-u.closed
				if name == "error" || name == "fault" || name == "peer" {
					require.Equal(t, time.Millisecond, time.Since(start))
				}
				require.LessOrEqual(t, time.Since(start), 2*linger)
				switch name {
				case "regular", "receiver":
					require.NoError(t, err)
				case "peer":
					require.ErrorIs(t, err, io.EOF)
				default:
					require.ErrorIs(t, err, os.ErrInvalid)
				}
				<-u.link.Done()
				require.Empty(t, u.closed)
				if u.done.IsSet() {
					u.done.Wait()
				}
				require.False(t, u.help())
			})
		})
	}
}

// A close ends a rest at once.
func TestCloseWhileResting(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		settle(t, u, peer)
		start := time.Now()
		u.link.Close(os.ErrInvalid)
		<-u.closed
		require.Zero(t, time.Since(start))
	})
	inBubble(t, func(t *testing.T, u, peer *user) {
		settle(t, u, peer)
		start := time.Now()
		u.link.writeFailed(os.ErrInvalid)
		synctest.Wait()
		require.False(t, u.rests())
		<-u.closed
		require.Equal(t, linger, time.Since(start), "the peer has that long to say why")
	})
}

// Nobody helps a link that is ending: how long it reads is the reader's to say.
func TestNoHelpAtTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		settle(t, u, peer)
		u.link.in.turn <- struct{}{}
		u.link.writeFailed(os.ErrInvalid)
		ok := u.link.admit()
		require.False(t, ok)
		<-u.link.in.turn
	})
}

// What was committed while many frames were taken in leaves when the helper does.
func TestHelperUncorks(t *testing.T) {
	inBubble(t, func(t *testing.T, u, peer *user) {
		settle(t, u, peer)
		var b [2 * wire.HeaderSize]byte
		h := wire.Header{Kind: wire.Ping, Epoch: u.link.Info().Epoch}
		h.Put(b[:])
		h.Put(b[wire.HeaderSize:])
		corked := false
		u.onFrame = func() error { corked = corked || u.link.state.corked; return nil }
		go peer.link.conn.Write(b[:])
		u.wait()
		require.True(t, corked)
		require.False(t, u.link.state.corked)
	})
}

// dull is a connection that takes no deadlines.
type dull struct{ net.Conn }

func (dull) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// Nobody helps where nobody can be called back.
func TestHelpWithoutDeadlines(t *testing.T) {
	ca, cb := net.Pipe()
	a, err := Client(dull{ca})
	require.NoError(t, err)
	b, err := Server(cb)
	require.NoError(t, err)
	u := &user{link: a.(*link), closed: make(chan error, 2)}
	v := &user{link: b.(*link), closed: make(chan error, 2)}
	require.False(t, u.help(), "not started")
	a.Start(u)
	b.Start(v)
	ping(t, a)
	v.done.Wait()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { ping(t, b) })
		u.wait()
	}
	wg.Wait()
	require.Zero(t, u.helped)
	a.Close(os.ErrInvalid)
	b.Close(os.ErrInvalid)
	<-a.Done()
	<-b.Done()
}
