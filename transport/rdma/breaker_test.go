package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// Every status of a completion has the class that its cause has.
func TestCompletionClasses(t *testing.T) {
	want := map[Class][]verbs.WCStatus{
		Flushed: {verbs.WCWRFlushErr},
		RemotePath: {
			verbs.WCRetryExcErr, verbs.WCRNRRetryExcErr, verbs.WCRemOpErr, verbs.WCRemAbortErr, verbs.WCRespTimeoutErr,
		},
		Fault: {
			verbs.WCLocLenErr, verbs.WCLocQPOpErr, verbs.WCLocProtErr, verbs.WCLocAccessErr, verbs.WCMWBindErr,
			verbs.WCBadRespErr, verbs.WCRemInvReqErr, verbs.WCRemAccessErr, verbs.WCFatalErr,
		},
		Unclassified: {
			verbs.WCLocEECOpErr, verbs.WCLocRDDViolErr, verbs.WCRemInvRDReqErr, verbs.WCInvEECNErr,
			verbs.WCInvEECStateErr, verbs.WCGeneralErr, verbs.WCGeneralErr + 1, 1 << 31,
		},
	}
	seen := map[verbs.WCStatus]bool{verbs.WCSuccess: true}
	for class, statuses := range want {
		for _, s := range statuses {
			seen[s] = true
			require.Equal(t, class, completionClass(s, false), "%v", s)
			onRXE := class
			if s == verbs.WCLocQPOpErr {
				onRXE = RemotePath
			}
			require.Equal(t, onRXE, completionClass(s, true), "%v on rxe", s)
			require.Equal(t, class == Flushed || class == RemotePath, completionClass(s, false).reusable(), "%v", s)
		}
	}
	for s := range verbs.WCGeneralErr {
		require.True(t, seen[s], "%v is not in the table", s)
	}
}

// Errors of links carry their class, wrapped or not.
func TestClassOf(t *testing.T) {
	event := func(typ verbs.EventType) error {
		return &EventError{Device: "sim0", Event: verbs.AsyncEvent{Type: typ}}
	}
	for _, c := range []struct {
		err  error
		want Class
	}{
		{&CompletionError{Class: Fault}, Fault},
		{&CompletionError{Class: Flushed}, Flushed},
		{event(verbs.EventPortErr), RemotePath},
		{event(verbs.EventQPAccessErr), Fault},
		{event(verbs.EventQPFatal), Fault},
		{event(verbs.EventCQErr), Fault},
		{event(verbs.EventSRQErr), Fault},
		{event(verbs.EventDeviceFatal), Fault},
		{event(verbs.EventGIDChange), Unclassified},
		{&RemovedError{"sim0"}, RemotePath},
		{errors.New("closed"), Unclassified},
		{nil, Unclassified},
	} {
		require.Equal(t, c.want, ClassOf(c.err), "%v", c.err)
		require.Equal(t, c.want, ClassOf(fmt.Errorf("link: %w", c.err)), "%v", c.err)
	}
}

// The breaker in seconds: faults, and how long it is then open.
func TestBreaker(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		faults []time.Duration
		at     time.Duration // when left is asked for
		left   time.Duration
	}{
		{"four", []time.Duration{0, s, 2 * s, 3 * s}, 3 * s, 0},
		{"five in 10 s", []time.Duration{0, s, 2 * s, 3 * s, 10*s - 1}, 10 * s, 30*s - 1},
		{"five in more", []time.Duration{0, s, 2 * s, 3 * s, 10 * s}, 10 * s, 0},
		{"the window moves on", []time.Duration{0, 6 * s, 8 * s, 9 * s, 10 * s, 15 * s}, 15 * s, 30 * s},
		{"it ends", []time.Duration{0, 0, 0, 0, 0}, 30 * s, 0},
		{"not before", []time.Duration{0, 0, 0, 0, 0}, 30*s - 1, 1},
		{"links that were alive do not count", []time.Duration{0, 0, 0, 0, 0, s, s, 29 * s}, 29 * s, s},
		{"one on probation doubles", []time.Duration{0, 0, 0, 0, 0, 59 * s}, 59 * s, 60 * s},
		{"and again", []time.Duration{0, 0, 0, 0, 0, 30 * s, 90 * s}, 90 * s, 120 * s},
		{"forgotten after that", []time.Duration{0, 0, 0, 0, 0, 60 * s}, 60 * s, 0},
		{"and begins anew", []time.Duration{0, 0, 0, 0, 0, 60 * s, 61 * s, 62 * s, 63 * s, 64 * s}, 64 * s, 30 * s},
	} {
		var b breaker
		for _, at := range c.faults {
			b.fault(at)
		}
		require.Equal(t, c.left, b.left(c.at), c.name)
	}
}

