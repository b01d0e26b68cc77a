package rdma

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Case 33: a completion enters between the poll that found nothing and the
// arming, and so without an event. It costs nothing: the poller looks again.
func TestCompletionBeforeArming(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		var hold atomic.Bool
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
			OnCompletion: func(simverbs.Completion, *rand.Rand) simverbs.Fate { return simverbs.Fate{HoldToArm: hold.Load()} },
		}})
		cfg := small
		cfg.Poll = EventsOnly
		_, links := pair(t, ends, cfg)
		s := newSink()
		s.onFrame = func(h *wire.Header, _ []byte) error {
			if h.Call > 0 {
				return nil
			}
			hold.Store(true) // the poller is awake, and its CQ not armed
			return send(links[0], 1, 8)
		}
		links[0].Start(newSink())
		links[1].Start(s)
		synctest.Wait()
		start := time.Now()
		require.NoError(t, send(links[0], 0, 8))
		s.await(t, 2)
		require.Less(t, time.Since(start), safetyTick)
	})
}

// Case 35: no event ever comes. Nothing is delayed by more than the safety tick
// and what the wait for it had lasted before, which is one tick here.
func TestLostEvents(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{LoseEvent: 1}})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics, links := pair(t, ends, cfg)
		sinks := [2]*sink{newSink(), newSink()}
		for i, l := range links {
			l.Start(sinks[i])
		}
		synctest.Wait()
		for i := range 10 {
			start := time.Now()
			require.NoError(t, send(links[i%2], i, 8))
			sinks[1-i%2].await(t, i/2+1)
			require.LessOrEqual(t, time.Since(start), 2*safetyTick+time.Millisecond) // await looks each 0.2 ms
		}
		require.NotZero(t, fabrics[0].Stats().Ticks)
	})
}

// The same after a long pause, in which pollers have come to sleep for long: who
// sends is woken, and notices completions and answers as above. The peer, which
// nothing wakes, takes a second at most, and frames that wait for credit keep
// it from sleeping that long.
func TestLostEventsAfterPause(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{LoseEvent: 1}})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics, links := pair(t, ends, cfg)
		sinks := [2]*sink{newSink(), newSink()}
		links[0].Start(sinks[0])
		r := links[0].send
		time.Sleep(time.Minute)
		for i := range 4 {
			start := time.Now()
			require.NoError(t, send(links[0], i, 8))
			for r.posted.Load() != r.completed.Load() {
				time.Sleep(time.Millisecond)
			}
			require.LessOrEqual(t, time.Since(start), safetyTick+time.Millisecond)
			time.Sleep(time.Minute)
		}
		require.NoError(t, send(links[0], 4, 8)) // waits for credit
		time.Sleep(time.Minute)
		ticks := fabrics[0].Stats().Ticks
		time.Sleep(time.Minute)
		require.InDelta(t, time.Minute/safetyTick, fabrics[0].Stats().Ticks-ticks, 10)

		links[1].Start(sinks[1])
		sinks[1].await(t, 5)
		time.Sleep(time.Minute)
		start := time.Now()
		require.NoError(t, send(links[0], 5, 8))
		sinks[1].await(t, 6)
		require.LessOrEqual(t, time.Since(start), idleTick+time.Millisecond)
		closeAll(t, fabrics)
	})
}

// What wakes a process that is idle does so at whole seconds: pollers that sleep for
// long, and the look at the devices.
func TestIdleWakesTogether(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(345 * time.Millisecond) // it begins at a whole one
		sim, ends := simEnds(t, simverbs.Config{})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics, links := pair(t, ends, cfg)
		s := newSink()
		links[0].Start(s)
		time.Sleep(time.Minute)
		sleepTo := func(part time.Duration) { time.Sleep(untilWhole(time.Second) + part) }
		for range 10 {
			sleepTo(time.Millisecond)
			ticks := fabrics[0].Stats().Ticks
			time.Sleep(time.Second - 2*time.Millisecond)
			require.Equal(t, ticks, fabrics[0].Stats().Ticks)
			time.Sleep(2 * time.Millisecond)
			require.Greater(t, fabrics[0].Stats().Ticks, ticks)
		}
		sleepTo(300 * time.Millisecond)
		sim.RemoveDevice("a", "sim0")
		sleepTo(-time.Millisecond)
		require.NoError(t, links[0].dead())
		time.Sleep(2 * time.Millisecond)
		require.Error(t, links[0].dead())
		links[1].Close(nil)
		closeAll(t, fabrics)
	})
}

