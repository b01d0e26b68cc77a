package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// watched counts what a fabric tells its watchers.
func watched(f *Fabric) (told *atomic.Int32, stop func()) {
	told = new(atomic.Int32)
	return told, f.Watch(func() { told.Add(1) })
}

// eventsOnly is small for virtual time, which a spinning goroutine would stop.
func eventsOnly() Config {
	cfg := small
	cfg.Poll = EventsOnly
	return cfg
}

// The device is removed without an event, under links, a pool and a half: all
// that the fabric holds of it is released, so that the removal can end. When it
// is back, watchers are told, and links are made (case 61).
func TestDeviceRemovedAndBack(t *testing.T) {
	for _, warm := range []int{-1, 3} {
		checkLeaks(t)
		synctest.Test(t, func(t *testing.T) {
			sim, ends := simEnds(t, simverbs.Config{})
			cfg := eventsOnly()
			cfg.Warm = warm
			fabrics, links := pair(t, ends, cfg)
			told, stop := watched(fabrics[0])
			defer stop()
			s := newSink()
			links[0].Start(s)
			half, err := fabrics[0].Prepare(context.Background(), ends[0].addr)
			require.NoError(t, err)

			removed := time.Now()
			sim.RemoveDevice("a", "sim0")
			var why *RemovedError
			require.ErrorAs(t, ended(t, links[0], s), &why)
			require.Equal(t, RemotePath, ClassOf(why))
			require.LessOrEqual(t, time.Since(removed), lookInterval)
			require.Error(t, fabrics[0].Usable(ends[0].addr))
			half.Abort()
			time.Sleep(time.Second) // pollers wake each 10 ms
			require.False(t, sim.Opened("a", "sim0"), "the removal waits for us")
			require.Zero(t, fabrics[0].Stats().QPs)
			time.Sleep(time.Minute)
			require.Zero(t, told.Load())

			sim.AddDevice("a", "sim0")
			time.Sleep(lookInterval + 2*settleTime)
			require.EqualValues(t, 1, told.Load())
			links[1].Close(nil)
			again, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			exchange(t, again)
			stop()
			sim.RemoveDevice("a", "sim0")
			time.Sleep(2 * lookInterval)
			sim.AddDevice("a", "sim0")
			time.Sleep(2 * lookInterval)
			require.EqualValues(t, 1, told.Load(), "it was stopped")
			closeAll(t, fabrics)
		})
	}
}

// A device that died is closed at once, and looked after until it can be opened.
func TestDeviceRevives(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		sim, ends := simEnds(t, simverbs.Config{})
		cfg := eventsOnly()
		cfg.Warm = 2
		fabrics, links := pair(t, ends, cfg)
		require.NoError(t, fabrics[0].Prewarm(context.Background()))
		told, stop := watched(fabrics[0])
		defer stop()
		s := newSink()
		links[0].Start(s)
		before := fabrics[0].Stats()
		sim.KillDevice("a", "sim0")
		var why *EventError
		require.ErrorAs(t, ended(t, links[0], s), &why)
		links[1].Close(nil)
		time.Sleep(10 * time.Second)
		require.False(t, sim.Opened("a", "sim0"))
		require.ErrorIs(t, fabrics[0].Usable(ends[0].addr), syscall.ENODEV)
		require.Zero(t, told.Load())
		stats := fabrics[0].Stats()
		require.Zero(t, stats.PinnedBytes)
		require.Equal(t, before.PoolMisses, stats.PoolMisses, "what was counted stays")

		sim.ReviveDevice("a", "sim0")
		time.Sleep(2 * lookInterval)
		require.EqualValues(t, 1, told.Load())
		again, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		exchange(t, again)
		closeAll(t, fabrics)
	})
}

// listed is a provider that has a listing of devices wait for what a test does.
type listed struct {
	verbs.Provider
	before func()
}

func (p listed) Devices() ([]string, error) {
	p.before()
	return p.Provider.Devices()
}

