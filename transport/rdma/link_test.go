package rdma

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
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

// onBoth runs a test on the software device and on rxe.
func onBoth(t *testing.T, test func(t *testing.T, ends [2]end)) {
	t.Run("sim", func(t *testing.T) {
		checkLeaks(t)
		_, ends := simEnds(t, simverbs.Config{})
		test(t, ends)
	})
	t.Run("rxe", func(t *testing.T) {
		ends := realEnds(t)
		checkLeaks(t)
		test(t, ends)
	})
}

func TestFramesArriveInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, ends [2]end) {
		fabrics, links := pair(t, ends, Config{PayloadSum: true})
		sinks := [2]*sink{newSink(), newSink()}
		for i, l := range links {
			l.Start(sinks[i])
		}
		const n = 1000
		for i := range n {
			size := i * 7 % (links[0].MaxPayload() + 1)
			require.NoError(t, send(links[0], i, size))
			require.NoError(t, send(links[1], i, size/3))
		}
		for side, s := range sinks {
			s.await(t, n)
			for i, h := range s.heads {
				require.Equal(t, uint64(i), h.Call, "side %d", side)
				require.Equal(t, uint32(i), h.Seq)
				require.NoError(t, checkFill(s.got[i], i))
			}
		}
		for i, l := range links {
			l.Close(nil)
			require.NoError(t, ended(t, l, sinks[i]))
			require.Zero(t, fabrics[i].Stats().RNR)
			require.Zero(t, fabrics[i].Stats().LostDrains)
		}
	})
}

