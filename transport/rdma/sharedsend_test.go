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
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// scarce has 8 receive slots and 4 send slots for all.
func scarce() Config {
	cfg := sharing
	cfg.SharedSlots = 8
	return cfg
}

func sharedSendsOf(f *Fabric) *sharedSends {
	for _, d := range f.devices {
		return d.pollers[0].sends
	}
	return nil
}

// Links that wait for slots are given one in turn.
func TestSharedSendsInTurn(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*Fabric{ends[0].fabric(t, scarce()), ends[1].fabric(t, sharing)}
	var duos []*duo
	for range 4 {
		duos = append(duos, newDuo(t, fabrics, ends))
	}
	var held []transport.Slot
	for range 4 {
		slot, err := duos[3].links[0].Reserve(context.Background(), transport.Small, 8)
		require.NoError(t, err)
		held = append(held, slot)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := duos[0].links[0].Reserve(over, transport.Small, 8)
	require.ErrorIs(t, err, context.Canceled, "there are no more")
	order := make(chan int, 9)
	for i := range 9 {
		l := duos[i/3].links[0].(*link)
		go func() {
			slot, err := l.Reserve(context.Background(), transport.Class(i%2), 8) // Small and Bulk
			if err == nil {
				order <- i / 3
				l.Discard(slot)
			}
		}()
		within(t, "a waiter", func() {
			for l.send.waiting.n.Load() != int32(i%3+1) {
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	duos[3].links[0].Discard(held[0])
	for i := range 9 {
		within(t, "the next", func() { require.Equal(t, i%3, <-order) })
	}
	for _, slot := range held[1:] {
		duos[3].links[0].Discard(slot)
	}
	complete(t, fabrics)
}

// A slot given back by one link goes to callers of another, whatever the first did
// with it: sent it, gave it back, or died.
func TestSharedSendsPassOn(t *testing.T) {
	for name, give := range map[string]func(l *link, s transport.Slot, sim *simverbs.Fabric){
		"discarded": func(l *link, s transport.Slot, _ *simverbs.Fabric) { l.Discard(s) },
		"sent": func(l *link, s transport.Slot, _ *simverbs.Fabric) {
			l.Commit(s, &wire.Header{Kind: wire.Ack, Lane: transport.LaneID})
			l.Flush()
		},
		"dead before": func(l *link, s transport.Slot, _ *simverbs.Fabric) {
			l.Close(nil)
			l.Discard(s)
		},
		"dead after": func(l *link, s transport.Slot, _ *simverbs.Fabric) {
			l.Commit(s, &wire.Header{Kind: wire.Ack, Lane: transport.LaneID})
			l.Close(nil)
		},
		"refused": func(l *link, s transport.Slot, sim *simverbs.Fabric) {
			sim.FailCall("a", "ibv_post_send", 1, syscall.ENOMEM)
			l.Commit(s, &wire.Header{Kind: wire.Ack, Lane: transport.LaneID})
			l.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			sim, ends := simEnds(t, simverbs.Config{})
			fabrics := [2]*Fabric{ends[0].fabric(t, scarce()), ends[1].fabric(t, sharing)}
			first, second := newDuo(t, fabrics, ends), newDuo(t, fabrics, ends)
			l := first.links[0].(*link)
			var held []transport.Slot
			for range 4 {
				slot, err := l.Reserve(context.Background(), transport.Small, 0)
				require.NoError(t, err)
				held = append(held, slot)
			}
			sent := make(chan error, 1)
			go func() { sent <- send(second.links[0], 0, 8) }()
			within(t, "the waiter", func() {
				for second.links[0].(*link).send.waiting.n.Load() == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			})
			give(l, held[0], sim)
			within(t, "the slot", func() { require.NoError(t, <-sent) })
			second.sinks[1].await(t, 1)
			for _, slot := range held[1:] {
				l.Discard(slot)
			}
			first.close()
			complete(t, fabrics)
		})
	}
}

// A caller keeps a slot for longer than a drain may take: its link ends all the same,
// and the slot is another's when it comes back.
func TestSharedSlotKept(t *testing.T) {
	for _, returned := range []bool{true, false} {
		t.Run(fmt.Sprintf("returned=%v", returned), func(t *testing.T) {
			if returned {
				checkLeaks(t) // its memory is not kept
			}
			synctest.Test(t, func(t *testing.T) {
				_, ends := simEnds(t, simverbs.Config{})
				fabrics := [2]*Fabric{ends[0].fabric(t, scarce()), ends[1].fabric(t, sharing)}
				d := newDuo(t, fabrics, ends)
				slot, err := d.links[0].Reserve(context.Background(), transport.Small, 8)
				require.NoError(t, err)
				start := time.Now()
				d.close()
				require.Equal(t, drainTime, time.Since(start))
				require.EqualValues(t, 1, fabrics[0].Stats().LostDrains)
				next := newDuo(t, fabrics, ends)
				next.talk(t)
				require.Equal(t, 3, freeSends(sharedSendsOf(fabrics[0])))
				fill(slot.Payload, 1)
				if returned {
					require.Error(t, d.links[0].Commit(slot, &wire.Header{Kind: wire.Call}))
					d.links[0].Discard(slot)
					next.talk(t)
					complete(t, fabrics)
				}
				next.close()
				closeAll(t, fabrics)
				if !returned {
					fill(slot.Payload, 1) // its memory is there
				}
			})
		})
	}
}

// Callers stand still in Commit, after the look whether the link is alive, for as long
// as a drain may take, or longer: their slots are another's all the same.
func TestSharedSlotsCommittedLate(t *testing.T) {
	for _, late := range []time.Duration{drainTime, 2 * drainTime} {
		t.Run(late.String(), func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				_, ends := simEnds(t, simverbs.Config{})
				fabrics := [2]*Fabric{ends[0].fabric(t, scarce()), ends[1].fabric(t, sharing)}
				d, next := newDuo(t, fabrics, ends), newDuo(t, fabrics, ends)
				l := d.links[0].(*link)
				var callers sync.WaitGroup
				for class, h := range map[transport.Class]wire.Header{
					transport.Small:   {Kind: wire.Call, Lane: transport.LaneID},
					transport.Control: {Kind: wire.Ping},
				} {
					for range 2 {
						slot, err := l.Reserve(context.Background(), class, 8)
						require.NoError(t, err)
						callers.Go(func() {
							time.Sleep(late)
							l.draft(uint32(slot.Token), h)
							l.send.published.Push(uint32(slot.Token))
							l.gaveBack()
						})
					}
				}
				d.close()
				callers.Wait()
				next.talk(t)
				complete(t, fabrics)
				next.close()
				closeAll(t, fabrics)
			})
		})
	}
}

// Completions of sends never come: the slots are free when the QP is destroyed.
func TestSharedSendsLost(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		lossy := true
		_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
			OnCompletion: func(c simverbs.Completion, _ *rand.Rand) simverbs.Fate {
				return simverbs.Fate{Drop: lossy && c.Host == "a" && c.Send}
			},
		}})
		fabrics := [2]*Fabric{ends[0].fabric(t, scarce()), ends[1].fabric(t, sharing)}
		d := newDuo(t, fabrics, ends)
		for i := range 3 {
			require.NoError(t, send(d.links[0], i, 8))
		}
		d.close()
		require.EqualValues(t, 1, fabrics[0].Stats().LostDrains)
		lossy = false
		next := newDuo(t, fabrics, ends)
		next.talk(t)
		next.close()
		complete(t, fabrics)
		closeAll(t, fabrics)
	})
}

