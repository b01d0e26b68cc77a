package rdma

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Peers that grant nothing, with more callers than there are slots for all: together
// they keep half of the slots, and a link with a peer that does grant goes on.
func TestMutePeersKeepHalf(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*Fabric{ends[0].fabric(t, scarce()), ends[1].fabric(t, sharing)}
	var callers sync.WaitGroup
	var mute [][2]transport.Link
	const each, window, half = 16, 8 - credit.Reserve, 2
	for i := range 8 {
		links, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		mute = append(mute, links)
		links[0].Start(newSink())
		for i := range each {
			callers.Go(func() {
				if err := send(links[0], i, 8); err != nil {
					t.Error(err)
				}
			})
		}
		kept := 0
		if i == 0 { // it keeps what the others may not have then
			kept = half
		}
		l := links[0].(*link)
		within(t, "what the window allows", func() {
			for l.Info().Stats.FramesSent < window || l.send.waiting.n.Load() != int32(each-window-kept) ||
				freeSends(sharedSendsOf(fabrics[0])) != 4-half {
				time.Sleep(time.Millisecond)
			}
		})
	}
	require.NotZero(t, mute[0][0].Info().Stats.CreditStalls)
	require.True(t, mute[0][0].(*link).send.outstanding(), "its poller may not sleep long")
	newDuo(t, fabrics, ends).talk(t)
	for _, links := range mute {
		s := newSink()
		links[1].Start(s)
		s.await(t, each)
	}
	within(t, "the callers", callers.Wait)
	complete(t, fabrics)
}

// While half of the slots are free a link publishes more than the peer has receives
// for, up to a number, and what has waited for credit leaves together.
func TestSharedAhead(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{})
		cfg := Config{SlotSize: 512, Warm: -1, Dedicated: -1, Poll: EventsOnly}
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		var all [][2]transport.Link
		const window, most = sharedWindow - credit.Reserve, sharedHold - credit.Reserve
		ahead := []int{most, 128/2 - most, 0} // of each link
		for _, n := range ahead {
			links, err := join(t.Context(), fabrics, ends)
			require.NoError(t, err)
			all = append(all, links)
			links[0].Start(newSink())
			h := wire.Header{Kind: wire.Call, Lane: transport.LaneID}
			for i := range window + n {
				slot, err := links[0].Reserve(over, transport.Small, 8)
				require.NoError(t, err, "%d of %d", i, n)
				fill(slot.Payload, i)
				h.Call = uint64(i)
				require.NoError(t, links[0].Commit(slot, &h))
				links[0].Flush()
				if i == window-1 {
					time.Sleep(time.Millisecond) // until they have completed
				}
			}
			_, err = links[0].Reserve(over, transport.Small, 8)
			require.ErrorIs(t, err, context.Canceled, "after %d", n)
			require.EqualValues(t, window, links[0].Info().Stats.FramesSent)
		}
		for i, links := range all {
			before := links[0].Info().Stats
			s := newSink()
			links[1].Start(s)
			s.await(t, window+ahead[i])
			after := links[0].Info().Stats
			require.LessOrEqual(t, after.SendBatches-before.SendBatches, (after.FramesSent-before.FramesSent+7)/8)
			for _, l := range links {
				l.Close(nil)
				<-l.Done()
			}
		}
		complete(t, fabrics)
		closeAll(t, fabrics)
	})
}

// The peer grants credit while sends do not complete here: no more are posted than the
// send queue has room for, however many slots a link has, and frames of the link itself
// find room.
func TestSharedSendQueueFull(t *testing.T) {
	for depth, at := range map[int]int{16: 12, 64: 27} { // what is posted at a time
		t.Run(fmt.Sprintf("depth=%d", depth), func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
					OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
						if c.Host == "a" && c.Send {
							fate.Delay = time.Second
						}
						return fate
					},
				}})
				cfg := sharing
				cfg.SQDepth, cfg.SharedSlots = depth, 512
				fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
				d := newDuo(t, fabrics, ends)
				start := time.Now()
				for i := range 2*at + 1 {
					require.NoError(t, send(d.links[0], i, 8))
				}
				if depth == 64 { // all have a slot
					time.Sleep(time.Second / 2)
					require.EqualValues(t, at, d.links[0].Info().Stats.FramesSent)
					for i := range at {
						require.NoError(t, send(d.links[1], i, 8), "CREDIT leaves")
					}
					d.sinks[0].await(t, at)
				}
				d.sinks[1].await(t, 2*at+1)
				require.GreaterOrEqual(t, time.Since(start), 2*time.Second, "%d at a time", at)
				d.close()
				complete(t, fabrics)
				closeAll(t, fabrics)
			})
		})
	}
}

