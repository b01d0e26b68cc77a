package rdma

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

	// crowdPause is how long nobody gives way after that: one frame in so long
	// leaves late.
	crowdPause = time.Second
)

// crowd lets frames of many callers leave together. Where frames arrive in
// crowds, those they wake send in crowds too: the first to flush gives way to the
// others and then posts what all have committed meanwhile. With 64 callers
// on two emulated processors that was 23 % more calls.
//
// The poller writes many; any goroutine uses the rest.
type crowd struct {
	many   atomic.Bool  // the last batch that brought frames brought several
	giving atomic.Bool  // somebody gives way, and flushes then
	paused atomic.Int64 // until so long after born, nobody does
	born   time.Time
}

// arrived notes how many frames came together.
func (c *crowd) arrived(frames int) {
	if many := frames > 1; frames > 0 && many != c.many.Load() {
		c.many.Store(many)
	}
}

// giveWay lets others commit, and says whether it is the caller who flushes.
func (c *crowd) giveWay() bool {
	began := time.Since(c.born)
	if int64(began) < c.paused.Load() {
		return true
	}
	if !c.giving.CompareAndSwap(false, true) {
		return false
	}
	runtime.Gosched()
	c.giving.Store(false) // before the flush: who commits from now on flushes
	if ended := time.Since(c.born); ended-began >= timeSlice {
		c.paused.Store(int64(ended + crowdPause))
	}
	return true
}

// Flush posts what was published. See transport.Link.
func (l *link) Flush() {
	if l.crowd.many.Load() && (l.send.flushing() || !l.crowd.giveWay()) {
		return
	}
	l.flush()
}

// flushing says that somebody has the flush lock, a poller in its batch perhaps,
// and looks once more when it lets go. To ask is to have the lock for a moment, in
// which others leave: so who is told no must flush, or know who will.
func (r *sendRing) flushing() bool {
	if !r.mu.TryLock() {
		return true
	}
	r.mu.Unlock()
	return false
}
