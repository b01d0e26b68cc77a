package pool_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
)

// factory makes numbered items and remembers which exist.
type factory struct {
	mu    sync.Mutex
	made  int
	exist map[int]bool
	fail  error         // what Make returns, if set
	slow  time.Duration // how long it takes
	at    []time.Time   // when each Make began
}

func (f *factory) make(ctx context.Context) (int, error) {
	f.mu.Lock()
	f.at = append(f.at, time.Now())
	fail, slow := f.fail, f.slow
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(slow):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if fail != nil {
		return 0, fail
	}
	f.made++
	f.exist[f.made] = true
	return f.made, nil
}

func (f *factory) drop(item int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.exist[item] {
		panic("dropped twice")
	}
	delete(f.exist, item)
}

func (f *factory) set(fail error, slow time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.slow = fail, slow
}

// begun returns when each Make began, and forgets it.
func (f *factory) begun() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.at
	f.at = nil
	return at
}

func (f *factory) alive() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.exist)
}

// warm runs f in a bubble with a pool, which is closed after it; then no item
// may be left over.
func warm(t *testing.T, size int, f func(t *testing.T, w *pool.Warm[int], items *factory)) {
	synctest.Test(t, func(t *testing.T) {
		items := &factory{exist: map[int]bool{}}
		w, err := pool.NewWarm(pool.WarmConfig[int]{Size: size, Make: items.make, Drop: items.drop})
		require.NoError(t, err)
		f(t, w, items)
		w.Close()
		require.Zero(t, items.alive(), "items left after Close")
	})
}

func get(t *testing.T, w *pool.Warm[int]) (int, bool) {
	item, hit, err := w.Get(t.Context())
	require.NoError(t, err)
	return item, hit
}

func TestWarmFillsAtItsRate(t *testing.T) {
	warm(t, 10, func(t *testing.T, w *pool.Warm[int], items *factory) {
		began := time.Now()
		time.Sleep(time.Second)
		begun := items.begun()
		require.Len(t, begun, 10, "it stops when full")
		for i, at := range begun {
			require.Equal(t, time.Duration(i)*10*time.Millisecond, at.Sub(began))
		}
		require.Equal(t, pool.WarmStats{Ready: 10, Refills: 10}, w.Stats())
	})
}

// A full pool has no goroutine: synctest.Test fails if one is left and blocks,
// so it is enough that none runs now.
func TestWarmIsQuietWhenFull(t *testing.T) {
	items := &factory{exist: map[int]bool{}}
	before := runtime.NumGoroutine()
	w, err := pool.NewWarm(pool.WarmConfig[int]{Size: 4, Make: items.make, Drop: items.drop, RefillRate: 1e6})
	require.NoError(t, err)
	defer w.Close()
	require.Eventually(t, func() bool { return w.Stats().Ready == 4 }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, // Eventually's own
		10*time.Second, time.Millisecond)
}

func TestWarmHitsMissesAndRefills(t *testing.T) {
	warm(t, 2, func(t *testing.T, w *pool.Warm[int], items *factory) {
		time.Sleep(time.Second)
		items.set(nil, 3*time.Millisecond)
		for _, want := range []bool{true, true, false} {
			item, hit := get(t, w)
			require.Equal(t, want, hit)
			defer items.drop(item)
		}
		time.Sleep(time.Second)
		s := w.Stats()
		require.Equal(t, pool.WarmStats{Ready: 2, Hits: 2, Misses: 1, Refills: 4, RefillTime: 6 * time.Millisecond}, s)
		item, hit := get(t, w)
		require.True(t, hit)
		items.drop(item)
	})
}

// The refill waits from the first draw on, and is not needed where the item
// comes back in time.
func TestWarmDelaysItsRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		items := &factory{exist: map[int]bool{}}
		const delay = 50 * time.Millisecond
		w, err := pool.NewWarm(pool.WarmConfig[int]{Size: 3, Make: items.make, Drop: items.drop, RefillDelay: delay})
		require.NoError(t, err)
		defer w.Close()
		time.Sleep(time.Second)
		items.begun()

		item, _ := get(t, w)
		time.Sleep(delay / 2)
		w.Put(item)
		time.Sleep(time.Second)
		require.Empty(t, items.begun())

		began := time.Now()
		for range 2 { // the second does not put it off
			item, _ = get(t, w)
			items.drop(item)
			time.Sleep(delay / 2)
		}
		time.Sleep(time.Second)
		begun := items.begun()
		require.Len(t, begun, 2)
		require.Equal(t, delay, begun[0].Sub(began))
		require.Equal(t, delay+10*time.Millisecond, begun[1].Sub(began), "at the rate")
	})
}

