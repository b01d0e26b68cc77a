//go:build linux

package faults

import (
	"sync/atomic"
	"time"
)

// runningClock is the time that this process has run: while it is stopped by a
// signal, or gets no processor, as where the whole VM gets none, no call can end.
// run is its one writer.
type runningClock struct {
	ran  atomic.Int64 // until last
	last atomic.Int64 // since start
}

const (
	clockTick = 10 * time.Millisecond
	clockGap  = 200 * time.Millisecond // a longer one is cut to this
)

func (c *runningClock) run() {
	start := time.Now()
	for {
		time.Sleep(clockTick)
		now := time.Since(start)
		gap := min(now-time.Duration(c.last.Swap(int64(now))), clockGap)
		c.ran.Add(int64(gap))
	}
}

func (c *runningClock) now() time.Duration { return time.Duration(c.ran.Load()) }
