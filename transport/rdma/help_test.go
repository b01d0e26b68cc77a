package rdma

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// A caller who waits alone takes in what arrives while the poller rests.
func TestHelp(t *testing.T) {
	checkLeaks(t)
	for _, mode := range []PollMode{Adaptive, Busy} {
		synctest.Test(t, func(t *testing.T) {
			_, ends := simEnds(t, simverbs.Config{})
			cfg := small
			cfg.Poll, cfg.Spin = mode, time.Second
			_, links := pair(t, ends, cfg)
			var done transport.Signal
			s := newSink()
			s.onFrame = func(*wire.Header, []byte) error { done.Set(); return nil }
			links[0].Start(s)
			links[1].Start(newSink())
			p := links[0].ep.poller
			var waiting atomic.Int32
			waiting.Store(1)
			for i := range 100 {
				p.helpers.Add(1) // the goroutine rests, and virtual time stands still
				start := time.Now()
				require.NoError(t, send(links[1], i, 8))
				for !done.IsSet() && links[0].Help(&done, &waiting) {
				}
				done.Wait()
				require.Less(t, time.Since(start), restTime)
				p.helpers.Add(-1)
			}
		})
	}
}

// Callers come and go, alone and together, while others are served by the
// goroutine: each is answered, and none of the others waits for long.
func TestHelpersComeAndGo(t *testing.T) {
	checkLeaks(t)
	for _, mode := range []PollMode{EventsOnly, Adaptive, Busy} {
		_, ends := simEnds(t, simverbs.Config{})
		cfg := small
		cfg.Poll = mode
		_, links := pair(t, ends, cfg)
		const callers = 3
		var done [callers]transport.Signal
		s := newSink()
		s.onFrame = func(h *wire.Header, _ []byte) error { done[h.Call%callers].Set(); return nil }
		links[0].Start(s)
		echo := newSink()
		echo.onFrame = func(h *wire.Header, _ []byte) error { return send(links[1], int(h.Call), 8) }
		links[1].Start(echo)
		var waiting atomic.Int32
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range 300 {
					if err := send(links[0], c+i*callers, 8); err != nil {
						t.Error(err)
						return
					}
					if waiting.Add(1) == 1 {
						for !done[c].IsSet() && transport.Helper(links[0]).Help(&done[c], &waiting) && waiting.Load() == 1 {
						}
					}
					done[c].Wait()
					waiting.Add(-1)
				}
			})
		}
		within(t, mode.String(), wg.Wait)
	}
}

// A caller who still helps when the device is closed leaves the CQ alone: it is gone.
func TestHelpAfterStop(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, small)
	p := links[0].ep.poller
	for _, l := range links {
		l.Close(nil)
		<-l.Done()
	}
	closeAll(t, fabrics)
	late := &link{ep: &endpoint{poller: p}} // one that has not seen its end yet
	var waiting atomic.Int32
	late.Help(new(transport.Signal), &waiting)
	require.Nil(t, p.dev.fault.Load(), "it took the CQ for a broken one")
}