// Fill makes what is missing at once.
func TestWarmFill(t *testing.T) {
	warm(t, 5, func(t *testing.T, w *pool.Warm[int], items *factory) {
		items.set(nil, 3*time.Millisecond)
		began := time.Now()
		require.NoError(t, w.Fill(t.Context()))
		require.Less(t, time.Since(began), 5*10*time.Millisecond, "not at the rate of the background")
		require.Equal(t, 5, w.Stats().Ready)
		require.Equal(t, 5, items.alive())

		item, _ := get(t, w)
		items.drop(item)
		cause := errors.New("no more queue pairs")
		items.set(cause, 0)
		require.Equal(t, cause, w.Fill(t.Context()))
		items.set(nil, time.Hour)
		time.Sleep(time.Minute) // the background has begun
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, w.Fill(ctx), context.DeadlineExceeded)
		w.Close()
		require.ErrorIs(t, w.Fill(t.Context()), pool.ErrWarmClosed)
	})
}

func TestWarmDrawsAtRandom(t *testing.T) {
	const size = 8
	warm(t, size, func(t *testing.T, w *pool.Warm[int], items *factory) {
		time.Sleep(time.Second)
		first := map[int]bool{}
		for range 1000 { // that one of 8 is never drawn: below 8 * (7/8)^1000
			item, hit := get(t, w)
			require.True(t, hit)
			first[item] = true
			w.Put(item)
		}
		require.GreaterOrEqual(t, len(first), size) // one more was made while one was out
	})
}

func TestWarmPutKeepsWhatHasRoom(t *testing.T) {
	warm(t, 2, func(t *testing.T, w *pool.Warm[int], items *factory) {
		time.Sleep(time.Second)
		a, _ := get(t, w)
		b, _ := get(t, w)
		c, _ := get(t, w) // a miss
		w.Put(a)
		w.Put(b)
		w.Put(c) // no room
		time.Sleep(time.Second)
		require.Equal(t, 2, w.Stats().Ready)
		require.Equal(t, 2, items.alive())
	})
}

func TestWarmBacksOffFromFailures(t *testing.T) {
	warm(t, 3, func(t *testing.T, w *pool.Warm[int], items *factory) {
		time.Sleep(time.Second)
		cause := errors.New("no more queue pairs")
		items.set(cause, 0)
		items.begun()
		item, hit := get(t, w)
		require.True(t, hit)
		began := time.Now()
		time.Sleep(time.Minute)
		begun := items.begun()
		tries := len(begun)
		require.Equal(t, 1+9+(60_000-5110)/5000, tries, "10 ms doubling to 5 s")
		require.Equal(t, 10*time.Millisecond, begun[1].Sub(began))
		s := w.Stats()
		require.EqualValues(t, tries, s.Failures)
		require.Equal(t, cause, s.LastError)

		items.set(nil, 0)
		time.Sleep(5 * time.Second)
		require.Equal(t, 3, w.Stats().Ready, "it recovers")
		w.Put(item) // full again: dropped
	})
}

