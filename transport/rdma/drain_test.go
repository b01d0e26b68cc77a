package rdma

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// Completions that never come: the drain ends by its time, the QP is
// destroyed, its memory kept until the device closes. Late ones, up to after a
// new QP has the same number and place, are counted and dropped (case 2, 9, 14).
func TestDrainNeverEnds(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				var lossy atomic.Bool
				_, ends := simEnds(t, simverbs.Config{LowestQPN: true, Faults: simverbs.Faults{
					OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
						if c.Host == "a" && c.WC.Status == verbs.WCWRFlushErr && lossy.Load() {
							fate.Drop = !late
							fate.Delay = 2 * time.Second
						}
						return fate
					},
				}})
				cfg := small
				cfg.Poll = EventsOnly // a spinning goroutine would stop the virtual clock
				fabrics, links := pair(t, ends, cfg)
				s := newSink()
				links[0].Start(s)
				lossy.Store(true)
				start := time.Now()
				links[0].Close(nil)
				require.NoError(t, ended(t, links[0], s))
				require.GreaterOrEqual(t, time.Since(start), drainTime)
				stats := fabrics[0].Stats()
				require.EqualValues(t, 1, stats.LostDrains)
				require.Equal(t, 1, stats.Quarantined)
				require.NotZero(t, stats.PinnedBytes)
				links[1].Close(nil)
				lossy.Store(false)

				made, err := join(context.Background(), fabrics, ends)
				require.NoError(t, err)
				require.Equal(t, links[0].ep.qp.Num(), made[0].(*link).ep.qp.Num(), "the number is used again")
				time.Sleep(3 * time.Second)
				exchange(t, made)
				if late {
					require.EqualValues(t, 8, fabrics[0].Stats().Stale, "the receives of the first link")
				}
				closeAll(t, fabrics)
			})
		})
	}
}

// A QP whose drain did not end is destroyed: its place among the dedicated, in the
// poller's table and in the CQ is another's, though its memory is kept.
func TestLostDrainGivesItsPlaceBack(t *testing.T) {
	for _, dedicated := range []int{1, -1} {
		t.Run(fmt.Sprintf("dedicated=%d", dedicated), func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				var lossy atomic.Bool
				_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
					OnCompletion: func(c simverbs.Completion, _ *rand.Rand) simverbs.Fate {
						return simverbs.Fate{Drop: c.Host == "a" && lossy.Load()}
					},
				}})
				cfg := sharing
				cfg.Dedicated = dedicated
				fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
				newDuo(t, fabrics, ends).close()
				d := deviceOf(fabrics[0])
				p := d.pollers[0]
				places := func() [3]int {
					d.mu.Lock()
					defer d.mu.Unlock()
					return [3]int{p.room, len(p.places), d.dedicated}
				}
				before := places()
				for i := range 3 {
					next := newDuo(t, fabrics, ends)
					require.Equal(t, dedicated < 0, next.links[0].(*link).ep.shares)
					next.talk(t)
					lossy.Store(true)
					require.NoError(t, send(next.links[0], 1, 8))
					next.close()
					lossy.Store(false)
					require.EqualValues(t, i+1, fabrics[0].Stats().LostDrains)
					require.Equal(t, before, places())
				}
				require.Equal(t, 3*max(dedicated, 0), fabrics[0].Stats().Quarantined)
				closeAll(t, fabrics)
			})
		})
	}
}

// Completions of sends never come, the device's or an unsignalled tail's. The
// link ends by the drain's time all the same: its slots are with the device,
// no caller has one, and the memory is unmapped when the device closes.
func TestDrainWithoutSends(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
			OnCompletion: func(c simverbs.Completion, _ *rand.Rand) simverbs.Fate {
				return simverbs.Fate{Drop: c.Host == "a" && c.Send}
			},
		}})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics, links := pair(t, ends, cfg)
		s := newSink()
		links[0].Start(s)
		require.NoError(t, send(links[0], 1, 8))
		start := time.Now()
		links[0].Close(nil)
		require.NoError(t, ended(t, links[0], s))
		require.Equal(t, drainTime, time.Since(start), "one time for both")
		require.EqualValues(t, 1, fabrics[0].Stats().LostDrains)
		require.False(t, links[0].ep.rings.held)
		links[1].Close(nil)
		closeAll(t, fabrics)
	})
}

