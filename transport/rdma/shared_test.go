package rdma

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

func TestSharedConformance(t *testing.T) {
	for name, ends := range map[string]func(t *testing.T) [2]end{
		"sim":  func(t *testing.T) [2]end { _, ends := simEnds(t, simverbs.Config{}); return ends },
		"spec": func(t *testing.T) [2]end { _, ends := simEnds(t, simverbs.Config{Model: simverbs.Spec}); return ends },
		"rxe":  func(t *testing.T) [2]end { return realEnds(t) },
	} {
		t.Run(name, func(t *testing.T) {
			linktest.Run(t, func(t *testing.T) (a, b transport.Link) {
				e := ends(t)
				cfg := Config{Dedicated: -1, SharedSlots: 256}
				fabrics := [2]*Fabric{e[0].fabric(t, cfg), e[1].fabric(t, cfg)}
				links, err := join(context.Background(), fabrics, e)
				require.NoError(t, err)
				require.True(t, links[0].(*link).ep.shares)
				return links[0], links[1]
			})
		})
	}
}

// Many links, half of which end while frames come: the others go on, each slot
// is posted again, and the QPs carry new links.
func TestSharedByMany(t *testing.T) {
	for _, model := range []simverbs.Model{simverbs.RXE, simverbs.Spec} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%d/%d", model, seed+1), func(t *testing.T) {
				checkLeaks(t)
				synctest.Test(t, func(t *testing.T) {
					_, ends := simEnds(t, simverbs.Config{Model: model, LowestQPN: seed%2 == 0, Latency: 5 * time.Microsecond,
						Faults: simverbs.Faults{Seed: seed + 1, Delay: 20 * time.Microsecond}})
					r := rand.New(rand.NewPCG(seed+1, 1))
					fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, sharing)}
					var all []*duo
					add := func() { all = append(all, newDuo(t, fabrics, ends)) }
					for range 3 {
						add()
					}
					for range 20 {
						for _, d := range all {
							d.talk(t)
						}
						i := r.IntN(len(all))
						d := all[i]
						for n := range r.IntN(6) {
							require.NoError(t, send(d.links[0], d.sent+n, 8))
						}
						time.Sleep(time.Duration(r.IntN(30)) * time.Microsecond)
						d.links[r.IntN(2)].Close(nil)
						d.close()
						all = slices.Delete(all, i, i+1)
						add()
					}
					for _, d := range all {
						d.talk(t)
						d.close()
					}
					for _, f := range fabrics {
						require.Zero(t, f.Stats().LostDrains)
						require.Zero(t, f.Stats().RNR)
					}
					complete(t, fabrics)
					closeAll(t, fabrics)
				})
			})
		}
	}
}

// A shared queue in error ends the device's links, and the device is opened anew.
func TestSharedQueueFails(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, sharing)
	s := newSink()
	links[0].Start(s)
	sim.FailSRQs("a", "sim0")
	var event *EventError
	require.ErrorAs(t, ended(t, links[0], s), &event)
	require.Equal(t, verbs.EventSRQErr, event.Event.Type)
	links[1].Close(nil)
	made, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	exchange(t, made)
}

// The device does not take a shared receive again: likewise.
func TestSharedPostFails(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, sharing)
	s := newSink()
	links[0].Start(s)
	sim.FailCall("a", "ibv_post_srq_recv", 1, syscall.EIO)
	require.NoError(t, send(links[1], 1, 8))
	require.ErrorIs(t, ended(t, links[0], s), syscall.EIO)
	links[1].Close(nil)
	made, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	exchange(t, made)
}

// So it is without any configuration, from the 33rd on, and what a link that is gone had goes
// to the next.
func TestDedicatedByDefault(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	cfg := Config{SQDepth: 16, RQDepth: 8, SlotSize: 512, Warm: -1, Poll: EventsOnly}
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	var duos []*duo
	for i := range DefaultDedicated + 2 {
		duos = append(duos, newDuo(t, fabrics, ends))
		for _, l := range duos[i].links {
			require.Equal(t, i >= 32, l.(*link).ep.shares, "link %d", i)
		}
	}
	for _, l := range duos[0].links {
		l.(*link).fail(net.ErrClosed, false)
	}
	duos[0].close()
	duos[0] = newDuo(t, fabrics, ends)
	require.False(t, duos[0].links[0].(*link).ep.shares)
	for _, d := range duos {
		d.talk(t)
	}
	complete(t, fabrics)
}

