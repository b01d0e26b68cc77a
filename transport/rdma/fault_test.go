package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
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

// small keeps tests with many links cheap.
var small = Config{SQDepth: 16, RQDepth: 8, SlotSize: 512, Warm: -1}

// exchange requires that frames pass in both directions.
func exchange(t testing.TB, links [2]transport.Link) {
	t.Helper()
	sinks := [2]*sink{newSink(), newSink()}
	for i, l := range links {
		l.Start(sinks[i])
	}
	const n = 40
	for i := range n {
		require.NoError(t, send(links[0], i, 16))
		require.NoError(t, send(links[1], i, 16))
	}
	for _, s := range sinks {
		s.await(t, n)
	}
	for i, l := range links {
		l.Close(nil)
		require.NoError(t, ended(t, l, sinks[i]))
	}
}

// Case 63: each verbs call of set-up fails once, on either side, with each
// errno. The attempt ends with an error that unwraps to it, nothing is left,
// and the next attempt works.
func TestSetupFailures(t *testing.T) {
	calls := []string{
		"ibv_get_device_list", "ibv_open_device", "ibv_query_device", "ibv_query_port", "ibv_query_gid_table",
		"ibv_alloc_pd", "ibv_create_comp_channel", "ibv_create_cq", "ibv_reg_mr",
		"ibv_modify_qp INIT", "ibv_post_recv", "ibv_modify_qp RTR", "ibv_modify_qp RTS",
	}
	for _, host := range []string{"a", "b"} {
		for _, call := range calls {
			for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.ENOMEM, syscall.EIO, syscall.ETIMEDOUT} {
				t.Run(fmt.Sprintf("%s/%s/%v", host, call, errno), func(t *testing.T) {
					checkLeaks(t)
					sim, ends := simEnds(t, simverbs.Config{})
					cfg := small
					fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
					sim.FailCall(host, call, 1, errno)
					_, err := join(context.Background(), fabrics, ends)
					require.ErrorIs(t, err, errno)
					if call == "ibv_reg_mr" && errno == syscall.ENOMEM { // case 50
						require.ErrorContains(t, err, "RLIMIT_MEMLOCK")
					}
					links, err := join(context.Background(), fabrics, ends)
					require.NoError(t, err)
					exchange(t, links)
				})
			}
		}
	}
}

// A device that refuses inline data gets QPs without.
func TestNoInline(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	sim.FailCall("a", "ibv_create_qp", 1, syscall.EINVAL)
	sim.FailCall("a", "ibv_create_qp", 2, syscall.EINVAL)
	_, links := pair(t, ends, small)
	require.Less(t, links[0].send.inline, wire.HeaderSize)
	exchange(t, [2]transport.Link{links[0], links[1]})

	sim.FailCall("b", "ibv_create_qp", 0, syscall.ENOMEM)
	_, err := ends[1].fabric(t, small).Prepare(context.Background(), ends[1].addr)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "RLIMIT_MEMLOCK")
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

// Case 44: the GID moves to another index between two links.
func TestGIDMoves(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*Fabric{ends[0].fabric(t, small), ends[1].fabric(t, small)}
	for _, index := range []int{3, 9, 4} {
		sim.SetGIDs("a", "sim0", 1, []verbs.GIDEntry{
			{Index: 0, GID: gid("fe80::1"), Type: verbs.GIDRoCEv2},
			{Index: index, GID: gid("10.8.0.1"), Type: verbs.GIDRoCEv2},
		})
		links, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		exchange(t, links)
	}
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
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{
		{Name: "a", Devices: []simverbs.Device{{Attr: verbs.DeviceAttr{MaxCQE: 63}}}}, {Name: "b"},
	}})
	f := ends[0].fabric(t, small) // 24 completions per QP
	var halves []transport.Half
	for range 2 {
		h, err := f.Prepare(context.Background(), ends[0].addr)
		require.NoError(t, err)
		halves = append(halves, h)
	}
	_, err := f.Prepare(context.Background(), ends[0].addr)
	var full *FullError
	require.ErrorAs(t, err, &full)
	require.Equal(t, FullError{Device: "sim0", QPs: 2, Depth: 63, Need: 24}, *full)
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
	halves[1].Abort()
}

// The peer's process dies (case 1, 67): the link fails with the device's
// reason, drains, and its QP is good for the next one.
func TestPeerDies(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, small)
	s := newSink()
	links[0].Start(s)
	sim.KillHost("b")
	require.NoError(t, send(links[0], 1, 8))
	err := ended(t, links[0], s)
	var failed *CompletionError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, verbs.WCRetryExcErr, failed.Status)
	require.ErrorAs(t, send(links[0], 2, 8), &failed)
	require.Zero(t, fabrics[0].Stats().LostDrains)
}

