package main

import (
	"context"
	"fmt"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
)

// Latencies from 1 µs to 100 s at three significant digits: finer than the
// noise of any machine, and about 100 KiB per caller.
const (
	lowestNs  = 1_000
	highestNs = 100_000_000_000
	digits    = 3
)

// echoFunc makes one call whose request and response hold size bytes.
type echoFunc func(ctx context.Context) error

// measurement is what one round of one cell showed.
type measurement struct {
	Calls    int64 // within the measured time
	AllCalls int64 // with those of the warm-up
	Seconds  float64
	Latency  *hdrhistogram.Histogram // ns
}

// hammer runs callers goroutines, each with its own call, for warmup and then
// for the measured duration. Every caller has its own histogram; they are
// merged at the end, so that measuring shares no cache line.
func hammer(ctx context.Context, newCall func() echoFunc, callers int, warmup, duration time.Duration) (measurement, error) {
	var (
		phase atomic.Int32 // 0 warm up, 1 measure, 2 stop
		group errgroup.Group
		mu    sync.Mutex
		total = measurement{Latency: hdrhistogram.New(lowestNs, highestNs, digits)}
	)
	for range callers {
		group.Go(func() error {
			own := hdrhistogram.New(lowestNs, highestNs, digits)
			all, err := callUntil(ctx, newCall(), &phase, own)
			mu.Lock()
			defer mu.Unlock()
			total.AllCalls += all
			total.Calls += own.TotalCount()
			total.Latency.Merge(own)
			return err
		})
	}
	time.Sleep(warmup)
	phase.Store(1)
	start := time.Now()
	time.Sleep(duration)
	phase.Store(2)
	total.Seconds = time.Since(start).Seconds()
	if err := group.Wait(); err != nil {
		return measurement{}, err
	}
	return total, nil
}

func callUntil(ctx context.Context, call echoFunc, phase *atomic.Int32, latency *hdrhistogram.Histogram) (all int64, err error) {
	for {
		before := phase.Load()
		if before == 2 {
			return all, nil
		}
		start := time.Now()
		if err := call(ctx); err != nil {
			return all, fmt.Errorf("echo: %w", err)
		}
		all++
		// Only calls that lie within the measured time count.
		if before == 1 && phase.Load() == 1 {
			_ = latency.RecordValue(min(max(int64(time.Since(start)), lowestNs), highestNs))
		}
	}
}

// heapObjects is the number of heap objects this process has allocated. Tiny
// ones that share a block count each.
func heapObjects() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/tiny/allocs:objects"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64() + sample[1].Value.Uint64()
}
