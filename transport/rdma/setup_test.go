package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Case 63: each verbs call of set-up fails once, on either side, with each
// errno. The attempt ends with an error that unwraps to it, nothing is left,
// and the next attempt works.
func TestSetupFailures(t *testing.T) {
	calls := []struct {
		cfg  Config
		name string
		nth  int // that fails
	}{
		{small, "ibv_get_device_list", 1}, {small, "ibv_open_device", 1}, {small, "ibv_query_device", 1},
		{small, "ibv_query_port", 1}, {small, "ibv_query_gid_table", 1},
		{small, "ibv_alloc_pd", 1}, {small, "ibv_create_comp_channel", 1}, {small, "ibv_create_cq", 1}, {small, "ibv_reg_mr", 1},
		{sharing, "ibv_reg_mr", 1}, {sharing, "ibv_reg_mr", 2}, {sharing, "ibv_post_srq_recv", 1},
		{small, "ibv_modify_qp INIT", 1}, {small, "ibv_post_recv", 1}, {small, "ibv_modify_qp RTR", 1}, {small, "ibv_modify_qp RTS", 1},
	}
	for _, host := range []string{"a", "b"} {
		for _, call := range calls {
			for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.ENOMEM, syscall.EIO, syscall.ETIMEDOUT} {
				t.Run(fmt.Sprintf("%s/%s/%v", host, call.name, errno), func(t *testing.T) {
					checkLeaks(t)
					sim, ends := simEnds(t, simverbs.Config{})
					fabrics := [2]*Fabric{ends[0].fabric(t, call.cfg), ends[1].fabric(t, call.cfg)}
					sim.FailCall(host, call.name, call.nth, errno)
					_, err := join(context.Background(), fabrics, ends)
					require.ErrorIs(t, err, errno)
					links, err := join(context.Background(), fabrics, ends)
					require.NoError(t, err)
					exchange(t, links)
				})
			}
		}
	}
}

// A device may have shared receive queues in name only: a link has slots of its own
// then, and the next one tries again.
func TestNoSharedQueue(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, sharing)}
	sim.FailCall("a", "ibv_create_srq", 1, syscall.EOPNOTSUPP)
	for _, shares := range []bool{false, true} {
		links, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		require.Equal(t, shares, links[0].(*link).ep.shares)
		require.True(t, links[1].(*link).ep.shares)
		exchange(t, links)
	}
}

// A device that refuses inline data gets QPs without.
func TestNoInline(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	sim.FailCall("a", "ibv_create_qp", 1, syscall.EINVAL)
	sim.FailCall("a", "ibv_create_qp", 2, syscall.EINVAL)
	_, links := pair(t, ends, small)
	require.Less(t, links[0].send.inline, uint32(wire.HeaderSize))
	exchange(t, [2]transport.Link{links[0], links[1]})

	sim.FailCall("b", "ibv_create_qp", 0, syscall.ENOMEM)
	_, err := ends[1].fabric(t, small).Prepare(context.Background(), ends[1].addr)
	require.ErrorIs(t, err, syscall.ENOMEM)
}

func TestUnusable(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	f := ends[0].fabric(t, Config{})
	require.NoError(t, f.Usable(ends[0].addr))
	var none *NoGIDError
	require.ErrorAs(t, f.Usable(tcpAddr("192.168.3.4")), &none)
	require.ErrorContains(t, none, "10.8.0.1", "the candidates are named")
	var addr *AddrError
	require.ErrorAs(t, f.Usable(&net.UnixAddr{Name: "/x"}), &addr)
	require.ErrorAs(t, f.Usable(nil), &addr)
	require.Error(t, ends[0].fabric(t, Config{Device: "mlx5_7"}).Usable(ends[0].addr))

	_, err := f.Prepare(context.Background(), tcpAddr("192.168.3.4"))
	require.ErrorAs(t, err, &none)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Usable(ends[0].addr), net.ErrClosed)
}