// The device fails one work request of either kind.
func TestErrorCompletions(t *testing.T) {
	for _, sends := range []bool{true, false} {
		for _, status := range []verbs.WCStatus{verbs.WCLocProtErr, verbs.WCWRFlushErr, verbs.WCRNRRetryExcErr, verbs.WCFatalErr} {
			t.Run(fmt.Sprintf("send=%v/%v", sends, status), func(t *testing.T) {
				checkLeaks(t)
				var armed atomic.Bool
				_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
					OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
						if c.Host == "a" && c.Send == sends && c.WC.Status == verbs.WCSuccess && armed.CompareAndSwap(true, false) {
							fate.Status = status
						}
						return fate
					},
				}})
				fabrics, links := pair(t, ends, small)
				s := newSink()
				links[0].Start(s)
				armed.Store(true)
				if sends {
					require.NoError(t, send(links[0], 1, 8))
				} else {
					require.NoError(t, send(links[1], 1, 8))
				}
				var failed *CompletionError
				require.ErrorAs(t, ended(t, links[0], s), &failed)
				require.Equal(t, status, failed.Status)
				require.Zero(t, fabrics[0].Stats().LostDrains)
				if status == verbs.WCRNRRetryExcErr {
					require.EqualValues(t, 1, fabrics[0].Stats().RNR)
				}
			})
		}
	}
}

// After the first error completion of a QP nothing is posted on it (case 7),
// although receives of the same batch have come free.
func TestNoPostAfterError(t *testing.T) {
	checkLeaks(t)
	var posts atomic.Int32
	sim, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{OnCall: func(c simverbs.Call, _ *rand.Rand) syscall.Errno {
		if c.Host == "a" && (c.Verb == "ibv_post_recv" || c.Verb == "ibv_post_send") {
			posts.Add(1)
		}
		return 0
	}}})
	_, links := pair(t, ends, small)
	l, s := links[0], newSink()
	l.Start(s)
	l.ep.poller.sync()
	l.ep.poller.do(func() { // one batch: two frames, then an error
		for i := range 2 {
			require.NoError(t, send(links[1], i, 8))
		}
		posts.Store(0)
		sim.Inject(l.ep.poller.cq, verbs.WC{
			ID: uint64(wrid.Make(wrid.Recv, l.generation, l.ep.index, 7)), Status: verbs.WCLocProtErr, QPNum: l.ep.qp.Num(),
		})
	})
	require.Error(t, ended(t, l, s))
	require.Equal(t, 2, s.count(), "what came before the error is delivered")
	require.Zero(t, posts.Load())
}

// Completions that come twice are counted once (VERBS-FACTS: rxe completes a
// failed work request with its error and then flushed).
func TestDuplicateCompletions(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
		OnCompletion: func(simverbs.Completion, *rand.Rand) simverbs.Fate { return simverbs.Fate{Duplicate: true} },
	}})
	fabrics, links := pair(t, ends, small)
	exchange(t, [2]transport.Link{links[0], links[1]})
	for _, f := range fabrics {
		require.Zero(t, f.Stats().LostDrains)
		require.NotZero(t, f.Stats().Stale)
	}
}

// Completions that never come: the drain ends by its time, the QP is
// destroyed, its memory kept until the device closes. Late ones, up to after a
// new QP has the same number and place, are counted and dropped (case 2, 9, 14).
func TestDrainNeverEnds(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				var lossy atomic.Bool
				_, ends := simEnds(t, simverbs.Config{LowestQPN: true, Faults: simverbs.Faults{
					OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
						if c.Host == "a" && c.WC.Status == verbs.WCWRFlushErr && lossy.Load() {
							fate.Drop = !late
							fate.Delay = 2 * time.Second
						}
						return fate
					},
				}})
				cfg := small
				cfg.Poll = EventsOnly // a spinning goroutine would stop the virtual clock
				fabrics, links := pair(t, ends, cfg)
				s := newSink()
				links[0].Start(s)
				lossy.Store(true)
				start := time.Now()
				links[0].Close(nil)
				require.NoError(t, ended(t, links[0], s))
				require.GreaterOrEqual(t, time.Since(start), drainTime)
				stats := fabrics[0].Stats()
				require.EqualValues(t, 1, stats.LostDrains)
				require.Equal(t, 1, stats.Quarantined)
				require.NotZero(t, stats.PinnedBytes)
				links[1].Close(nil)
				lossy.Store(false)

				made, err := join(context.Background(), fabrics, ends)
				require.NoError(t, err)
				require.Equal(t, links[0].ep.qp.Num(), made[0].(*link).ep.qp.Num(), "the number is used again")
				time.Sleep(3 * time.Second)
				exchange(t, made)
				if late {
					require.EqualValues(t, 8, fabrics[0].Stats().Stale, "the receives of the first link")
				}
				for _, f := range fabrics {
					require.NoError(t, f.Close())
				}
			})
		})
	}
}

