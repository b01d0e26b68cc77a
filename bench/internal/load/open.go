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
	p := &pacer{
		phase: newPhase(), clock: clock, start: time.Now(), rate: rate,
		due: make(chan time.Time, maxDue), late: NewHistogram(),
	}
	paced := make(chan struct{})
	go func() {
		defer close(paced)
		p.pace(ctx)
	}()

	r, err := run(ctx, o, p.phase, func(ctx context.Context, c *caller) error {
		call := newCall()
		for !p.over.Load() {
			select {
			case at := <-p.due:
				if err := call(ctx); err != nil {
					return err
				}
				c.done(p.phase, time.Since(at))
			case <-ctx.Done():
				return nil
			case <-p.end:
			}
		}
		return nil
	})
	cancel()
	<-paced
	r.Unsent = max(0, dueBy(p.ended.Sub(p.start), rate)-r.AllCalls)
	r.PacerP99 = p.late.Quantile(99)
	return r, err
}

// pacer says when calls are due. What it is late by is in the latency of each
// call, so it is told beside them.
type pacer struct {
	*phase
	clock *clock
	start time.Time
	rate  int
	due   chan time.Time
	late  Histogram // how much later than due calls were offered
}

// pace sends the moment of each call to due once it has come, until ctx ends.
func (p *pacer) pace(ctx context.Context) {
	for n := int64(0); ; n++ {
		at := p.start.Add(dueAfter(n, p.rate))
		if p.clock.sleepUntil(ctx, at) != nil {
			return
		}
		if p.counts() {
			p.late.Record(time.Since(at))
		}
		select {
		case p.due <- at:
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