// Chunks alone, which leave credit to small messages, come to where the peer grants
// more, whatever its window.
func TestSharedChunksAlone(t *testing.T) {
	for _, depth := range []int{8, 9, 12, 16} {
		t.Run(fmt.Sprintf("window=%d", depth), func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{})
			cfg := sharing
			cfg.RQDepth = depth
			_, links := pair(t, ends, cfg)
			s := newSink()
			links[0].Start(newSink())
			links[1].Start(s)
			within(t, "the chunks", func() {
				for i := range 100 {
					slot, err := links[0].Reserve(context.Background(), transport.Bulk, 8)
					require.NoError(t, err)
					fill(slot.Payload, i)
					require.NoError(t, links[0].Commit(slot, &wire.Header{Kind: wire.Call, Lane: transport.LaneID, Call: uint64(i), Total: 8}))
					links[0].Flush()
				}
			})
			s.await(t, 100)
		})
	}
}

// Slots that come free together go to as many links.
func TestSharedSendsOneEach(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*Fabric{ends[0].fabric(t, scarce()), ends[1].fabric(t, sharing)}
	var links [3]*link
	for i := range links {
		links[i] = newDuo(t, fabrics, ends).links[0].(*link)
	}
	holder := newDuo(t, fabrics, ends).links[0].(*link)
	var held []transport.Slot
	for range 4 {
		slot, err := holder.Reserve(context.Background(), transport.Small, 8)
		require.NoError(t, err)
		held = append(held, slot)
	}
	var callers sync.WaitGroup
	release := make(chan struct{})
	for _, l := range links {
		for range 3 {
			callers.Go(func() {
				slot, err := l.Reserve(context.Background(), transport.Small, 8)
				if err != nil {
					t.Error(err)
					return
				}
				<-release
				l.Discard(slot)
			})
		}
		within(t, "waiters", func() {
			for l.send.waiting.n.Load() != 3 {
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	r := holder.send
	for _, slot := range held[:3] {
		r.unused(uint32(slot.Token))
		r.put(uint32(slot.Token))
	}
	r.serve()
	for _, l := range links {
		require.EqualValues(t, 2, l.send.waiting.n.Load())
	}
	close(release)
	holder.Discard(held[3])
	within(t, "the callers", callers.Wait)
	complete(t, fabrics)
}