// The QP does not even go to ERR.
func TestDrainRefused(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, small)
	s := newSink()
	links[0].Start(s)
	sim.FailCall("a", "ibv_modify_qp ERR", 1, syscall.EIO)
	links[0].Close(nil)
	require.NoError(t, ended(t, links[0], s))
	require.Equal(t, 1, fabrics[0].Stats().Quarantined)
}

// Case 33: each completion enters between the poll that found nothing and the
// arming, and so without an event. Case 35: no event ever comes. The first must
// cost nothing, the second the safety tick.
func TestLostEvents(t *testing.T) {
	hold := func(simverbs.Completion, *rand.Rand) simverbs.Fate { return simverbs.Fate{HoldToArm: true} }
	for name, faults := range map[string]simverbs.Faults{
		"between poll and arm": {OnCompletion: hold},
		"never":                {LoseEvent: 1},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				_, ends := simEnds(t, simverbs.Config{Faults: faults})
				cfg := small
				cfg.Poll = EventsOnly
				_, links := pair(t, ends, cfg)
				sinks := [2]*sink{newSink(), newSink()}
				for i, l := range links {
					l.Start(sinks[i])
				}
				synctest.Wait()
				start := time.Now()
				links[1].ep.poller.do(func() { require.NoError(t, send(links[0], 1, 8)) }) // it is awake
				sinks[1].await(t, 1)
				if faults.LoseEvent == 0 {
					require.Less(t, time.Since(start), safetyTick)
				}
				require.NoError(t, send(links[0], 2, 8)) // it is asleep
				sinks[1].await(t, 2)
				require.LessOrEqual(t, time.Since(start), 2*safetyTick)
			})
		})
	}
}

// Asynchronous events end the links they concern, with the event as reason;
// afterwards links are made again, on a device opened anew where it broke
// (case 38, 61).
func TestAsyncEvents(t *testing.T) {
	for _, typ := range []verbs.EventType{
		verbs.EventCQErr, verbs.EventQPFatal, verbs.EventQPAccessErr, verbs.EventDeviceFatal, verbs.EventPortErr,
	} {
		t.Run(typ.String(), func(t *testing.T) {
			checkLeaks(t)
			sim, ends := simEnds(t, simverbs.Config{})
			fabrics, links := pair(t, ends, small)
			made, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			s := [2]*sink{newSink(), newSink()}
			links[0].Start(s[0])
			made[0].Start(s[1])

			e := verbs.AsyncEvent{Type: typ, Port: 1, CQ: links[0].ep.poller.cq}
			alone := typ == verbs.EventQPFatal || typ == verbs.EventQPAccessErr
			if alone {
				e = verbs.AsyncEvent{Type: typ, QPNum: links[0].ep.qp.Num()}
			}
			sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventPortActive, Port: 1}) // concerns nobody
			sim.Raise("a", "sim0", e)
			var why *EventError
			require.ErrorAs(t, ended(t, links[0], s[0]), &why)
			require.Equal(t, typ, why.Event.Type)
			if alone {
				require.NoError(t, send(made[0], 1, 8), "the other link lives")
				made[0].Close(nil)
			}
			ended(t, made[0], s[1])

			again, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			exchange(t, again)
		})
	}
}

// A device that dies completes nothing and refuses everything.
func TestDeviceDies(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	cfg := small
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	links, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	s := newSink()
	links[0].Start(s)
	sim.KillDevice("a", "sim0")
	var why *EventError
	require.ErrorAs(t, ended(t, links[0], s), &why)
	require.Error(t, fabrics[0].Usable(ends[0].addr))
}

// Packets are lost, doubled and late: the QP repairs it, or fails, and then
// the link ends. Never is a frame lost, doubled or out of order.
func TestLossyWire(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{Latency: 10 * time.Microsecond, Faults: simverbs.Faults{
				Drop: 0.002, Duplicate: 0.05, Delay: 50 * time.Microsecond,
			}})
			_, links := pair(t, ends, small)
			s := newSink()
			links[0].Start(newSink())
			links[1].Start(s)
			n := 0
			for ; n < 500 && send(links[0], n, 16) == nil; n++ {
			}
			if n == 500 {
				s.await(t, n)
			}
			links[0].Close(nil)
			links[1].Close(nil)
			ended(t, links[1], s)
			for i, h := range s.heads {
				require.Equal(t, uint64(i), h.Call)
				require.NoError(t, checkFill(s.got[i], i))
			}
		})
	}
}

