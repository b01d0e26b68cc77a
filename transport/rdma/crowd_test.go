package rdma

import (
	"context"
	"runtime"
	"sync"
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
	crossings := func(frames int) uint64 {
		links[0].crowd.Arrived(frames)
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
	require.Less(t, crossings(2), uint64(callers/2))
	crossings(1)
	require.Eventually(t, func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return len(sink.got) == 2*callers
	}, 10*time.Second, time.Millisecond)
}