// Why RDMA cannot be used is one line that names what is wrong, and no more: a
// device that is not there has no GID table to be empty.
func TestReasonIsOneLine(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{
		{Name: "a", Devices: []simverbs.Device{{Name: "sim0"}, {Name: "sim1"}}}, {Name: "b"},
	}})
	var none *NoGIDError
	var setup *SetupError
	err := ends[0].fabric(t, Config{Device: "mlx5_7"}).Usable(ends[0].addr)
	require.ErrorAs(t, err, &setup)
	require.False(t, errors.As(err, &none), err)

	err = ends[0].fabric(t, Config{Device: "sim0", Port: 2}).Usable(ends[0].addr)
	require.EqualError(t, err, "rdma: sim0: query port 2: the device has 1")

	sim.FailCall("a", "ibv_open_device", 1, syscall.EACCES)
	err = ends[0].fabric(t, Config{}).Usable(tcpAddr("192.168.3.4"))
	require.ErrorIs(t, err, syscall.EACCES, "perhaps that device has the GID")
	require.ErrorAs(t, err, &none)
	require.NotContains(t, err.Error(), "\n")

	sim.FailCall("a", "ibv_open_device", 0, syscall.EACCES)
	err = ends[0].fabric(t, Config{}).Usable(ends[0].addr)
	require.ErrorIs(t, err, syscall.EACCES)
	require.False(t, errors.As(err, &none), err)
	require.NotContains(t, err.Error(), "\n")
}

// Case 44: the GID moves to another index between two links.
func TestGIDMoves(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		sim, ends := simEnds(t, simverbs.Config{})
		cfg := small
		cfg.Poll = EventsOnly
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
		for _, index := range []int{3, 9, 4} {
			sim.SetGIDs("a", "sim0", 1, []verbs.GIDEntry{
				{Index: 0, GID: gid("fe80::1"), Type: verbs.GIDRoCEv2},
				{Index: index, GID: gid("10.8.0.1"), Type: verbs.GIDRoCEv2},
			})
			synctest.Wait() // for the event: a link made before it ends with it
			links, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			exchange(t, links)
		}
	})
}

func TestPathMTUIsTheSmaller(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{
		{Name: "a", Devices: []simverbs.Device{{Ports: []simverbs.Port{{MTU: verbs.MTU1024}}}}},
		{Name: "b"},
	}})
	_, links := pair(t, ends, small)
	for _, l := range links {
		require.Equal(t, 1024, l.Info().MTU)
		require.Equal(t, "sim0/1", l.Info().Device)
	}
	exchange(t, [2]transport.Link{links[0], links[1]})
}

// A QP has no more READs outstanding than its own device and the peer's can, nor is it
// asked for more than its device serves: they may differ.
func TestRdAtomicLimits(t *testing.T) {
	for _, c := range []struct {
		own, peer           verbs.DeviceAttr
		outstanding, served uint8 // of the first
	}{
		{verbs.DeviceAttr{}, verbs.DeviceAttr{}, 16, 16},
		{verbs.DeviceAttr{MaxQPInitRdAtomic: 4}, verbs.DeviceAttr{}, 4, 16},
		{verbs.DeviceAttr{MaxQPRdAtomic: 4}, verbs.DeviceAttr{}, 16, 4},
		{verbs.DeviceAttr{}, verbs.DeviceAttr{MaxQPRdAtomic: 4}, 4, 16},
	} {
		checkLeaks(t)
		_, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{
			{Name: "a", Devices: []simverbs.Device{{Attr: c.own}}}, {Name: "b", Devices: []simverbs.Device{{Attr: c.peer}}},
		}})
		_, links := pair(t, ends, small)
		attr, err := links[0].ep.qp.Query()
		require.NoError(t, err)
		require.Equal(t, []uint8{c.outstanding, c.served}, []uint8{attr.MaxRdAtomic, attr.MaxDestRdAtom}, "%+v", c)
	}
}