// The fabric closes while the lookout is about to open a device that broke: it
// stays closed.
func TestCloseDuringLook(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		sim, ends := simEnds(t, simverbs.Config{})
		var broke atomic.Bool
		var f *Fabric
		closed := make(chan error, 1)
		f = NewOn(listed{ends[0].provider, func() {
			if !broke.CompareAndSwap(true, false) {
				return
			}
			go func() { closed <- f.Close() }()
			synctest.Wait() // it is closed, and waits for the lookout
		}}, eventsOnly())
		require.NoError(t, f.Usable(ends[0].addr))
		sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventDeviceFatal})
		time.Sleep(settleTime / 2) // it is dropped, and not opened again yet
		broke.Store(true)
		require.NoError(t, <-closed)
		require.False(t, sim.Opened("a", "sim0"))
		_, err := f.ports()
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// What comes up is told once for each change, however many events it has;
// what goes down is not.
func TestWatchPorts(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		sim, ends := simEnds(t, simverbs.Config{})
		f := ends[0].fabric(t, eventsOnly())
		require.NoError(t, f.Usable(ends[0].addr))
		told, stop := watched(f)
		defer stop()
		time.Sleep(10 * time.Second)
		require.Zero(t, told.Load())
		sim.SetPort("a", "sim0", 1, false)
		time.Sleep(time.Second)
		require.Zero(t, told.Load())
		require.Error(t, f.Usable(ends[0].addr))
		sim.SetPort("a", "sim0", 1, true)
		for range 5 {
			time.Sleep(settleTime / 10)
			sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: 1})
		}
		time.Sleep(time.Second)
		require.NotZero(t, told.Load())
		require.LessOrEqual(t, told.Load(), int32(2), "events of one change are told one by one")
		require.NoError(t, f.Usable(ends[0].addr))
		require.NoError(t, f.Close())
	})
}

// The GID goes to another index, or away, between Prepare and Connect, with its
// event still on its way: a link is made by the new index or not at all, and
// none stays that leaves by another's GID (case 44).
func TestGIDMovesDuringConnect(t *testing.T) {
	entry := func(index int, ip string) verbs.GIDEntry {
		return verbs.GIDEntry{Index: index, GID: gid(ip), Type: verbs.GIDRoCEv2}
	}
	for _, c := range []struct {
		name  string
		gids  []verbs.GIDEntry
		lives bool
	}{
		{"moved", []verbs.GIDEntry{entry(7, "10.8.0.1")}, true},
		{"gone", []verbs.GIDEntry{entry(7, "10.8.0.77")}, false},
		{"another has its place", []verbs.GIDEntry{entry(3, "10.8.0.77"), entry(7, "10.8.0.1")}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkLeaks(t)
			sim, ends := simEnds(t, simverbs.Config{})
			fabrics := [2]*Fabric{ends[0].fabric(t, small), ends[1].fabric(t, small)}
			var halves [2]transport.Half
			for i, f := range fabrics {
				var err error
				halves[i], err = f.Prepare(context.Background(), ends[i].addr)
				require.NoError(t, err)
			}
			h := halves[0].(*half)
			require.Equal(t, 3, h.from.entry.Index)
			sim.SetGIDs("a", "sim0", 1, c.gids)
			l, err := h.Connect(context.Background(), 1, halves[1].Offer())
			halves[1].Abort()
			if c.lives {
				require.NoError(t, err)
				require.Equal(t, 7, l.(*link).from.Load().entry.Index)
				l.Close(nil)
				return
			}
			if err == nil && l.(*link).from.Load().entry.Index == 7 {
				l.Close(nil) // the event was faster
			} else if err == nil {
				within(t, "the end of a stray", func() { <-l.Done() })
			}
		})
	}
}

// An address goes from a port under its links: they end, and those of others
// stay.
func TestGIDGoes(t *testing.T) {
	checkLeaks(t)
	addrs := []netip.Addr{netip.MustParseAddr("10.8.0.1"), netip.MustParseAddr("10.8.0.9")}
	sim, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{
		{Name: "a", Devices: []simverbs.Device{{Ports: []simverbs.Port{{Addrs: addrs}}}}}, {Name: "b"},
	}})
	fabrics, stays := pair(t, ends, small)
	goes := [2]end{{ends[0].provider, tcpAddr("10.8.0.9")}, ends[1]}
	made, err := join(context.Background(), fabrics, goes)
	require.NoError(t, err)
	s := newSink()
	made[0].Start(s)
	gids, err := stays[0].ep.dev.ctx.QueryGIDs(1)
	require.NoError(t, err)
	kept := gids[:0:0]
	for _, g := range gids {
		if g.GID != gid("10.8.0.9") {
			kept = append(kept, g)
		}
	}
	sim.SetGIDs("a", "sim0", 1, kept)
	var why *EventError
	require.ErrorAs(t, ended(t, made[0], s), &why)
	require.Equal(t, verbs.EventGIDChange, why.Event.Type)
	made[1].Close(nil)
	exchange(t, [2]transport.Link{stays[0], stays[1]})
}

