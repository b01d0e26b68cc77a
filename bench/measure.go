package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime/metrics"
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

// caller is one of the goroutines that make calls. Each has its own histogram
// and counter, so that measuring shares no cache line; they are merged at the end.
type caller struct {
	latency  *hdrhistogram.Histogram
	all      int64        // calls, those of the warm-up included
	measured atomic.Int64 // read by hammer while calls are made
	_        [64]byte
}

// hammer runs callers goroutines, each with its own call, for warmup and then
// for the measured duration. Where calls are slow it goes on until there is one
// for each caller, or ten times as long. It ends early with the first error.
func hammer(ctx context.Context, newCall func() echoFunc, callers int, warmup, duration time.Duration) (measurement, error) {
	var (
		phase atomic.Int32 // 0 warm up, 1 measure, 2 stop
		all   = make([]caller, callers)
	)
	group, running := errgroup.WithContext(ctx)
	for i := range all {
		group.Go(func() error {
			all[i].latency = hdrhistogram.New(lowestNs, highestNs, digits)
			return all[i].callUntil(running, newCall(), &phase)
		})
	}
	sleep(running, warmup)
	phase.Store(1)
	start := time.Now()
	sleep(running, duration)
	for measured(all) < int64(callers) && time.Since(start) < 10*duration && running.Err() == nil {
		sleep(running, duration/10)
	}
	phase.Store(2)
	m := measurement{Seconds: time.Since(start).Seconds(), Latency: hdrhistogram.New(lowestNs, highestNs, digits)}
	if err := cmp.Or(group.Wait(), ctx.Err()); err != nil {
		return measurement{}, err
	}
	for i := range all {
		m.AllCalls += all[i].all
		m.Calls += all[i].latency.TotalCount()
		m.Latency.Merge(all[i].latency)
	}
	return m, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func measured(all []caller) (calls int64) {
	for i := range all {
		calls += all[i].measured.Load()
	}
	return calls
}

func (c *caller) callUntil(ctx context.Context, call echoFunc, phase *atomic.Int32) error {
	for {
		if phase.Load() == 2 {
			return nil
		}
		start := time.Now()
		if err := call(ctx); err != nil {
			return fmt.Errorf("echo: %w", err)
		}
		c.all++
		// Calls that end within the measured time count: as many began in
		// the warm-up as are cut off.
		if phase.Load() == 1 {
			_ = c.latency.RecordValue(min(max(int64(time.Since(start)), lowestNs), highestNs))
			c.measured.Add(1)
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