// A peer that offers nonsense is refused before the device sees it.
func TestBadOffers(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	f := ends[0].fabric(t, small)
	good := wire.QP{GID: gid("10.8.1.1"), GIDType: uint8(verbs.GIDRoCEv2), QPN: 0x11, Depth: 8, Slot: 512, MTU: 3}
	for field, spoil := range map[string]func(*wire.QP){
		"GID":          func(q *wire.QP) { q.GID = [16]byte{} },
		"GID type":     func(q *wire.QP) { q.GIDType = 1 },
		"receive ring": func(q *wire.QP) { q.Depth = 7 },
		"receive slot": func(q *wire.QP) { q.Slot = 64 },
		"MTU":          func(q *wire.QP) { q.MTU = 6 },
	} {
		h, err := f.Prepare(context.Background(), ends[0].addr)
		require.NoError(t, err)
		bad := good
		spoil(&bad)
		_, err = h.Connect(context.Background(), 1, bad)
		var e *PeerError
		require.ErrorAs(t, err, &e)
		require.Equal(t, field, e.Field)
		_, err = h.Connect(context.Background(), 1, good)
		require.ErrorIs(t, err, net.ErrClosed)
		h.Abort()
	}
	ctx, cancel := context.WithCancel(context.Background())
	h, err := f.Prepare(ctx, ends[0].addr)
	require.NoError(t, err)
	cancel()
	_, err = h.Connect(ctx, 1, good)
	require.ErrorIs(t, err, context.Canceled)
}

// Case 38: QPs beyond the room of the CQ are refused, until others are gone.
func TestAdmission(t *testing.T) {
	eight := func(dedicated int) Config {
		cfg := sharing
		cfg.Dedicated, cfg.SharedSlots = dedicated, 8
		return cfg
	}
	large := eight(32)
	large.SQDepth, large.RQDepth = 32, 16
	for name, tc := range map[string]struct {
		cfg           Config
		cq, qps, need int
	}{
		"dedicated":  {eight(1 << 16), 63, 2, 24},
		"shared":     {eight(-1), 63, 12, 4}, // beside 8 receives and 4 sends: 51
		"mixed":      {eight(1), 63, 7, 4},   // 51 less 24
		"no room":    {large, 127, 6, 4},     // 2 of 48, then 19 beside 12
		"not so few": {eight(32), 63, 2, 16}, // of the 15 that are left
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{
				{Name: "a", Devices: []simverbs.Device{{Attr: verbs.DeviceAttr{MaxCQE: tc.cq}}}}, {Name: "b"},
			}})
			f := ends[0].fabric(t, tc.cfg)
			var halves []transport.Half
			for range tc.qps {
				h, err := f.Prepare(context.Background(), ends[0].addr)
				require.NoError(t, err)
				halves = append(halves, h)
			}
			_, err := f.Prepare(context.Background(), ends[0].addr)
			var full *FullError
			require.ErrorAs(t, err, &full)
			require.Equal(t, FullError{Device: "sim0", QPs: tc.qps, Depth: tc.cq, Need: tc.need}, *full)
			halves[0].Abort()
			within(t, "room", func() {
				for {
					h, err := f.Prepare(context.Background(), ends[0].addr)
					if err == nil {
						h.Abort()
						return
					}
				}
			})
			for _, h := range halves[1:] {
				h.Abort()
			}
		})
	}
}

// A drained QP is used again, for 64 links, each with a PSN of its own (case 2,
// 12, 15).
func TestRecycle(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	cfg := small
	cfg.Warm = 2
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	psns, qps := map[uint32]bool{}, map[uint32]int{}
	rounds := 0
	for ; ; rounds++ {
		links, err := join(context.Background(), fabrics, ends)
		if rounds == 0 {
			require.NoError(t, err)
			sim.FailCall("a", "ibv_create_qp", 0, syscall.ENOMEM) // nothing but reuse from here
		}
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOMEM)
			break
		}
		qp := links[0].(*link).ep.qp
		attr, err := qp.Query()
		require.NoError(t, err)
		qps[qp.Num()]++
		psns[attr.SQPSN] = true
		exchange(t, links)
	}
	most := 0
	for _, n := range qps { // one may have found the pool full after its first life
		most = max(most, n)
	}
	require.Equal(t, maxLives, most)
	require.InDelta(t, rounds, len(psns), 2, "PSNs are random")
	require.Zero(t, fabrics[0].Stats().LostDrains)
	s := fabrics[0].Stats()
	require.NotZero(t, s.PoolHits)
	require.NotZero(t, s.RecycleTime)
	require.NotZero(t, s.MakeTime)
	require.GreaterOrEqual(t, s.Recycled, uint64(maxLives-1))
}

