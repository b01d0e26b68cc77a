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
// What is due when the time is over and has not begun is not made, and counted
// in Result.Unsent: with a rate that cannot be sustained, the latencies shown are
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
		p     = newPhase()
		due   = make(chan time.Time, maxDue)
		start = time.Now()
		paced = make(chan struct{})
	)
	go func() {
		defer close(paced)
		pace(ctx, clock, start, rate, due)
	}()

	r, err := run(ctx, o, p, func(ctx context.Context, c *caller) error {
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
	<-paced
	r.Unsent = max(0, dueBy(p.ended.Sub(start), rate)-r.AllCalls)
	return r, err
}

// pace sends the moment of each call to due once it has come, until ctx ends.
func pace(ctx context.Context, c *clock, start time.Time, rate int, due chan<- time.Time) {
	for n := int64(0); ; n++ {
		at := start.Add(dueAfter(n, rate))
		if c.sleepUntil(ctx, at) != nil {
			return
		}
		select {
		case due <- at:
		case <-ctx.Done():
			return
		}
	}
}

// dueAfter is when call n is due, from the start; no error adds up.
func dueAfter(n int64, rate int) time.Duration {
	whole, part := n/int64(rate), n%int64(rate)
	return time.Duration(whole)*time.Second + time.Duration(part)*time.Second/time.Duration(rate)
}

// dueBy is how many calls are due by d after the start, the first at once.
func dueBy(d time.Duration, rate int) int64 {
	whole, part := int64(d/time.Second), int64(d%time.Second)
	second := int64(time.Second)
	return whole*int64(rate) + ((part+1)*int64(rate)+second-1)/second
}
