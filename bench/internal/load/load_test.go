package load

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A caller that fails ends the measurement, however long it was to take.
func TestLoopsEndWithTheFirstError(t *testing.T) {
	lost := errors.New("lost")
	failing := func() Call { return func(context.Context) error { return lost } }
	waiting := func() Call { return func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } }
	hour := Options{Callers: 2, Warmup: time.Hour, Duration: time.Hour}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, loop := range map[string]func(context.Context, func() Call) (Result, error){
		"closed": func(ctx context.Context, c func() Call) (Result, error) { return Closed(ctx, c, hour) },
		"open":   func(ctx context.Context, c func() Call) (Result, error) { return Open(ctx, c, 1000, hour) },
	} {
		_, err := loop(t.Context(), failing)
		require.ErrorIs(t, err, lost, name)
		_, err = loop(cancelled, waiting)
		require.ErrorIs(t, err, context.Canceled, name)
	}
}

// One call that stalls is one slow call to a closed loop. At a given rate it
// is as many as were due meanwhile.
func TestAStallCountsForEveryCallThatItDelayed(t *testing.T) {
	const (
		stall = 200 * time.Millisecond
		rate  = 500
	)
	stalling := func() func() Call {
		var calls atomic.Int64
		return func() Call {
			return func(context.Context) error {
				if calls.Add(1) == 100 {
					time.Sleep(stall)
				}
				time.Sleep(100 * time.Microsecond)
				return nil
			}
		}
	}
	o := Options{Callers: 1, Duration: time.Second}
	slow := func(r Result) int { // calls that took more than a quarter of the stall
		n := 0
		for _, b := range r.Latency.h.Distribution() {
			if b.From > int64(stall/4) {
				n += int(b.Count)
			}
		}
		return n
	}
	closed, err := Closed(t.Context(), stalling(), o)
	require.NoError(t, err)
	open, err := Open(t.Context(), stalling(), rate, o)
	require.NoError(t, err)
	// 75 were due in the first three quarters of the stall. A busy machine can
	// add stalls of its own, to both.
	require.GreaterOrEqual(t, slow(open), 60)
	require.Less(t, slow(closed), 60)
}

// What cannot be sustained is told, not hidden: each call that was due by the end
// was made, or is counted. What becomes due while the last calls return is neither.
func TestCallsThatCouldNotBeMadeAreCounted(t *testing.T) {
	const (
		rate = 1000
		last = 500 * time.Millisecond // what each of the last calls takes
	)
	o := Options{Callers: 2, Warmup: 50 * time.Millisecond, Duration: 250 * time.Millisecond}
	var calls atomic.Int64
	slow := func() Call {
		return func(context.Context) error {
			if calls.Add(1) > 10 {
				time.Sleep(last)
			}
			return nil
		}
	}
	begun := time.Now()
	r, err := Open(t.Context(), slow, rate, o)
	all := dueBy(time.Since(begun), rate)
	require.NoError(t, err)
	require.Positive(t, r.Calls)
	require.Equal(t, calls.Load(), r.AllCalls)
	require.Greater(t, r.Unsent, r.Calls)
	require.GreaterOrEqual(t, r.AllCalls+r.Unsent, dueBy(o.Warmup, rate)+int64(r.Seconds*rate))
	require.LessOrEqual(t, r.AllCalls+r.Unsent, all-int64((last/2).Seconds()*rate))
}

// A pacer that is behind hides nothing either.
func TestCallsThatThePacerIsBehindWithAreCounted(t *testing.T) {
	const rate = 10_000_000 // more than it can pass on
	quick := func() Call { return func(context.Context) error { return nil } }
	r, err := Open(t.Context(), quick, rate, Options{Callers: 1, Duration: 100 * time.Millisecond})
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.AllCalls+r.Unsent, int64(r.Seconds*rate))
}

func TestEachCallIsDueOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 10_000_000).Draw(t, "rate")
		n := rapid.Int64Range(0, int64(rate)<<30).Draw(t, "n") // in the first 34 years
		require.LessOrEqual(t, dueAfter(n, rate), dueAfter(n+1, rate))
		require.Equal(t, dueAfter(n, rate)+time.Second, dueAfter(n+int64(rate), rate))
		require.Equal(t, n+1, dueBy(dueAfter(n, rate), rate))
		if n > 0 {
			require.Equal(t, n, dueBy(dueAfter(n, rate)-1, rate))
		}
	})
}