// The device takes a part of a batch: the sends that it took are not signalled,
// and complete unseen. Or it takes all, and is not told. The drain does not wait for
// its time, and each slot comes back once.
func TestPartOfABatch(t *testing.T) {
	for _, model := range []simverbs.Model{simverbs.RXE, simverbs.Spec} {
		for taken := range 5 {
			t.Run(fmt.Sprintf("model=%d/taken=%d", model, taken), func(t *testing.T) {
				checkLeaks(t)
				sim, ends := simEnds(t, simverbs.Config{Model: model})
				cfg := small
				cfg.RQDepth = 64
				fabrics, links := pair(t, ends, cfg)
				l, s := links[0], newSink()
				l.Start(s)
				peer := newSink()
				links[1].Start(peer)
				for i := range 20 { // more than the ring has
					require.NoError(t, send(l, i, 8))
					peer.await(t, i+1)
				}
				l.send.mu.Lock()
				for i := range 4 {
					require.NoError(t, send(l, i, 8))
				}
				if taken < 4 {
					sim.FailCall("a", "ibv_post_send", taken+1, syscall.ENOMEM)
				} else {
					sim.FailCall("a", simverbs.Doorbell, 1, syscall.ENOMEM)
				}
				l.send.mu.Unlock()
				l.flush()
				require.ErrorIs(t, ended(t, l, s), syscall.ENOMEM)
				require.Zero(t, fabrics[0].Stats().LostDrains)
				require.Zero(t, fabrics[0].Stats().Stale)
			})
		}
	}
}

// Positions of sends begin at 0 again after 2^32, in the middle of a ring whose
// length does not divide that.
func TestPositionsWrap(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	cfg := small
	cfg.SQDepth, cfg.RQDepth = 31, 64
	fabrics, links := pair(t, ends, cfg)
	const before = 1<<32 - 30
	links[0].send.posted.Store(before)
	links[0].send.completed.Store(before)
	s := newSink()
	links[0].Start(newSink())
	links[1].Start(s)
	const n = 300
	for i := 0; i < n; {
		links[0].send.mu.Lock() // so that many are outstanding at once
		for range 20 {
			require.NoError(t, send(links[0], i, 8))
			i++
		}
		links[0].send.mu.Unlock()
		links[0].flush()
		s.await(t, i)
		links[0].ep.poller.sync()
	}
	for i, b := range s.got {
		require.NoError(t, checkFill(b, i))
	}
	links[0].Close(nil)
	<-links[0].Done()
	require.Zero(t, fabrics[0].Stats().LostDrains)
}

// The QP does not even go to ERR.
func TestDrainRefused(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, small)
	s := newSink()
	links[0].Start(s)
	sim.FailCall("a", "ibv_modify_qp ERR", 1, syscall.EIO)
	links[0].Close(nil)
	require.NoError(t, ended(t, links[0], s))
	require.Equal(t, 1, fabrics[0].Stats().Quarantined)
}

// Receives are posted again after the device took the QP to ERR and before a completion
// said so. On rxe they complete because the drain takes the QP to ERR once more
// (docs/rxe.md).
func TestPostBeforeErrorIsKnown(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
			OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
				if c.WC.Status == verbs.WCWRFlushErr {
					fate.Delay = time.Millisecond
				}
				return fate
			},
		}})
		fabrics, links := pair(t, ends, eventsOnly())
		l, s := links[0], newSink()
		l.Start(s)
		l.ep.poller.sync()
		l.ep.poller.do(func() {
			require.NoError(t, send(links[1], 1, 8))
			require.NoError(t, l.ep.qp.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
			l.ep.poller.poll()
			require.EqualValues(t, 1, l.stats.recvsPosted.Load())
		})
		require.Error(t, ended(t, l, s))
		require.Zero(t, fabrics[0].Stats().LostDrains)
		links[1].Close(nil)
		closeAll(t, fabrics)
	})
}
