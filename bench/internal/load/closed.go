package load

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// caller is one of the goroutines that make calls. Each has its own histogram
// and counter, so that measuring shares no cache line; they are merged at the end.
type caller struct {
	latency  Histogram
	all      int64        // calls, those of the warm-up included
	measured atomic.Int64 // read by run while calls are made
	_        [64]byte
}

// phase of a measurement; callers read it with every call.
type phase struct {
	measuring atomic.Bool
	over      atomic.Bool
	end       chan struct{} // closed with over
	ended     time.Time     // when; not before end is closed
}

func newPhase() *phase { return &phase{end: make(chan struct{})} }

// counts says whether it is within the measured time.
func (p *phase) counts() bool { return p.measuring.Load() && !p.over.Load() }

// finish ends the measured time.
func (p *phase) finish() {
	p.ended = time.Now()
	p.over.Store(true)
	close(p.end)
}

// Closed makes calls in a closed loop: each caller makes its next call when the
// last one has returned. See Options for how long it takes.
func Closed(ctx context.Context, newCall func() Call, o Options) (Result, error) {
	p := newPhase()
	return run(ctx, o, p, func(ctx context.Context, c *caller) error {
		call := newCall()
		for !p.over.Load() {
			start := time.Now()
			if err := call(ctx); err != nil {
				return err
			}
			c.done(p, time.Since(start))
		}
		return nil
	})
}

// done counts a call. Those that end within the measured time count: as many
// began in the warm-up as are cut off.
func (c *caller) done(p *phase, took time.Duration) {
	c.all++
	if p.counts() {
		c.latency.Record(took)
		c.measured.Add(1)
	}
}

// run has o.Callers goroutines execute body through the phases. It ends early
// with the first error.
func run(ctx context.Context, o Options, p *phase, body func(context.Context, *caller) error) (Result, error) {
	all := make([]caller, o.Callers)
	group, running := errgroup.WithContext(ctx)
	for i := range all {
		group.Go(func() error {
			all[i].latency = NewHistogram()
			return body(running, &all[i])
		})
	}
	sleep(running, o.Warmup)
	p.measuring.Store(true)
	start := time.Now()
	sleep(running, o.Duration)
	for measured(all) < int64(o.Callers) && time.Since(start) < 10*o.Duration && running.Err() == nil {
		sleep(running, o.Duration/10)
	}
	p.finish()
	r := Result{Seconds: p.ended.Sub(start).Seconds(), Latency: NewHistogram()}
	if err := group.Wait(); err != nil {
		return Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	for i := range all {
		r.AllCalls += all[i].all
		r.Latency.Merge(all[i].latency)
	}
	r.Calls = r.Latency.Count()
	return r, nil
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
