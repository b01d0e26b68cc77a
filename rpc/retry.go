package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// retryPolicy says how often calls are made again and sessions dialed.
//
// A dial waits for a random time up to first, doubled for each dial since a
// server last answered a call, at most most: full jitter, so that the clients
// of a server that comes back do not come at once. The session of a server that
// takes it in and answers nothing counts as one that could not be made.
type retryPolicy struct {
	tries       int           // of one call, on as many sessions
	dials       int           // in a row; when that one or a later one fails, so do the calls that wait for it
	first, most time.Duration // before a dial
	timeout     time.Duration // of a dial
}

// defaultRetryPolicy waits for 5 s in all, on average, before the tenth dial in a
// row: servers restart in less. The timeout lets a set-up use all the time it
// may take by Config of the network: connect, HELLO, and a fast link.
var defaultRetryPolicy = retryPolicy{
	tries: 5, dials: 10,
	first: 10 * time.Millisecond, most: 5 * time.Second,
	timeout: 20 * time.Second,
}

// delay is how long the dial waits that comes after so many without an answer;
// random is in [0, 1).
func (p *retryPolicy) delay(dials int, random float64) time.Duration {
	d := p.first
	for ; dials > 0 && d < p.most; dials-- {
		d *= 2
	}
	return time.Duration(random * float64(min(d, p.most)))
}

// mayRepeat says whether a call that failed like this may be made again.
// Refusals for want of room are not among them: whoever is short of room is
// not helped by more calls.
func mayRepeat(m *Method, e *Error) bool {
	return e.Code == Unavailable && !errors.Is(e, ErrConnClosed) &&
		(e.Delivery == NotExecuted || e.Delivery == MaybeExecuted && m.Idempotent)
}

func (c *Conn) call(ctx context.Context, m *Method, req, resp any) error {
	if err := ctx.Err(); err != nil {
		return interrupted(ctx, NotExecuted, m, err)
	}
	var failure *Error
	s := c.current.Load()
	if s != nil {
		failure = s.call(ctx, m, req, resp)
		if failure == nil {
			return nil
		}
	}
	if failure = c.again(ctx, s, failure, m, req, resp); failure != nil {
		return failure
	}
	return nil
}

// again makes a call until it ends, after it has failed on session s. If that
// is nil, there was none yet.
func (c *Conn) again(ctx context.Context, s *clientSession, failure *Error, m *Method, req, resp any) *Error {
	tries, delivery := 0, NotExecuted // unless one of the tries may have been executed
	if failure != nil {
		tries = 1
	}
	for {
		if failure != nil {
			if failure.Delivery == NotExecuted {
				failure.Delivery = delivery
			}
			if tries == c.policy.tries || !mayRepeat(m, failure) {
				return failure
			}
			delivery = failure.Delivery
			c.retries.Add(1)
		}
		var err error
		if s, err = c.another(ctx, s); s == nil {
			return noSession(ctx, delivery, m, err, failure)
		}
		tries++
		if failure = s.call(ctx, m, req, resp); failure == nil {
			return nil
		}
	}
}

// noSession is the failure of a call for which there is no session, because of
// err, which is nil if ctx is over and no dial has failed. last is how the call
// failed before, if it did.
func noSession(ctx context.Context, d Delivery, m *Method, err error, last *Error) *Error {
	e := interrupted(ctx, d, m, err)
	if e.Code != Unavailable && err != nil {
		e.Message += "; while waiting for a session: " + err.Error()
	}
	if last != nil {
		e.Message += "; before that: " + last.Message
	}
	return e
}

// flight is a dial that any number of calls wait for.
type flight struct {
	number  int           // in a row
	landed  chan struct{} // closed when session and err are set
	session *clientSession
	err     error
}

// another is a session other than old that takes calls. It waits until there is
// one. With its context over it fails with how the last dial failed, or nil.
func (c *Conn) another(ctx context.Context, old *clientSession) (s *clientSession, failure error) {
	for {
		s, f, err := c.board(old)
		if s != nil || err != nil {
			return s, err
		}
		select {
		case <-f.landed:
		case <-ctx.Done():
			return nil, failure
		}
		failure = f.err
		switch {
		case f.err == nil:
			return f.session, nil
		case f.number >= c.policy.dials || c.ctx.Err() != nil:
			return nil, f.err
		}
	}
}

// board gives a session that takes calls, or else a dial to wait for.
func (c *Conn) board(old *clientSession) (*clientSession, *flight, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrConnClosed
	}
	if s := c.current.Load(); s != nil && s != old && s.refusal.Load() == nil {
		return s, nil, nil
	}
	if c.flight == nil {
		c.flight = &flight{number: int(c.dials.Add(1)), landed: make(chan struct{})}
		go c.fly(c.flight)
	}
	return nil, c.flight, nil
}

// fly makes one dial.
func (c *Conn) fly(f *flight) {
	f.session, f.err = c.redial(f)
	if f.err == nil && !c.join(f.session) {
		f.err = ErrConnClosed
		f.session.session.Close(nil)
		<-f.session.session.Done()
	}
	c.mu.Lock()
	c.flight = nil
	c.mu.Unlock()
	close(f.landed)
}

func (c *Conn) redial(f *flight) (*clientSession, error) {
	timer := time.NewTimer(c.policy.delay(f.number-1, rand.Float64()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
		return nil, ErrConnClosed
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.policy.timeout)
	defer cancel()
	s, err := c.dial(ctx, c)
	switch {
	case err == nil:
		return s, nil
	case c.ctx.Err() != nil:
		return nil, ErrConnClosed
	}
	return nil, fmt.Errorf("dial %d in a row: %w", f.number, err)
}