// CREDIT leaves its place in the send queue to the frames that are there, as all do.
func TestCreditWaitsForTheSendQueue(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	_, links := pair(t, ends, sharing)
	l, posted := links[0], &links[0].send.posted
	l.send.mu.Lock() // nothing is posted
	l.grants.Posted(sharing.RQDepth)
	depth := l.send.share.depth
	posted.Add(depth - 1)
	before := l.creditDue()
	posted.Add(1)
	after := l.creditDue()
	posted.Add(-depth)
	l.grants.Posted(-sharing.RQDepth)
	l.send.mu.Unlock()
	require.Equal(t, []bool{true, false}, []bool{before, after})
	exchange(t, [2]transport.Link{links[0], links[1]})
}

// While more than half of the slots are taken a link has no more than its send queue has
// room for, whatever credit it has.
func TestSharedNoMoreThanTheQueue(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{})
		peer := sharing
		peer.Dedicated, peer.RQDepth = 0, 64
		fabrics := [2]*Fabric{ends[0].fabric(t, Config{SlotSize: 512, Warm: -1, Dedicated: -1, SharedSlots: 64, Poll: EventsOnly}), ends[1].fabric(t, peer)}
		d := newDuo(t, fabrics, ends)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		var held []transport.Slot
		for {
			slot, err := d.links[0].Reserve(over, transport.Small, 8)
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
				break
			}
			held = append(held, slot)
		}
		require.Len(t, held, sharedSQDepth-credit.Reserve)
		for _, slot := range held {
			d.links[0].Discard(slot)
		}
		d.talk(t)
		d.close()
		complete(t, fabrics)
		closeAll(t, fabrics)
	})
}

// Slots are added for who would wait while half are taken, up to the limit, or until the
// device takes no more memory; not for who does not wait.
func TestSharedSendsGrow(t *testing.T) {
	for name, refused := range map[string]bool{"limit": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			sim, ends := simEnds(t, simverbs.Config{})
			cfg := Config{SlotSize: 512, Warm: -1, Dedicated: -1, SharedSlots: 512, Poll: EventsOnly}
			fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
			first, second := newDuo(t, fabrics, ends), newDuo(t, fabrics, ends)
			pool := sharedSendsOf(fabrics[0])
			var held [2][]transport.Slot
			take := func(i int, ctx context.Context) error {
				l := []*duo{first, second}[i].links[0]
				slot, err := l.Reserve(ctx, transport.Small, 8)
				if err == nil {
					held[i] = append(held[i], slot)
				}
				return err
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			for range sharedHold - credit.Reserve {
				require.NoError(t, take(0, over))
			}
			for range sharedWindow - credit.Reserve {
				require.NoError(t, take(1, over))
			}
			require.ErrorIs(t, take(1, over), context.Canceled)
			require.Equal(t, 128, pool.n)
			if refused {
				sim.FailCall("a", "ibv_reg_mr", 1, syscall.ENOMEM)
				brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				for range 2 { // the second does not ask the device
					require.ErrorIs(t, take(1, brief), context.DeadlineExceeded)
					brief, cancel = context.WithTimeout(t.Context(), time.Millisecond)
					defer cancel()
				}
				require.Equal(t, 128, pool.n)
			} else {
				for range sharedHold - sharedWindow {
					require.NoError(t, take(1, t.Context()))
				}
				require.Equal(t, 256, pool.n, "and that is all")
			}
			for i, d := range []*duo{first, second} {
				for _, slot := range held[i] {
					d.links[0].Discard(slot)
				}
				d.talk(t)
			}
			complete(t, fabrics)
		})
	}
}

// A caller that is later than the end of the poller has no slots added.
func TestSharedSendsClosed(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	f := ends[0].fabric(t, sharing)
	require.NoError(t, f.Usable(ends[0].addr))
	for _, d := range f.devices {
		s := newSharedSends(d, 512)
		own, err := s.enter()
		require.NoError(t, err)
		s.leave(own)
		require.NoError(t, s.close())
		s.above.Store(0)
		require.False(t, s.more())
	}
}

// Chunks have half of what a link may hold, however many slots are free: beside them a
// small message finds one at once.
func TestSharedChunksLeaveHalf(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	cfg := Config{SlotSize: 512, Warm: -1, Dedicated: -1, SharedSlots: 1024, Poll: EventsOnly}
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	d := newDuo(t, fabrics, ends)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	l, half := d.links[0], (sharedHold-credit.Reserve)/2
	var chunks []transport.Slot
	for {
		slot, err := l.Reserve(over, transport.Bulk, 8)
		if err != nil {
			break
		}
		chunks = append(chunks, slot)
	}
	require.Equal(t, half, len(chunks))
	for range half {
		slot, err := l.Reserve(over, transport.Small, 8)
		require.NoError(t, err)
		defer l.Discard(slot)
	}
	for _, slot := range chunks {
		l.Discard(slot)
	}
	slot, err := l.Reserve(over, transport.Bulk, 8)
	require.NoError(t, err, "a chunk after others are gone")
	l.Discard(slot)
}
