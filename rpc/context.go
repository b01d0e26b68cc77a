package rpc

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of a handler. It ends at its deadline, or earlier
// by end, for good.
//
// Most handlers look at their context rarely and never wait for it, so it is
// only a deadline and an error until somebody asks for Done. From then on a
// context of the standard library does the work, timer included; contexts that
// handlers derive attach to that one directly.
//
// It is used for one call only and never again: what a handler keeps of it
// after its return sees a context that is over.
type callContext struct {
	deadline time.Time // zero is none; fixed before the handler starts

	mu     sync.Mutex
	err    error              // why it was ended
	inner  context.Context    // once Done was asked for
	cancel context.CancelFunc // of inner
}

// Deadline is when the time of the call is over on this machine's clock.
func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Done is closed when the context ends.
func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		if c.deadline.IsZero() || c.err == context.Canceled {
			c.inner, c.cancel = context.WithCancel(context.Background())
		} else {
			c.inner, c.cancel = context.WithDeadline(context.Background(), c.deadline)
		}
		if c.err != nil {
			c.cancel()
		}
	}
	return c.inner.Done()
}

// Err is nil until the context ends, then Canceled or DeadlineExceeded.
func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.inner != nil:
		return c.inner.Err()
	case c.err == nil && !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		c.err = context.DeadlineExceeded
	}
	return c.err
}

// Value has nothing of its own.
func (c *callContext) Value(key any) any {
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner == nil {
		return nil
	}
	return inner.Value(key) // how package context finds what to attach to
}

// end cancels the context unless it is over.
func (c *callContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = context.Canceled
	}
	if c.cancel != nil {
		c.cancel()
	}
}
