package load

import (
	"context"
	"time"
)

// maxDue bounds the calls that are due and wait for a caller.
const maxDue = 1 << 16

// Open makes rate calls per second, evenly spaced, whether or not earlier ones
// have returned: those that find every caller busy wait. A call is timed from
// the moment at which it was due. So a stall counts for every call that it
// delayed, where a closed loop would have made one call meanwhile, and counted
// one (coordinated omission).
//
// What is due and waits when the time is over is not made, and counted in
// Result.Unsent: with a rate that cannot be sustained, the latencies shown are
// those of the calls that came first.
func Open(ctx context.Context, newCall func() Call, rate int, o Options) (Result, error) {
	clock, err := newClock()
	if err != nil {
		return Result{}, err
	}
	defer clock.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		due   = make(chan time.Time, maxDue)
		paced = make(chan int64, 1)
	)
	go func() { paced <- pace(ctx, clock, rate, due) }()

	r, err := run(ctx, o, func(ctx context.Context, p *phase, c *caller) error {
		call := newCall()
		for !p.over.Load() {
			select {
			case at := <-due:
				if err := call(ctx); err != nil {
					return err
				}
				c.done(p, time.Since(at))
			case <-ctx.Done():
				return nil
			case <-p.end:
			}
		}
		return nil
	})
	cancel()
	r.Unsent = <-paced + int64(len(due))
	return r, err
}

// pace sends the moment of each call to due once it has come, until ctx ends.
// It returns how many calls were due then and not sent, because due was full.
func pace(ctx context.Context, c *clock, rate int, due chan<- time.Time) (unsent int64) {
	start := time.Now()
	for n := int64(0); ; n++ {
		at := start.Add(dueAfter(n, rate))
		if c.sleepUntil(ctx, at) != nil {
			return 0
		}
		select {
		case due <- at:
		case <-ctx.Done():
			return int64(time.Since(start).Seconds()*float64(rate)) - n
		}
	}
}

// dueAfter is when call n is due, from the start; no error adds up.
func dueAfter(n int64, rate int) time.Duration {
	whole, part := n/int64(rate), n%int64(rate)
	return time.Duration(whole)*time.Second + time.Duration(part)*time.Second/time.Duration(rate)
}
