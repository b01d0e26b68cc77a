package load

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// spin has a goroutine that spins and yields, as a busy poller does, on the only
// processor, until the test is over.
func spin(t *testing.T) {
	procs := runtime.GOMAXPROCS(1)
	var over atomic.Bool
	var ended sync.WaitGroup
	ended.Go(func() {
		for !over.Load() {
			runtime.Gosched()
		}
	})
	t.Cleanup(func() {
		over.Store(true)
		ended.Wait()
		runtime.GOMAXPROCS(procs)
	})
}

// Beside a busy poller the clock is about as good as Go's timers, which are looked
// at whenever the poller yields.
func TestClockBesideABusyPoller(t *testing.T) {
	spin(t)
	c, err := newClock()
	require.NoError(t, err)
	defer c.close()
	const step = 500 * time.Microsecond
	var clock, timers []time.Duration
	for range 101 {
		begun := time.Now()
		require.NoError(t, c.sleepUntil(t.Context(), begun.Add(step)))
		clock = append(clock, time.Since(begun))
		begun = time.Now()
		time.Sleep(step)
		timers = append(timers, time.Since(begun))
	}
	slices.Sort(clock)
	slices.Sort(timers)
	t.Logf("medians: clock %v, timers %v", clock[50], timers[50])
	require.GreaterOrEqual(t, clock[0], step)
	require.Less(t, clock[50], 4*timers[50])
}

func TestClockAllocatesNothing(t *testing.T) {
	c, err := newClock()
	require.NoError(t, err)
	defer c.close()
	ctx := t.Context()
	sleep := func() {
		if err := c.sleepUntil(ctx, time.Now().Add(100*time.Microsecond)); err != nil {
			t.Error(err)
		}
	}
	require.Zero(t, testing.AllocsPerRun(100, sleep), "idle")
	spin(t)
	require.Zero(t, testing.AllocsPerRun(100, sleep), "beside a busy poller")
}

// Calls that keep the only processor delay the pacer, and it says so.
func TestPacerTellsHowLateItWas(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const busy = 5 * time.Millisecond
	keep := func() Call {
		return func(context.Context) error {
			for begun := time.Now(); time.Since(begun) < busy; {
			}
			return nil
		}
	}
	o := Options{Callers: 1, Duration: 200 * time.Millisecond}
	r, err := Open(t.Context(), keep, 1000, o)
	require.NoError(t, err)
	require.Greater(t, r.PacerP99, float64(busy.Microseconds())/2)
	r, err = Closed(t.Context(), keep, o)
	require.NoError(t, err)
	require.Zero(t, r.PacerP99, "there is none")
}