// QPs are used again for 64 links, with another PSN and generation each time
// (case 2, 12, 15).
func TestRecycle(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	cfg := small
	cfg.Warm = 1
	fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	psns, qps := map[uint32]bool{}, map[uint32]int{}
	const rounds = 300
	for range rounds {
		links, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		l := links[0].(*link)
		qps[l.ep.qp.Num()]++
		psns[l.ep.machineSQPSN(t)] = true
		exchange(t, links)
	}
	require.Greater(t, len(psns), rounds*9/10)
	require.Less(t, len(qps), rounds, "some QP was used again")
	for _, n := range qps {
		require.LessOrEqual(t, n, maxLives)
	}
	require.Zero(t, fabrics[0].Stats().LostDrains)
	require.NotZero(t, fabrics[0].Stats().PoolHits)
}

func (ep *endpoint) machineSQPSN(t testing.TB) uint32 {
	attr, err := ep.qp.Query()
	require.NoError(t, err)
	return attr.SQPSN
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

// Case 39: one processor, and pollers that never sleep.
func TestOneProcessor(t *testing.T) {
	checkLeaks(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	_, ends := simEnds(t, simverbs.Config{})
	cfg := small
	cfg.Poll = Busy
	_, links := pair(t, ends, cfg)
	exchange(t, [2]transport.Link{links[0], links[1]})
}

// Frames that are not what they should be close the link, or are dropped.
func TestBadFrames(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	frame := func(h wire.Header, payload string) []byte {
		h.Epoch, h.Length = 0xe10c, uint32(len(payload))
		b := make([]byte, h.FrameSize())
		h.Put(b)
		copy(b[wire.HeaderSize:], payload)
		if h.Flags&wire.Sum != 0 {
			putSum(b[wire.HeaderSize+len(payload):], []byte(payload))
		}
		return b
	}
	call := wire.Header{Kind: wire.Call, Flags: wire.Sum, Credit: 8}
	with := func(change func(*wire.Header)) wire.Header { h := call; change(&h); return h }
	for _, c := range []struct {
		field string // of the ParseError
		frame []byte
	}{
		{"frame", nil},
		{"frame", frame(call, "hello")[:63]},
		{"frame", frame(call, "hello")[:70]},
		{"frame", append(frame(call, "hello"), 0)},
		{"magic", make([]byte, 64)},
		{"seq", frame(with(func(h *wire.Header) { h.Seq = 1 }), "hello")},
		{"lane", frame(with(func(h *wire.Header) { h.Lane = 64 }), "hello")},
		{"credit", frame(with(func(h *wire.Header) { h.Credit = 9 }), "hello")},
		{"payload sum", func() []byte { b := frame(call, "hello"); b[66]++; return b }()},
	} {
		t.Run(c.field, func(t *testing.T) {
			_, links := pair(t, ends, small)
			s := newSink()
			links[0].Start(s)
			links[0].ep.poller.do(func() {
				if err := links[0].accept(c.frame); err != nil {
					links[0].fail(err, true)
				}
			})
			var e *wire.ParseError
			require.ErrorAs(t, ended(t, links[0], s), &e)
			require.Equal(t, c.field, e.Field)
			require.Zero(t, s.count())
		})
	}

	// Another epoch: dropped, counted, and no credit for it.
	_, links := pair(t, ends, small)
	s := newSink()
	links[0].Start(s)
	l := links[1]
	within(t, "the frame of another epoch", func() {
		l.epoch++
		require.NoError(t, send(l, 1, 8))
		for links[0].Info().Stats.Stale == 0 {
			time.Sleep(time.Millisecond)
		}
		l.ep.poller.sync()
		links[0].ep.poller.sync()
	})
	require.Zero(t, s.count())
	require.NoError(t, links[0].dead())
	require.EqualValues(t, 8, links[0].grants.Stamp())
}

// What the receiver says ends the link.
func TestReceiverErrors(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	_, links := pair(t, ends, small)
	s := newSink()
	refused := errors.New("refused")
	s.onFrame = func(*wire.Header, []byte) error { return refused }
	links[0].Start(s)
	require.NoError(t, send(links[1], 1, 8))
	require.ErrorIs(t, ended(t, links[0], s), refused)
}
