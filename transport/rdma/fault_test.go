package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
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

// A link that the device ended before Start tells its receiver so; one that its
// owner closed does not.
func TestStartAfterDeath(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	_, links := pair(t, ends, small)
	sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventQPFatal, QPNum: links[0].ep.qp.Num()})
	links[1].Close(nil)
	var why *EventError
	for i, l := range links {
		s := newSink()
		<-l.Done()
		l.Start(s)
		l.ep.poller.sync()
		if i == 0 {
			require.ErrorAs(t, <-s.closed, &why)
		} else {
			require.Empty(t, s.closed)
		}
	}
}

// A link ends before it is started, and its fabric with it: the receiver is told
// all the same, also when it was the fabric that ended the link.
func TestStartAfterFabricClose(t *testing.T) {
	for _, byFabric := range []bool{true, false} {
		t.Run(fmt.Sprint(byFabric), func(t *testing.T) {
			checkLeaks(t)
			sim, ends := simEnds(t, simverbs.Config{})
			fabrics, links := pair(t, ends, small)
			l, s := links[0], newSink()
			if !byFabric {
				sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventQPFatal, QPNum: l.ep.qp.Num()})
				<-l.Done()
			}
			require.NoError(t, fabrics[0].Close())
			l.Start(s)
			within(t, "Closed", func() { require.Error(t, <-s.closed) })
		})
	}
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

// Completions that come twice are counted once (docs/rxe.md: rxe completes a
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

// The second completion of a receive comes after its slot was posted again: it
// is not taken for the next one.
func TestDuplicateAfterRepost(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	fabrics, links := pair(t, ends, small)
	l, s := links[0], newSink()
	l.Start(s)
	links[1].Start(newSink())
	for i := range 9 { // slot 0 twice
		require.NoError(t, send(links[1], i, 8))
		s.await(t, i+1)
		l.ep.poller.sync()
	}
	sim.Inject(l.ep.poller.cq, verbs.WC{
		ID: uint64(wrid.Make(wrid.Recv, l.generation, l.ep.index, 0)), Opcode: verbs.WCRecv, ByteLen: 80, QPNum: l.ep.qp.Num(),
	})
	require.NoError(t, send(links[1], 9, 8))
	s.await(t, 10)
	require.EqualValues(t, 1, fabrics[0].Stats().Stale)
	require.Equal(t, 10, s.count())
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
	call := wire.Header{Kind: wire.Call, Lane: transport.LaneID, Flags: wire.Sum, Credit: 8}
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