// Endpoints beyond Dedicated share, and pin no receive slot.
func TestDedicatedFirst(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	cfg := sharing
	cfg.Dedicated = 1
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	first, second := newDuo(t, fabrics, ends), newDuo(t, fabrics, ends)
	require.False(t, first.links[0].(*link).ep.shares)
	require.True(t, second.links[0].(*link).ep.shares)
	require.Equal(t, 1, fabrics[0].Stats().Sharing)
	first.talk(t)
	second.talk(t)
	page := func(n int) int64 { return int64(n+4095) / 4096 * 4096 }
	const own = 4 * 136
	require.Equal(t, page((16-4+8)*512+own)+page(16*512+chunkSharers*own)+page(32*512), fabrics[0].Stats().PinnedBytes)
	first.close()
	second.close()
	complete(t, fabrics)
}

// Places in the CQ, among the dedicated, and in the poller's table by QP number are
// given back when an endpoint is destroyed, and when it could not be made.
func TestSharedGivesBack(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	cfg := sharing
	cfg.Dedicated = 1
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	require.NoError(t, fabrics[0].Usable(ends[0].addr))
	dev := func() *device {
		for _, d := range fabrics[0].devices {
			return d
		}
		return nil
	}()
	p := dev.pollers[0]
	places := func() [3]int {
		p.turn.Lock()
		defer p.turn.Unlock()
		dev.mu.Lock()
		defer dev.mu.Unlock()
		owners := 0
		if s := p.shared.Load(); s != nil {
			owners = len(s.owners)
		}
		return [3]int{p.room, dev.dedicated, owners}
	}
	before := places()
	own := newDuo(t, fabrics, ends)
	const slots = 32 + 16                              // that are shared: they stay
	sim.FailCall("a", "ibv_reg_mr", 2, syscall.ENOMEM) // of the shared receives, when the poller knows the QP
	_, err := join(t.Context(), fabrics, ends)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Equal(t, [3]int{before[0] - 24 - slots, 1, 0}, places())
	shares := newDuo(t, fabrics, ends)
	require.Equal(t, [3]int{before[0] - 24 - slots - 4, 1, 1}, places())
	for _, d := range []*duo{own, shares} {
		d.links[0].(*link).fail(net.ErrClosed, false)
		d.close()
	}
	require.Equal(t, [3]int{before[0] - slots, 0, 0}, places())
}

// A frame of another epoch used a shared receive: no credit is granted for it,
// and the slot is posted again.
func TestSharedStaleFrame(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, sharing)
	s := newSink()
	links[0].Start(s)
	links[1].epoch++
	require.NoError(t, send(links[1], 1, 8))
	within(t, "the frame of another epoch", func() {
		for links[0].Info().Stats.Stale == 0 {
			time.Sleep(time.Millisecond)
		}
		links[0].ep.poller.sync()
	})
	require.Zero(t, s.count())
	require.EqualValues(t, sharing.RQDepth, links[0].grants.Stamp())
	complete(t, fabrics)
}

// A peer that sends more than it may ends its own link, and takes the receives of
// no other; before Start as well, when frames are kept.
func TestSharedOverrun(t *testing.T) {
	for _, started := range []bool{false, true} {
		for extra := range 2 {
			t.Run(fmt.Sprintf("started=%v/extra=%d", started, extra), func(t *testing.T) {
				checkLeaks(t)
				_, ends := simEnds(t, simverbs.Config{})
				fabrics, links := pair(t, ends, sharing)
				other, s := newDuo(t, fabrics, ends), newSink()
				if started {
					links[0].Start(s)
				}
				links[1].window = credit.NewWindow(1 << 20)
				links[1].send.share.window = links[1].window
				release, held := make(chan struct{}), make(chan struct{})
				links[0].ep.poller.do(func() { close(held); <-release })
				<-held
				for i := range sharing.RQDepth + extra {
					require.NoError(t, send(links[1], i, 8))
				}
				within(t, "the frames", func() {
					for links[1].send.outstanding() {
						links[1].ep.poller.sync()
					}
				})
				close(release)
				links[0].ep.poller.sync()
				other.talk(t)
				var wrong *wire.ParseError
				if extra == 0 {
					require.NoError(t, links[0].dead())
				} else {
					require.ErrorAs(t, links[0].dead(), &wrong)
				}
			})
		}
	}
}

