package rdma

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// The flush of an earlier life comes late: the link that has the QP now goes on.
func TestSharedLateFlush(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, sharing)}
	d := newDuo(t, fabrics, ends)
	ep := d.links[0].(*link).ep
	p := ep.poller
	p.turn.Lock()
	id := p.shared.Load().all[sharing.SharedSlots-1].ID
	p.turn.Unlock()
	stale := fabrics[0].Stats().Stale
	sim.Inject(p.cq, verbs.WC{ID: id, Status: verbs.WCWRFlushErr, QPNum: ep.qp.Num()})
	sim.Inject(p.cq, verbs.WC{ID: id, Status: verbs.WCWRFlushErr, QPNum: ep.qp.Num()})
	within(t, "the second of them", func() {
		for fabrics[0].Stats().Stale == stale {
			p.ch.Wake()
			time.Sleep(time.Millisecond)
		}
	})
	d.talk(t)
}

// A receive completes when its QP is gone: its slot is posted again.
func TestSharedAfterDestroy(t *testing.T) {
	for _, reuse := range []bool{true, false} {
		t.Run(fmt.Sprintf("reuse=%v", reuse), func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				var late atomic.Bool
				_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
					OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
						if c.Host == "a" && !c.Send && late.Load() {
							fate.Delay = time.Second
						}
						return fate
					},
				}})
				fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, sharing)}
				d := newDuo(t, fabrics, ends)
				d.talk(t)
				late.Store(true)
				require.NoError(t, send(d.links[1], 1, 8))
				time.Sleep(time.Millisecond)
				late.Store(false)
				d.links[0].(*link).fail(net.ErrClosed, reuse)
				d.close()
				require.Zero(t, fabrics[0].Stats().LostDrains)
				next := newDuo(t, fabrics, ends)
				time.Sleep(2 * time.Second)
				next.talk(t)
				next.close()
				complete(t, fabrics)
				closeAll(t, fabrics)
			})
		})
	}
}

// A device that tells of the last receive does so late: no QP begins a life with that
// event to come, which would end its last wait at once.
func TestSharedLateEvent(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Model: simverbs.Spec})
		var late atomic.Bool
		release := make(chan struct{})
		ends[0].provider = &hooks{Provider: ends[0].provider, event: func() {
			if late.Load() {
				<-release
			}
		}}
		cfg := sharing
		cfg.Warm = 1
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
		f := fabrics[0]
		d := newDuo(t, fabrics, ends)
		d.talk(t)
		d.close()
		require.EqualValues(t, 1, f.Stats().Recycled, "the event came in time")
		d = newDuo(t, fabrics, ends)
		late.Store(true)
		d.close()
		late.Store(false)
		close(release)
		synctest.Wait()
		for ep := range deviceOf(f).endpoints {
			require.Empty(t, ep.tookLast)
		}
		require.EqualValues(t, 1, f.Stats().Recycled)
		closeAll(t, fabrics)
	})
}

// A receive completes between two lives of its QP: the poller does not touch the
// endpoint, which begins the next.
func TestSharedBetweenLives(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
			OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
				if c.Host == "a" && !c.Send {
					fate.Delay = lastReceiveTime * 3 / 2
				}
				return fate
			},
		}})
		ends[0].provider = &hooks{Provider: ends[0].provider, reset: func() { time.Sleep(lastReceiveTime) }}
		fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, sharing)}
		d := newDuo(t, fabrics, ends)
		require.NoError(t, send(d.links[1], 1, 8))
		synctest.Wait()
		d.close()
		require.EqualValues(t, 1, fabrics[0].Stats().Stale)
		closeAll(t, fabrics)
	})
}

// A receive of a QP in ERR completes while the poller still knows the QP.
func TestSharedLastReceive(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
			OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
				if c.Host == "a" && !c.Send {
					fate.Delay = lastReceiveTime / 2
				}
				return fate
			},
		}})
		fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, sharing)}
		d := newDuo(t, fabrics, ends)
		require.NoError(t, send(d.links[1], 1, 8))
		time.Sleep(time.Millisecond)
		d.links[0].(*link).fail(net.ErrClosed, false)
		d.close()
		time.Sleep(time.Second)
		require.Zero(t, fabrics[0].Stats().Stale)
		closeAll(t, fabrics)
	})
}