// A completion of a QP's earlier life comes when the QP carries its next link:
// it is counted and concerns nobody (case 9).
func TestStaleCompletion(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	cfg := small
	cfg.Warm = 2
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	lives := map[*endpoint]*link{}
	for i := range 100 {
		made, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		if i == 0 {
			sim.FailCall("a", "ibv_create_qp", 0, syscall.ENOMEM) // few QPs there are
		}
		l := made[0].(*link)
		if old := lives[l.ep]; old != nil {
			for _, kind := range []wrid.Kind{wrid.Send, wrid.Recv} {
				require.NoError(t, send(l, 1, 8)) // so that a send is outstanding
				sim.Inject(l.ep.poller.cq, verbs.WC{
					ID: uint64(wrid.Make(kind, old.generation, l.ep.index, 0)), Status: verbs.WCWRFlushErr, QPNum: l.ep.qp.Num(),
				})
			}
			exchange(t, made)
			require.EqualValues(t, 2, fabrics[0].Stats().Stale)
			return
		}
		lives[l.ep] = l
		made[0].Close(nil)
		made[1].Close(nil)
		<-made[0].Done()
		<-made[1].Done()
	}
	t.Fatal("no QP was used again")
}

// A completion of a QP that is destroyed comes when another QP has its place in
// the poller's table: it belongs to neither of its queues (case 9).
func TestStaleCompletionOfEarlierQP(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*Fabric{ends[0].fabric(t, small), ends[1].fabric(t, small)} // no pool
	var lives [2]*link
	for i := range lives {
		made, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		lives[i] = made[0].(*link)
		if i == 0 {
			exchange(t, made)
			continue
		}
		old, l := lives[0], lives[1]
		require.NotSame(t, old.ep, l.ep)
		require.Equal(t, old.ep.index, l.ep.index)
		sim.Inject(l.ep.poller.cq, verbs.WC{
			ID: uint64(wrid.Make(wrid.Recv, old.generation, l.ep.index, 0)), Status: verbs.WCWRFlushErr, QPNum: old.ep.qp.Num(),
		})
		exchange(t, made)
		require.EqualValues(t, 1, fabrics[0].Stats().Stale)
	}
}

// A link fails while it is being connected: its QP is not drained, reset and
// given to another before the transitions under way are over.
func TestFailureDuringConnect(t *testing.T) {
	checkLeaks(t)
	var mu sync.Mutex
	var transitions []string
	_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{OnCall: func(c simverbs.Call, _ *rand.Rand) syscall.Errno {
		if state, ok := strings.CutPrefix(c.Verb, "ibv_modify_qp "); ok && c.Host == "a" {
			mu.Lock()
			transitions = append(transitions, state)
			mu.Unlock()
		}
		return 0
	}}})
	a, b := ends[0].fabric(t, small), ends[1].fabric(t, small)
	h, err := a.Prepare(context.Background(), ends[0].addr)
	require.NoError(t, err)
	peer, err := b.Prepare(context.Background(), ends[1].addr)
	require.NoError(t, err)
	defer peer.Abort()

	ep := h.(*half).ep
	ep.dev.mu.Lock() // Connect looks whether the device is closed
	done := make(chan transport.Link)
	go func() {
		l, _ := h.Connect(context.Background(), 1, peer.Offer())
		done <- l
	}()
	within(t, "Connect", func() {
		for ep.link.Load() == nil {
			time.Sleep(100 * time.Microsecond)
		}
	})
	ep.link.Load().fail(errors.New("the port is down"), true)
	for range 50 { // time enough for what must not happen
		time.Sleep(time.Millisecond)
	}
	ep.dev.mu.Unlock()
	within(t, "the end", func() {
		if l := <-done; l != nil {
			<-l.Done()
		}
	})
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"INIT", "RTR", "RTS", "ERR", "RESET", "INIT"}, transitions[:6])
}

// Case 17: any number of warm QPs, and an end at once.
func TestWarmSizes(t *testing.T) {
	for _, warm := range []int{-1, 1, 2, 7, 64} {
		t.Run(fmt.Sprint(warm), func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{})
			cfg := small
			cfg.Warm = warm
			fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
			links, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			if warm%2 == 0 {
				exchange(t, links)
			}
		})
	}
}