// Frames that nobody takes yet hold no slot: others reuse them all meanwhile.
func TestSharedBeforeStart(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	cfg := sharing
	cfg.SharedSlots = 16
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	waiting, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	for i := range 4 {
		require.NoError(t, send(waiting[1], i, 8))
	}
	busy := newDuo(t, fabrics, ends)
	busy.sent = 100 // frames that cannot be taken for those
	for range 100 {
		require.NoError(t, send(busy.links[1], busy.sent, 8))
		busy.sent++
	}
	busy.sinks[0].await(t, 100)
	complete(t, fabrics)
	s := newSink()
	waiting[0].Start(s)
	s.await(t, 4)
	for i, b := range s.got {
		require.NoError(t, checkFill(b, i))
	}
}

// Frames of many links find no receive, for longer than six retries take. Each
// arrives, once, in order, and all links live (case 20 where it is allowed).
func TestSharedTooFew(t *testing.T) {
	for _, model := range []simverbs.Model{simverbs.RXE, simverbs.Spec} {
		t.Run(fmt.Sprint(model), func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				_, ends := simEnds(t, simverbs.Config{Model: model, Latency: 5 * time.Microsecond})
				cfg := sharing
				cfg.RQDepth, cfg.SharedSlots = 16, 8
				fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, cfg)}
				var all []*duo
				for range 16 {
					all = append(all, newDuo(t, fabrics, ends))
				}
				taker := all[0].links[1].(*link).ep.poller
				for range 20 {
					taker.do(func() { time.Sleep(100 * time.Millisecond) })
					for _, d := range all {
						for range 12 { // that its window allows
							require.NoError(t, send(d.links[0], d.sent, 8))
							d.sent++
						}
					}
					for _, d := range all {
						d.sinks[1].await(t, d.sent)
					}
				}
				for _, d := range all {
					for i, b := range d.sinks[1].got {
						require.NoError(t, checkFill(b, i))
					}
					d.close()
				}
				complete(t, fabrics)
				for _, f := range fabrics {
					require.Zero(t, f.Stats().RNR)
					require.NoError(t, f.Close())
				}
			})
		})
	}
}

// Receives are added with the QPs that share them, up to the limit, and stay.
func TestSharedReceivesGrow(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	cfg := sharing
	cfg.SharedSlots = 2*chunkSlots + 10
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	require.NoError(t, fabrics[0].Usable(ends[0].addr))
	require.Zero(t, fabrics[0].Stats().PinnedBytes, "none shares yet")
	d := newDuo(t, fabrics, ends)
	s := d.links[0].(*link).ep.poller.shared.Load()
	for _, step := range []struct{ sharers, slots int }{
		{1, chunkSlots}, {chunkSharers, chunkSlots}, {chunkSharers + 1, 2 * chunkSlots},
		{chunkSharers, 2 * chunkSlots}, {1 << 16, 2*chunkSlots + 10},
	} {
		require.NoError(t, s.fit(step.sharers))
		s.turn.Lock()
		require.Equal(t, step.slots, s.outstanding)
		s.turn.Unlock()
		d.talk(t)
	}
	for range 40 { // frames pass by slots of each chunk
		d.talk(t)
	}
	d.close()
}

// Twice as many links as a CQ has room for where none shares: a frame each way on
// each at once, and little memory.
func TestSharedByHundreds(t *testing.T) {
	onBoth(t, func(t *testing.T, ends [2]end) {
		const n = 200
		cfg := Config{Dedicated: -1, Warm: -1}
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
		var all []*duo
		for range n {
			all = append(all, newDuo(t, fabrics, ends))
		}
		for _, f := range fabrics {
			require.LessOrEqual(t, f.Stats().PinnedBytes, int64(chunkSharers*maxPinned))
		}
		for range 5 {
			for _, d := range all {
				for _, l := range d.links {
					require.NoError(t, send(l, d.sent, 64))
				}
				d.sent++
			}
			for _, d := range all {
				for _, s := range d.sinks {
					s.await(t, d.sent)
				}
			}
		}
		for _, d := range all {
			for _, s := range d.sinks {
				for i, b := range s.got {
					require.NoError(t, checkFill(b, i))
				}
			}
			for _, l := range d.links {
				l.Close(nil)
			}
		}
		for _, d := range all {
			for _, l := range d.links {
				<-l.Done()
			}
		}
		complete(t, fabrics)
		for _, f := range fabrics {
			require.Zero(t, f.Stats().LostDrains)
			require.Zero(t, f.Stats().RNR)
		}
	})
}
