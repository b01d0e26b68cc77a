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
	// that were about to send, but to somebody who computes.
	timeSlice = 10 * time.Millisecond

	// pause is how long nobody gives way after that: one frame in so long
	// leaves late.
	pause = time.Second
)

// Crowd is what a link knows of its callers. Where frames arrive in crowds, those they
// wake send in crowds too: who is about to send gives way to the others, and then sends
// what all have committed meanwhile. The zero value knows of no crowd.
//
// Who delivers calls Arrived; any goroutine calls the rest.
type Crowd struct {
	many   atomic.Bool  // the last frames that arrived were several
	paused atomic.Int64 // until so long after began, nobody gives way
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
		c.paused.Store(int64(to + pause))
	}
}