// The device says that a QP failed that waits in the pool, or for its peer: no
// link gets it.
func TestSpoiledInThePool(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	cfg := small
	cfg.Warm = 2
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	require.NoError(t, fabrics[0].Prewarm(context.Background()))
	within(t, "a full pool", func() {
		for fabrics[0].Stats().Pooled < 2 {
			time.Sleep(time.Millisecond)
		}
	})
	d := fabrics[0].devices["sim0"]
	spoil := func(qpn uint32) {
		sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventQPFatal, QPNum: qpn})
		within(t, "the event", func() {
			for d.byNumber(qpn).spoiled.Load() == nil {
				time.Sleep(time.Millisecond)
			}
		})
	}
	var pooled []uint32
	d.mu.Lock()
	for ep := range d.endpoints {
		pooled = append(pooled, ep.qp.Num())
	}
	d.mu.Unlock()
	for _, qpn := range pooled {
		spoil(qpn)
	}
	h, err := fabrics[0].Prepare(context.Background(), ends[0].addr)
	require.NoError(t, err)
	require.NotContains(t, pooled, h.Offer().QPN)

	spoil(h.Offer().QPN)
	peer, err := fabrics[1].Prepare(context.Background(), ends[1].addr)
	require.NoError(t, err)
	defer peer.Abort()
	var why *EventError
	_, err = h.Connect(context.Background(), 1, peer.Offer())
	require.ErrorAs(t, err, &why)
	within(t, "the end of the spoiled", func() {
		for fabrics[0].Stats().Destroyed < 3 {
			time.Sleep(time.Millisecond)
		}
	})
}

// slowMR is deregistered when a test says so.
type slowMR struct {
	verbs.MR
	begun, end chan struct{}
}

func (m slowMR) Deregister() error {
	close(m.begun)
	<-m.end
	return m.MR.Deregister()
}

// The number of a QP that is destroyed is another's at once: what the device says of
// it concerns that one, although the memory of the first is not released yet.
func TestQPNumberRecurs(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{LowestQPN: true})
	fabrics, links := pair(t, ends, small)
	ep := links[0].ep
	slow := slowMR{ep.rings.mr, make(chan struct{}), make(chan struct{})}
	ep.rings.mr = slow
	t.Cleanup(func() { close(slow.end) })
	for _, l := range links {
		l.fail(errors.New("no life follows"), false)
	}
	within(t, "the end of the QP", func() { <-slow.begun })
	made, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	require.Equal(t, ep.qp.Num(), made[0].(*link).ep.qp.Num())
	sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventQPFatal, QPNum: ep.qp.Num()})
	within(t, "the end of the link", func() { <-made[0].Done() })
	require.Nil(t, ep.spoiled.Load())
	made[1].Close(nil)
}

func run(t testing.TB, command string) {
	t.Helper()
	args := strings.Fields(command)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// The same on rdma_rxe: `rdma link del` waits until the last process has closed
// the device, so it ends soon, and links are made again once it is back.
func TestDeviceRemovedOnRXE(t *testing.T) {
	ends := realEnds(t)
	checkLeaks(t)
	fabrics, links := pair(t, ends, Config{})
	told, stop := watched(fabrics[0])
	defer stop()
	sinks := [2]*sink{newSink(), newSink()}
	for i, l := range links {
		l.Start(sinks[i])
	}
	run(t, "timeout 20 rdma link del rxe0")
	var why *RemovedError
	require.ErrorAs(t, ended(t, links[0], sinks[0]), &why)
	links[1].Close(nil)
	require.Error(t, fabrics[0].Usable(ends[0].addr))
	run(t, "rdma link add rxe0 type rxe netdev va")
	within(t, "news of the device", func() {
		for told.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
	})
	again, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	exchange(t, again)
}

// The network interface goes down under many links, and sends fail locally: it
// is the path's fault, and the breaker stays closed.
func TestPortDownOnRXE(t *testing.T) {
	ends := realEnds(t)
	checkLeaks(t)
	fabrics := [2]*Fabric{ends[0].fabric(t, small), ends[1].fabric(t, small)}
	told, stop := watched(fabrics[0])
	defer stop()
	var links [][2]transport.Link
	var sinks []*sink
	for range 2 * breakerFaults {
		made, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		s := newSink()
		made[0].Start(s)
		made[1].Start(newSink())
		links, sinks = append(links, made), append(sinks, s)
	}
	run(t, "ip link set va down")
	for i, l := range links {
		_ = send(l[0], 1, 8)
		require.Equal(t, RemotePath, ClassOf(ended(t, l[0], sinks[i])))
		l[1].Close(nil)
	}
	run(t, "ip link set va up")
	run(t, "ip -batch /run/verbena-routes")
	within(t, "news of the port", func() {
		for told.Load() == 0 || fabrics[0].Usable(ends[0].addr) != nil {
			time.Sleep(time.Millisecond)
		}
	})
	again, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	exchange(t, again)
}
