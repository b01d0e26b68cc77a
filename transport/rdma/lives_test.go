package rdma

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// What a fabric counts of its QPs over their lives.
func TestPoolStats(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{})
		cfg := eventsOnly()
		cfg.Warm = 2
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, eventsOnly())}
		f := fabrics[0]
		require.NoError(t, f.Prewarm(context.Background()))
		time.Sleep(time.Second)
		rings := int64((cfg.SQDepth + cfg.RQDepth) * cfg.SlotSize)
		require.Equal(t, Stats{QPs: 2, Pooled: 2, PinnedBytes: 2 * rings, Made: f.Stats().Made, Destroyed: f.Stats().Made - 2}, stripped(f),
			"the refill and Prewarm may both have made one, and one was too many")

		var links [][2]transport.Link
		for range 3 { // one more than there are
			made, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			links = append(links, made)
		}
		s := f.Stats()
		require.EqualValues(t, 2, s.PoolHits)
		require.EqualValues(t, 1, s.PoolMisses)
		require.Zero(t, s.Pooled)
		for _, l := range links {
			l[0].Close(nil)
			l[1].Close(nil)
			<-l[0].Done()
		}
		time.Sleep(time.Second)
		s = f.Stats()
		require.Equal(t, 2, s.Pooled)
		require.Equal(t, 2, s.QPs)
		require.Equal(t, 2*rings, s.PinnedBytes)
		require.NotZero(t, s.Recycled)
		require.LessOrEqual(t, s.Recycled, uint64(3), "a QP that finds the pool full may have been made ready")
		require.EqualValues(t, s.Made-2, s.Destroyed)
		require.NoError(t, s.PoolError)
		closeAll(t, fabrics)
		require.Equal(t, s.PoolHits, f.Stats().PoolHits, "what was counted stays")
		require.Equal(t, s.Made, f.Stats().Destroyed)
	})
}

// stripped are the statistics without times and pollers.
func stripped(f *Fabric) Stats {
	s := f.Stats()
	s.MakeTime, s.RecycleTime, s.Naps, s.Ticks = 0, 0, 0, 0
	return s
}

// A device that cannot take a QP from ERR to RESET: each link has its QP
// destroyed, and the pool makes others in the background.
func TestResetRefused(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		sim, ends := simEnds(t, simverbs.Config{})
		cfg := eventsOnly()
		cfg.Warm = 1
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, eventsOnly())}
		require.NoError(t, fabrics[0].Prewarm(context.Background()))
		sim.FailCall("a", "ibv_modify_qp RESET", 0, syscall.EOPNOTSUPP)
		qps := map[uint32]bool{}
		const n = 10
		for range n {
			time.Sleep(time.Second)
			links, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			qps[links[0].(*link).ep.qp.Num()] = true
			exchange(t, links)
		}
		time.Sleep(time.Second)
		require.Len(t, qps, n, "a QP had two lives")
		s := fabrics[0].Stats()
		require.EqualValues(t, n, s.PoolHits)
		require.Zero(t, s.Recycled)
		require.GreaterOrEqual(t, s.Destroyed, uint64(n), "and more where the pool was filled twice at once")
		require.Equal(t, 1, s.Pooled)
		require.EqualValues(t, s.Made-1, s.Destroyed)
		closeAll(t, fabrics)
	})
}

// Why the pool is empty can be read: locked memory, say (case 50).
func TestPoolError(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	cfg := small
	cfg.Warm = 1
	f := ends[0].fabric(t, cfg)
	sim.FailCall("a", "ibv_reg_mr", 0, syscall.ENOMEM)
	require.ErrorIs(t, f.Prewarm(context.Background()), syscall.ENOMEM)
	require.ErrorIs(t, f.Stats().PoolError, syscall.ENOMEM)
	require.True(t, strings.Contains(f.Stats().PoolError.Error(), "register"), f.Stats().PoolError)
}
