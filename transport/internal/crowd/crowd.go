// Package crowd has the frames of many callers leave a link together.
package crowd

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// timeSlice is how long a goroutine may run before others do: forcePreemptNS
	// of the Go runtime. Who gave way for so long did not give way to callers
	// that were about to send, but to somebody who computes, in this process or
	// another.
	timeSlice = 10 * time.Millisecond

	// Nobody gives way for firstPause after that, and twice as long each time that
	// it is soon so again, up to maxPause. Where somebody computes all the time,
	// one frame in a second leaves late. Where another process took the processor
	// now and then, there are not for a second as many writes as frames: 64 callers
	// made 125,000 calls/s then, of 300,000.
	firstPause = timeSlice
	maxPause   = time.Second

	// soon is after how many times the last pause, or less.
	soon = 8
)

// Crowd is what a link knows of its callers. Where frames arrive in crowds, those they
// wake send in crowds too: who is about to send gives way to the others, and then sends
// what all have committed meanwhile. The zero value knows of no crowd.
//
// Who delivers calls Arrived; any goroutine calls the rest.
type Crowd struct {
	many   atomic.Bool  // the last frames that arrived were several
	paused atomic.Int64 // until so long after began, nobody gives way
	pause  atomic.Int64 // how long that is, or was
}

var began = time.Now()

// Arrived notes how many frames came together.
func (c *Crowd) Arrived(frames int) {
	if many := frames > 1; frames > 0 && many != c.many.Load() {
		c.many.Store(many)
	}
}

// Here says that there is a crowd.
func (c *Crowd) Here() bool { return c.many.Load() }

// GiveWay lets others commit, if there is a crowd and that is worth while.
func (c *Crowd) GiveWay() {
	if !c.Here() {
		return
	}
	from := time.Since(began)
	if int64(from) < c.paused.Load() {
		return
	}
	runtime.Gosched()
	if to := time.Since(began); to-from >= timeSlice {
		c.inVain(to)
	}
}

// inVain has nobody give way for a while.
func (c *Crowd) inVain(now time.Duration) {
	last := time.Duration(c.pause.Load())
	pause := firstPause
	if now-time.Duration(c.paused.Load()) < soon*last {
		pause = min(2*last, maxPause)
	}
	c.pause.Store(int64(pause))
	c.paused.Store(int64(now + pause))
}
