package rdma

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Frames of many callers leave in few crossings where frames come in crowds, and
// none is left behind.
func TestCrowd(t *testing.T) {
	checkLeaks(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	_, ends := simEnds(t, simverbs.Config{})
	_, links := pair(t, ends, Config{})
	sink := newSink()
	links[0].Start(newSink())
	links[1].Start(sink)
	const callers = 32
	crossings := func(many bool) uint64 {
		links[0].crowd.many.Store(many)
		before := links[0].Info().Stats.SendBatches
		gate := make(chan struct{})
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				<-gate
				slot, err := links[0].Reserve(context.Background(), transport.Small, 8)
				if err == nil {
					err = linktest.Commit(links[0], slot, &wire.Header{Kind: wire.Call, Lane: transport.LaneID, Flags: wire.End, Total: 8})
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		runtime.Gosched()
		close(gate)
		wg.Wait()
		return links[0].Info().Stats.SendBatches - before
	}
	require.Less(t, crossings(true), uint64(callers/2))
	crossings(false)
	require.Eventually(t, func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return len(sink.got) == 2*callers
	}, 10*time.Second, time.Millisecond)
}

// Who gave way to somebody that computes does not for a while.
func TestCrowdPauses(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := crowd{born: time.Now()}
	c.arrived(1)
	require.False(t, c.many.Load())
	c.arrived(2)
	require.True(t, c.many.Load())
	c.arrived(0)
	require.True(t, c.many.Load(), "a batch without frames says nothing")

	require.True(t, c.giveWay())
	c.giving.Store(true)
	require.False(t, c.giveWay(), "another flushes")
	c.giving.Store(false)

	var over atomic.Bool
	defer over.Store(true)
	for range 2 {
		go func() {
			for !over.Load() {
			}
		}()
	}
	for deadline := time.Now().Add(10 * time.Second); c.paused.Load() == 0; {
		require.True(t, c.giveWay())
		require.True(t, time.Now().Before(deadline))
	}
	c.giving.Store(true)
	require.True(t, c.giveWay(), "it gave way within the pause")
}