// A channel that cannot be waited on does not make its poller spin.
func TestWaitFails(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{})
		cfg := small
		cfg.Poll = EventsOnly
		ends[0].provider = brokenChannels{ends[0].provider}
		f := ends[0].fabric(t, cfg)
		require.NoError(t, f.Usable(ends[0].addr))
		time.Sleep(time.Minute)
		require.LessOrEqual(t, f.Stats().Naps, uint64(time.Minute/safetyTick)+10)
		require.NoError(t, f.Close())
	})
}

// brokenChannels is a provider with completion channels that cannot be waited on.
type brokenChannels struct{ verbs.Provider }

func (p brokenChannels) Open(name string) (verbs.Device, error) {
	d, err := p.Provider.Open(name)
	return brokenDevice{d}, err
}

type brokenDevice struct{ verbs.Device }

func (d brokenDevice) CreateCompChannel() (verbs.CompChannel, error) {
	ch, err := d.Device.CreateCompChannel()
	return brokenChannel{ch}, err
}

func (d brokenDevice) CreateCQ(depth int, ch verbs.CompChannel) (verbs.CQ, error) {
	return d.Device.CreateCQ(depth, ch.(brokenChannel).CompChannel)
}

type brokenChannel struct{ verbs.CompChannel }

func (brokenChannel) Wait(time.Duration) (verbs.WakeReason, error) {
	return verbs.WakeTimeout, &verbs.Error{Op: "ibv_get_cq_event", Object: "channel", Errno: syscall.EIO}
}

// The way between two QPs is cut while one of them is out of credit and has
// nothing outstanding. It sees nothing of it, for ever; the other fails with the
// CREDIT it owes, and would end the session; and a PING still leaves, and fails.
func TestOutOfCreditAndCutOff(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		sim, ends := simEnds(t, simverbs.Config{})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics, links := pair(t, ends, cfg)
		sinks := [2]*sink{newSink(), newSink()}
		links[0].Start(sinks[0])
		for i := range 10 {
			require.NoError(t, send(links[0], i, 8))
		}
		synctest.Wait()
		r := links[0].send
		require.Equal(t, r.posted.Load(), r.completed.Load())
		require.NotZero(t, r.stuck.Load())
		sim.Partition("a", "b")
		sim.Partition("b", "a")

		links[1].Start(sinks[1])
		var failed *CompletionError
		require.ErrorAs(t, ended(t, links[1], sinks[1]), &failed)
		require.Equal(t, verbs.WCRetryExcErr, failed.Status)
		time.Sleep(time.Minute)
		require.NoError(t, links[0].dead())

		slot, err := links[0].Reserve(context.Background(), transport.Control, 0)
		require.NoError(t, err)
		require.NoError(t, linktest.Commit(links[0], slot, &wire.Header{Kind: wire.Ping}))
		require.ErrorAs(t, ended(t, links[0], sinks[0]), &failed)
		require.Equal(t, verbs.WCRetryExcErr, failed.Status)
		closeAll(t, fabrics)
	})
}

// A poller that is about to sleep for long looks at the endpoints of its table
// while a helper has the turn. Fails with the race detector alone.
func TestOutstandingBesideHelper(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	_, links := pair(t, ends, small)
	ep := links[0].ep
	helped := make(chan struct{})
	go func() {
		defer close(helped)
		for range 100 {
			ep.poller.turn.Lock()
			ep.sealed = true // as the drain of another link on this poller does
			ep.sealed = false
			ep.poller.turn.Unlock()
		}
	}()
	for range 100 {
		ep.poller.outstanding()
	}
	<-helped
}

// Each crossing counts, and what it carried: each post of sends has one signalled
// work request, each frame received one completion and one receive posted again.
func TestCrossingsAreCounted(t *testing.T) {
	onBoth(t, func(t *testing.T, ends [2]end) {
		_, links := pair(t, ends, Config{})
		sinks := [2]*sink{newSink(), newSink()}
		for i, l := range links {
			l.Start(sinks[i])
		}
		const n = 200
		for i := range n {
			require.NoError(t, send(links[0], i, 64))
			require.NoError(t, send(links[1], i, 64))
		}
		for i, l := range links {
			sinks[i].await(t, n)
			var s transport.LinkStats
			require.Eventually(t, func() bool {
				s = l.Info().Stats
				return s.Completions == s.SendBatches+s.FramesReceived && s.RecvsPosted == s.FramesReceived
			}, 10*time.Second, time.Millisecond, "side %d: %+v", i, &s)
			require.GreaterOrEqual(t, s.FramesReceived, uint64(n))
			require.LessOrEqual(t, s.RecvBatches, s.Completions)
			require.Positive(t, s.RecvPosts)
			require.LessOrEqual(t, s.RecvPosts, min(s.RecvBatches, s.RecvsPosted))
		}
	})
}