// Whatever comes: it opens only at the fifth fault in the window, or at the
// first on probation; pauses double up to the longest; while it is open nothing
// changes.
func TestBreakerProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			b                 breaker
			now, until, pause time.Duration
			window            []time.Duration
		)
		for _, step := range rapid.SliceOfN(rapid.Int64Range(0, int64(40*time.Second)), 1, 200).Draw(t, "steps") {
			now += time.Duration(step) >> rapid.IntRange(0, 6).Draw(t, "shift")
			left := b.left(now)
			if want := max(0, until-now); left != want {
				t.Fatalf("open for %v, expected %v", left, want)
			}
			b.fault(now)
			if left > 0 {
				continue
			}
			if pause > 0 && now < until+pause {
				pause = min(2*pause, breakerMaxPause)
				until, window = now+pause, nil
				continue
			}
			recent := window[:0:0]
			for _, at := range append(window, now) {
				if at > now-breakerWindow {
					recent = append(recent, at)
				}
			}
			pause, window = 0, recent
			if len(window) == breakerFaults {
				pause, window = breakerPause, nil
				until = now + pause
			}
		}
	})
}

// Links that keep failing by faults: from the fifth on the device is left
// alone, and Usable says for how long, and why (case 8).
func TestBreakerOpens(t *testing.T) {
	checkLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		var status atomic.Uint32
		sim, ends := simEnds(t, simverbs.Config{Faults: simverbs.Faults{
			OnCompletion: func(c simverbs.Completion, _ *rand.Rand) (fate simverbs.Fate) {
				if c.Host == "a" && c.Send {
					fate.Status = verbs.WCStatus(status.Load())
				}
				return fate
			},
		}})
		cfg := small
		cfg.Poll = EventsOnly // a spinning goroutine would stop the virtual clock
		fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
		failed := func(s verbs.WCStatus) {
			t.Helper()
			status.Store(uint32(s))
			links, err := join(context.Background(), fabrics, ends)
			require.NoError(t, err)
			sink := newSink()
			links[0].Start(sink)
			require.NoError(t, send(links[0], 1, 8))
			var why *CompletionError
			require.ErrorAs(t, ended(t, links[0], sink), &why)
			require.Equal(t, completionClass(s, false), why.Class)
			links[1].Close(nil)
			<-links[1].Done()
		}
		for range 20 {
			failed(verbs.WCRetryExcErr)
			failed(verbs.WCGeneralErr)
			failed(verbs.WCWRFlushErr)
		}
		for range breakerFaults {
			require.NoError(t, fabrics[0].Usable(ends[0].addr))
			failed(verbs.WCLocProtErr)
		}
		var open *BreakerError
		require.ErrorAs(t, fabrics[0].Usable(ends[0].addr), &open)
		require.Equal(t, breakerPause, open.Left)
		require.Equal(t, "sim0", open.Device)
		var last *CompletionError
		require.ErrorAs(t, open, &last)
		require.Equal(t, verbs.WCLocProtErr, last.Status)
		_, err := fabrics[0].Prepare(context.Background(), ends[0].addr)
		require.ErrorAs(t, err, &open)
		require.NoError(t, fabrics[1].Usable(ends[1].addr), "the other side only saw it close")

		sim.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventDeviceFatal}) // opened anew, it is not trusted anew
		time.Sleep(10 * time.Second)
		require.ErrorAs(t, fabrics[0].Usable(ends[0].addr), &open)
		require.Equal(t, breakerPause-10*time.Second, open.Left)
		time.Sleep(20 * time.Second)
		require.NoError(t, fabrics[0].Usable(ends[0].addr))
		failed(verbs.WCRemAccessErr)
		require.ErrorAs(t, fabrics[0].Usable(ends[0].addr), &open)
		require.Equal(t, 2*breakerPause, open.Left)
		closeAll(t, fabrics)
	})
}

// A device that breaks is one fault, whether it says so by an event or refuses what
// all need, and however many links it had: they are made again at once, until it has
// broken five times in 10 s.
func TestBreakerCountsBreakages(t *testing.T) {
	raise := func(typ verbs.EventType) func(*simverbs.Fabric, transport.Link) {
		return func(sim *simverbs.Fabric, _ transport.Link) { sim.Raise("a", "sim0", verbs.AsyncEvent{Type: typ}) }
	}
	for name, breaks := range map[string]func(sim *simverbs.Fabric, peer transport.Link){
		"CQ":           raise(verbs.EventCQErr),
		"SRQ":          raise(verbs.EventSRQErr),
		"device fatal": raise(verbs.EventDeviceFatal),
		"SRQ is full": func(sim *simverbs.Fabric, peer transport.Link) {
			sim.FailCall("a", "ibv_post_srq_recv", 1, syscall.ENOMEM)
			_ = send(peer, 1, 8)
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			synctest.Test(t, func(t *testing.T) {
				sim, ends := simEnds(t, simverbs.Config{})
				fabrics := [2]*Fabric{ends[0].fabric(t, sharing), ends[1].fabric(t, sharing)}
				var why error
				for range breakerFaults {
					require.NoError(t, fabrics[0].Usable(ends[0].addr))
					var duos []*duo
					for range 2 * breakerFaults {
						duos = append(duos, newDuo(t, fabrics, ends))
					}
					breaks(sim, duos[0].links[1])
					for _, d := range duos {
						why = ended(t, d.links[0], d.sinks[0])
						d.close()
					}
					time.Sleep(breakerWindow / (2 * breakerFaults))
				}
				var open *BreakerError
				require.ErrorAs(t, fabrics[0].Usable(ends[0].addr), &open)
				require.ErrorIs(t, open, why)
				require.NoError(t, fabrics[1].Usable(ends[1].addr))
				closeAll(t, fabrics)
			})
		})
	}
}