func TestWarmGetReportsItsOwnFailure(t *testing.T) {
	warm(t, 0, func(t *testing.T, w *pool.Warm[int], items *factory) {
		cause := errors.New("no more queue pairs")
		items.set(cause, 0)
		_, hit, err := w.Get(t.Context())
		require.False(t, hit)
		require.Equal(t, cause, err)

		items.set(nil, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err = w.Get(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 2, w.Stats().Failures)
	})
}

// case 17: every size works, also with takers that outlive the pool.
func TestWarmSizes(t *testing.T) {
	for _, size := range []int{0, 1, 2, 7, 64, 1024} {
		warm(t, size, func(t *testing.T, w *pool.Warm[int], items *factory) {
			item, _ := get(t, w)
			time.Sleep(time.Minute)
			require.Equal(t, size, w.Stats().Ready)
			require.Equal(t, size+1, items.alive())
			w.Close()
			require.Equal(t, 1, items.alive(), "the taker's own")
			w.Put(item)
		})
	}
}

// Close cancels a refill and a Get that are making, waits for both, and lets
// nothing through afterwards.
func TestWarmCloseWhileMaking(t *testing.T) {
	warm(t, 1, func(t *testing.T, w *pool.Warm[int], items *factory) {
		time.Sleep(time.Second)
		items.set(nil, time.Hour)
		items.begun()
		item, _ := get(t, w) // starts a refill
		var returned atomic.Bool
		go func() {
			_, _, err := w.Get(context.Background())
			require.ErrorIs(t, err, pool.ErrWarmClosed)
			returned.Store(true)
		}()
		synctest.Wait()
		require.Len(t, items.begun(), 2)
		began := time.Now()
		var wg sync.WaitGroup
		for range 8 { // case 72
			wg.Go(w.Close)
		}
		wg.Wait()
		require.Zero(t, time.Since(began))
		synctest.Wait()
		require.True(t, returned.Load())
		_, _, err := w.Get(t.Context())
		require.ErrorIs(t, err, pool.ErrWarmClosed)
		w.Put(item)
	})
}

// A Make that does not mind its context: Close waits, the item is dropped.
func TestWarmCloseWaitsForStubbornMake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dropped atomic.Int32
		w, err := pool.NewWarm(pool.WarmConfig[int]{
			Size: 1,
			Make: func(context.Context) (int, error) { time.Sleep(time.Second); return 1, nil },
			Drop: func(int) { dropped.Add(1) },
		})
		require.NoError(t, err)
		go func() {
			_, _, err := w.Get(context.Background())
			require.ErrorIs(t, err, pool.ErrWarmClosed)
		}()
		synctest.Wait()
		began := time.Now()
		w.Close()
		require.Equal(t, time.Second, time.Since(began))
		require.EqualValues(t, 2, dropped.Load())
	})
}

func TestWarmManyTakers(t *testing.T) {
	items := &factory{exist: map[int]bool{}}
	w, err := pool.NewWarm(pool.WarmConfig[int]{Size: 8, Make: items.make, Drop: items.drop, RefillRate: 1e5})
	require.NoError(t, err)
	var taken sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				item, _, err := w.Get(context.Background())
				if errors.Is(err, pool.ErrWarmClosed) {
					return
				}
				if _, double := taken.LoadOrStore(item, true); double {
					t.Error("one item, two takers")
				}
				runtime.Gosched()
				taken.Delete(item)
				w.Put(item)
			}
		})
	}
	wg.Go(func() { time.Sleep(20 * time.Millisecond); w.Close() })
	wg.Wait()
	require.Zero(t, items.alive())
}

func TestWarmConfigIsChecked(t *testing.T) {
	ok := pool.WarmConfig[int]{
		Make: func(context.Context) (int, error) { return 0, nil },
		Drop: func(int) {},
	}
	rate := func(r float64) func(*pool.WarmConfig[int]) {
		return func(c *pool.WarmConfig[int]) { c.RefillRate = r }
	}
	for _, tc := range []struct {
		field string
		spoil func(*pool.WarmConfig[int])
	}{
		{"WarmConfig.Size", func(c *pool.WarmConfig[int]) { c.Size = -1 }},
		{"WarmConfig.Make", func(c *pool.WarmConfig[int]) { c.Make = nil }},
		{"WarmConfig.Drop", func(c *pool.WarmConfig[int]) { c.Drop = nil }},
		{"WarmConfig.RefillDelay", func(c *pool.WarmConfig[int]) { c.RefillDelay = -1 }},
		{"WarmConfig.RefillRate", rate(math.NaN())},
		{"WarmConfig.RefillRate", rate(-1)},
		{"WarmConfig.RefillRate", rate(1e-10)}, // its interval is no Duration
		{"WarmConfig.RefillRate", rate(math.Inf(1))},
	} {
		bad := ok
		tc.spoil(&bad)
		_, err := pool.NewWarm(bad)
		var ce *pool.ConfigError
		require.ErrorAs(t, err, &ce)
		require.Equal(t, tc.field, ce.Field)
	}
	w, err := pool.NewWarm(ok)
	require.NoError(t, err)
	w.Close()
}

func BenchmarkWarmHit(b *testing.B) {
	w, err := pool.NewWarm(pool.WarmConfig[int]{
		Size: 16, Make: func(context.Context) (int, error) { return 0, nil }, Drop: func(int) {}, RefillRate: 1e6,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	b.ReportAllocs()
	for b.Loop() {
		item, _, _ := w.Get(context.Background())
		w.Put(item)
	}
}
