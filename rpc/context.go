package rpc

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// callContext is the context of a handler. It ends at its deadline, or earlier
// by end, for good.
//
// Most handlers look at their context rarely and never wait for it, so it is
// only a number and a state until somebody asks for more. From Done on a
// context of the standard library does the work, timer included; contexts that
// handlers derive attach to that one directly.
//
// It is used for one call only and never again: what a handler keeps of it
// after its return sees a context that is over.
type callContext struct {
	id       uint64 // of the call; this and the next two are fixed before the handler starts
	deadline int64  // as clock tells it
	timed    bool   // there is a deadline
	state    atomic.Uint32
	more     atomic.Pointer[askedContext]
}

// States of a callContext. It leaves live once.
const (
	live = iota
	canceled
	expired
)

// askedContext is what a callContext has once it is asked for. Both fields are
// set once, under mu.
type askedContext struct {
	mu       sync.Mutex
	deadline time.Time
	inner    context.Context
	cancel   context.CancelFunc // of inner
}

// clock is a time that only goes forward, in nanoseconds. Reading it costs half
// of time.Now.
func clock() int64 { return int64(time.Since(clockStart)) }

var clockStart = time.Now()

// Deadline is when the time of the call is over on this machine's clock.
func (c *callContext) Deadline() (time.Time, bool) {
	if !c.timed {
		return time.Time{}, false
	}
	a := c.asked()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.deadlineOf(c), true
}

// Done is closed when the context ends.
func (c *callContext) Done() <-chan struct{} {
	a := c.asked()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inner == nil {
		if c.timed && c.state.Load() != canceled {
			a.inner, a.cancel = context.WithDeadline(context.Background(), a.deadlineOf(c))
		} else {
			a.inner, a.cancel = context.WithCancel(context.Background())
		}
		if c.state.Load() == canceled {
			a.cancel()
		}
	}
	return a.inner.Done()
}

// Err is nil until the context ends, then Canceled or DeadlineExceeded.
func (c *callContext) Err() error {
	if c.timed && c.state.Load() == live && clock() >= c.deadline {
		c.state.CompareAndSwap(live, expired)
	}
	switch c.state.Load() {
	case canceled:
		return context.Canceled
	case expired:
		return context.DeadlineExceeded
	}
	return nil
}

// Value has nothing of its own.
func (c *callContext) Value(key any) any {
	a := c.more.Load()
	if a == nil {
		return nil
	}
	a.mu.Lock()
	inner := a.inner
	a.mu.Unlock()
	if inner == nil {
		return nil
	}
	return inner.Value(key) // how package context finds what to attach to
}

// isCanceled says whether somebody has ended the context, without a look at the
// clock.
func (c *callContext) isCanceled() bool { return c.state.Load() == canceled }

// end cancels the context unless it is over.
func (c *callContext) end() {
	a := c.more.Load()
	if a != nil {
		_ = c.Err() // whoever waits for Done has seen the deadline pass
	}
	c.state.CompareAndSwap(live, canceled)
	if a == nil {
		a = c.more.Load() // Done was asked for meanwhile, or finds it canceled
	}
	if a != nil {
		a.stop()
	}
}

// asked makes more of the context.
func (c *callContext) asked() *askedContext {
	if a := c.more.Load(); a != nil {
		return a
	}
	c.more.CompareAndSwap(nil, &askedContext{})
	return c.more.Load()
}

// deadlineOf is not before the deadline by the clock, so that Err says that it
// has passed when Done does. Callers hold mu.
func (a *askedContext) deadlineOf(c *callContext) time.Time {
	if a.deadline.IsZero() {
		left := time.Duration(c.deadline - clock())
		a.deadline = time.Now().Add(left)
	}
	return a.deadline
}

func (a *askedContext) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil {
		a.cancel()
	}
}
