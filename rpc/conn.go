package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
)

// ErrConnClosed is the cause of errors of calls on a Conn that this side closed.
var ErrConnClosed = errors.New("connection closed by this side")

// errGoingAway is why calls are refused after the server has begun to shut down.
var errGoingAway = errors.New("server takes no new calls, it is shutting down")

// Conn is a connection to a server, on which any number of goroutines make
// calls. It lasts until it is closed.
//
// It has one session at a time for new calls. When that ends, or the server
// says that it is going away, the next call makes another, for itself and all
// others that need one, while calls under way on the old one finish. A call
// that surely was not executed goes to the new session by itself, one that may
// have been only if its method is idempotent; see Call.
//
// Any goroutine may call its methods. mu guards the second group; what leaves
// sessions is closed by Close or by itself.
type Conn struct {
	current atomic.Pointer[clientSession] // nil or refusing: the next call makes another
	dials   atomic.Int32                  // since a server last answered a call
	policy  retryPolicy
	dial    func(context.Context, *Conn) (*clientSession, error)
	ctx     context.Context // done when the Conn is closed
	cancel  context.CancelFunc
	done    chan struct{} // closed when it is closed and nothing is left of it

	stale, retries atomic.Uint64

	mu       sync.Mutex
	closed   bool
	flight   *flight                     // of a dial; nil while there is none
	sessions map[*clientSession]struct{} // of which something is left
	lastInfo transport.Info              // of the last session that left
}

// ConnStats count what a Conn did.
type ConnStats struct {
	Active  int    // calls that wait for an answer now
	Retries uint64 // calls that were made again, each time counted
	Stale   uint64 // replies to calls that had ended, dropped
}

// Dial makes a connection to the server at addr, over the best that both sides
// have; Conn.Transport says what that is. ctx bounds the set-up of the first
// session, and not what comes after. The error is an *Error with code
// Unavailable, or that of ctx; it unwraps to what the network said.
func Dial(ctx context.Context, network *transport.Network, addr string) (*Conn, error) {
	c := newConn(func(ctx context.Context, c *Conn) (*clientSession, error) {
		var s *clientSession
		_, err := network.Dial(ctx, addr, func(ts *transport.Session) transport.Sink {
			s = newClientSession(c, ts, ts.Lane(), ts.PeerLimits())
			return (*clientSink)(s)
		})
		if err != nil {
			return nil, err
		}
		return s, nil
	})
	s, err := c.dial(ctx, c)
	if err != nil {
		c.cancel()
		return nil, dialError(ctx, err)
	}
	c.join(s)
	return c, nil
}

func newConn(dial func(context.Context, *Conn) (*clientSession, error)) *Conn {
	c := &Conn{policy: defaultRetryPolicy, dial: dial, done: make(chan struct{}), sessions: map[*clientSession]struct{}{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Transport says what carries new calls now, and why not something faster.
// Between two sessions it is what carried the last one.
func (c *Conn) Transport() transport.Info {
	if s := c.current.Load(); s != nil {
		return s.session.Transport()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastInfo
}

// Stats may be called at any time.
func (c *Conn) Stats() ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := ConnStats{Retries: c.retries.Load(), Stale: c.stale.Load()}
	for s := range c.sessions {
		stats.Active += s.calls.active()
	}
	return stats
}

// Done is closed when the Conn is closed and all it held is released.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the sessions and waits until all they held is released. Calls
// under way fail with Unavailable. Any goroutine may call it, any number of
// times.
func (c *Conn) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	flight := c.flight
	var open []*clientSession
	for s := range c.sessions {
		open = append(open, s)
		s.refuse(ErrConnClosed)
		s.session.Close(nil)
	}
	c.mu.Unlock()
	if !first {
		<-c.done
		return nil
	}
	c.cancel()
	if flight != nil {
		<-flight.landed
	}
	for _, s := range open {
		<-s.session.Done()
	}
	close(c.done)
	return nil
}

// join takes in a session for new calls, unless the Conn is closed.
func (c *Conn) join(s *clientSession) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.sessions[s] = struct{}{}
	c.current.Store(s)
	if s.session.Err() != nil { // left may have been called before
		go c.forget(s)
	}
	return true
}

// left is told of a session that has ended. Close waits for what is left of it.
func (c *Conn) left(s *clientSession) {
	info := s.session.Transport()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current.CompareAndSwap(s, nil) {
		c.lastInfo = info
	}
	go c.forget(s)
}

// forget takes out a session once nothing of it is left.
func (c *Conn) forget(s *clientSession) {
	<-s.session.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s)
}

// answered says that a server has answered a call.
func (c *Conn) answered() {
	if c.dials.Load() != 0 {
		c.dials.Store(0)
	}
}