// Many callers on both sides, and a window far smaller than their number
// (case 20, 22, 23): nothing locks up, and no receive is ever missing.
func TestManyCallersSmallWindow(t *testing.T) {
	for _, depth := range []int{8, 32} {
		onBoth(t, func(t *testing.T, ends [2]end) {
			fabrics, links := pair(t, ends, Config{RQDepth: depth, SQDepth: 16, SlotSize: 512})
			sinks := [2]*sink{newSink(), newSink()}
			for i, l := range links {
				l.Start(sinks[i])
			}
			const callers, each = 32, 50
			var wg sync.WaitGroup
			for i := range 2 * callers {
				wg.Go(func() {
					for j := range each {
						if err := send(links[i%2], i*each+j, 64); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			within(t, "the callers", wg.Wait)
			for _, s := range sinks {
				s.await(t, callers*each)
			}
			for i, f := range fabrics {
				require.Zero(t, f.Stats().RNR)
				require.NotZero(t, links[i].Info().Stats.CreditStalls+1)
				links[i].Close(nil)
			}
		})
	}
}

// A side whose commits all fail for want of credit still returns credit, and
// frames of the link pass those that wait (case 23).
func TestControlPassesStalledFrames(t *testing.T) {
	onBoth(t, func(t *testing.T, ends [2]end) {
		_, links := pair(t, ends, Config{RQDepth: 8, SQDepth: 16})
		sinks := [2]*sink{newSink(), newSink()}
		links[0].Start(sinks[0]) // 1 takes nothing in yet: its slots stay used
		for i := range 10 {
			require.NoError(t, send(links[0], i, 8))
		}
		slot, err := links[0].Reserve(context.Background(), transport.Control, 4)
		require.NoError(t, err)
		require.NoError(t, linktest.Commit(links[0], slot, &wire.Header{Kind: wire.Ping}))
		within(t, "4 frames of the lane, and the PING", func() {
			for links[0].Info().Stats.FramesSent < 5 {
				time.Sleep(time.Millisecond)
			}
		})
		links[0].ep.poller.sync()
		require.Equal(t, uint64(5), links[0].Info().Stats.FramesSent)
		require.NotZero(t, links[0].Info().Stats.CreditStalls)

		links[1].Start(sinks[1])
		sinks[1].await(t, 11)
		require.Equal(t, wire.Ping, sinks[1].heads[4].Kind)
		for i, h := range append(sinks[1].heads[:4:4], sinks[1].heads[5:]...) {
			require.Equal(t, uint64(i), h.Call)
		}
	})
}

func TestReserveWaitsInTurn(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	_, links := pair(t, ends, Config{SQDepth: 16})
	l := links[0]
	var held []transport.Slot
	for range 12 {
		s, err := l.Reserve(context.Background(), transport.Small, 1)
		require.NoError(t, err)
		held = append(held, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := l.Reserve(ctx, transport.Small, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	order := make(chan int, 4)
	for i := range 4 {
		go func() {
			s, err := l.Reserve(context.Background(), transport.Small, 1)
			if err == nil {
				order <- i
				time.Sleep(time.Millisecond) // hand over visibly one after another
				l.Discard(s)
			}
		}()
		within(t, "a waiter", func() {
			for l.send.waiting.n.Load() != int32(i+1) {
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	l.Discard(held[0])
	for i := range 4 {
		require.Equal(t, i, <-order)
	}

	s, err := l.Reserve(context.Background(), transport.Control, 0)
	require.NoError(t, err, "frames of the link have slots of their own")
	l.Discard(s)
	for _, s := range held[1:] {
		l.Discard(s)
	}

	// Bulk holds at most half, whoever waits.
	held = held[:0]
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		s, err := l.Reserve(ctx, transport.Bulk, 1)
		cancel()
		if err != nil {
			break
		}
		held = append(held, s)
	}
	require.Len(t, held, 6)
	for _, s := range held {
		l.Discard(s)
	}
}

func TestCloseWakesWaiters(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	_, links := pair(t, ends, Config{SQDepth: 16})
	s := newSink()
	links[0].Start(s)
	var held []transport.Slot
	for range 12 {
		slot, err := links[0].Reserve(context.Background(), transport.Small, 1)
		require.NoError(t, err)
		held = append(held, slot)
	}
	failed := make(chan error)
	for range 3 {
		go func() {
			_, err := links[0].Reserve(context.Background(), transport.Small, 1)
			failed <- err
		}()
	}
	time.Sleep(time.Millisecond)
	links[0].Close(nil)
	for range 3 {
		require.ErrorIs(t, <-failed, net.ErrClosed)
	}
	select {
	case <-links[0].Done():
		t.Fatal("done while callers hold slots: their memory would be gone")
	case <-time.After(20 * time.Millisecond):
	}
	for i, slot := range held {
		slot.Payload[0] = 1
		if i%2 == 0 {
			require.ErrorIs(t, links[0].Commit(slot, &wire.Header{Kind: wire.Call}), net.ErrClosed)
		}
		links[0].Discard(slot)
	}
	require.NoError(t, ended(t, links[0], s))
	_, err := links[0].Reserve(context.Background(), transport.Control, 0)
	require.ErrorIs(t, err, net.ErrClosed)
}

// Pollers sleep while no link is connected, whatever their mode: the cores are
// the rest of the process's.
func TestPollersSleepWithoutLinks(t *testing.T) {
	for _, mode := range []PollMode{Busy, Adaptive} {
		t.Run(mode.String(), func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{})
			cfg := small
			cfg.Poll, cfg.Spin, cfg.Warm = mode, time.Second, 1
			fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
			asleep := func() {
				for _, f := range fabrics {
					within(t, "a poller's sleep", func() {
						for before := f.Stats().Naps; f.Stats().Naps == before; {
							time.Sleep(time.Millisecond)
						}
					})
				}
			}
			for i, f := range fabrics {
				h, err := f.Prepare(context.Background(), ends[i].addr)
				require.NoError(t, err)
				defer h.Abort()
			}
			asleep()
			links, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			naps := fabrics[0].Stats().Naps
			time.Sleep(50 * time.Millisecond) // a sleeping poller would have ticked
			require.LessOrEqual(t, fabrics[0].Stats().Naps, naps+1, "it spins for the link")
			exchange(t, links)
			asleep()
		})
	}
}

// A poller without work wakes once a second at last, not a hundred times.
func TestIdleTicks(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics, links := pair(t, ends, cfg)
		exchange(t, [2]transport.Link{links[0], links[1]})
		made, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		before := fabrics[0].Stats().Ticks
		time.Sleep(time.Minute)
		require.InDelta(t, 60, fabrics[0].Stats().Ticks-before, 10)
		exchange(t, made)
		closeAll(t, fabrics)
	})
}

// A caller keeps a slot for longer than a drain may take: the memory stays, for
// as long as the process, but the room in the CQ is free again, since nothing
// is with the device.
func TestSlotNeverGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{
			{Name: "a", Devices: []simverbs.Device{{Attr: verbs.DeviceAttr{MaxCQE: 31}}}}, {Name: "b"}, // room for one QP
		}})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics, links := pair(t, ends, cfg)
		slot, err := links[0].Reserve(context.Background(), transport.Small, 8)
		require.NoError(t, err)
		links[0].Close(nil)
		<-links[0].Done()
		require.Equal(t, 1, fabrics[0].Stats().Quarantined)
		links[1].Close(nil)

		made, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		exchange(t, made)
		closeAll(t, fabrics)
		fill(slot.Payload, 1) // its memory is there
		require.ErrorIs(t, links[0].Commit(slot, &wire.Header{Kind: wire.Call}), net.ErrClosed)
	})
}

// Callers and Close at random moments (case 13, 72): no crash, no damaged
// frame, no QP left.
func TestCloseUnderLoad(t *testing.T) {
	onBoth(t, func(t *testing.T, ends [2]end) {
		seed := rand.Uint64()
		t.Logf("seed %#x", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		cfg := Config{SQDepth: 32, RQDepth: 16, SlotSize: 512}
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
		for range 10 {
			made, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			sinks := [2]*sink{newSink(), newSink()}
			var wg sync.WaitGroup
			for i, l := range made {
				sinks[i].onFrame = func(h *wire.Header, b []byte) error { return checkFill(b, int(h.Call)) }
				l.Start(sinks[i])
				for c := range 8 {
					wg.Go(func() {
						for j := 0; send(l, c*1000+j, 32) == nil; j++ {
						}
					})
				}
			}
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
			first := rng.IntN(2)
			for range 3 {
				wg.Go(func() { made[first].Close(nil) })
			}
			require.NoError(t, ended(t, made[first], sinks[first]))
			made[1-first].Close(nil)
			ended(t, made[1-first], sinks[1-first])
			within(t, "the callers", wg.Wait)
			require.Zero(t, sinks[0].after+sinks[1].after, "frames after Closed")
		}
		for _, f := range fabrics {
			require.Zero(t, f.Stats().LostDrains)
			require.Zero(t, f.Stats().RNR)
		}
	})
}

// A fabric closes while links are being made over it (case 72): each attempt
// ends with an error or in a link that ends, and nothing is left.
func TestFabricCloseDuringSetup(t *testing.T) {
	for range 20 {
		t.Run("", func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{})
			cfg := Config{SQDepth: 16, RQDepth: 8, SlotSize: 512, Warm: 2}
			fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					links, err := join(context.Background(), fabrics, ends)
					if err == nil {
						<-links[0].Done()
						links[1].Close(nil)
					}
				})
			}
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			within(t, "Fabric.Close", func() { require.NoError(t, fabrics[0].Close()) })
			within(t, "the attempts", wg.Wait)
		})
	}
}
