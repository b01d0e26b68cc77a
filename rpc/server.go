package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// ErrServerClosed is what Serve returns after Shutdown or Close, and why their
// sessions ended.
var ErrServerClosed = errors.New("rpc: server closed")

// errShuttingDown refuses calls after Shutdown has begun.
var errShuttingDown = errors.New("server takes no new calls, it is shutting down")

// farewell is how long Shutdown waits for clients to close their sessions
// once the last reply is sent, so that it is not lost.
const farewell = time.Second

// Server runs handlers for calls. Register services, Listen, Serve; Shutdown
// or Close end it, for good. All methods may be called from any goroutine.
//
// mu guards what says how the server stands. The methods are fixed by Listen
// and read without it from then on.
type Server struct {
	network *transport.Network
	config  serverConfig
	methods map[uint64]*method
	workers workers[arrival]
	stats   serverStats

	draining    atomic.Bool
	owed        atomic.Int64  // messages in outboxes
	drained     chan struct{} // closed when all is answered while draining
	drainedOnce sync.Once

	mu       sync.Mutex
	acceptor *transport.Acceptor
	listened bool // methods are fixed
	closed   bool
	peers    map[*peer]struct{} // of whose sessions something is left
	sessions int                // of these, that have not ended
}

// method is a registered method with its implementation.
type method struct {
	*Method
	codec  codec.Codec
	serve  serveFunc
	inline bool
	wary   atomic.Int32 // runs of it that may be long, from now on
}

// isWary says that a run of the handler may be long.
func (m *method) isWary() bool { return m.wary.Load() > 0 }

// learn takes note of a run of so many nanoseconds. After a long one the next may
// be long too: as many of them as it lasted times shortRun, so that what others
// wait for runs that were not foreseen is shortRun per call at most.
func (m *method) learn(took int64) {
	wary := m.wary.Load()
	switch runs := took / int64(shortRun); {
	case runs > int64(wary):
		m.wary.Store(int32(min(runs, maxWary)))
	case runs == 0 && wary > 0:
		m.wary.Add(-1)
	}
}

type serverStats struct {
	inline, refused, late, panics atomic.Uint64
}

// ServerStats count what a Server did.
type ServerStats struct {
	Sessions int    // now
	InFlight int64  // calls that wait for a handler, have one, or whose answer waits in an outbox, now
	Calls    uint64 // calls that a handler was to run for
	Refused  uint64 // calls refused unseen: unknown method, limit, shutdown
	Late     uint64 // responses dropped because nobody waited for them
	Panics   uint64 // handlers that panicked
}

// NewServer makes a server that will listen on network. Wrong options are
// reported by Listen.
func NewServer(network *transport.Network, opts ...ServerOption) *Server {
	s := &Server{
		network: network,
		config:  defaultServerConfig(),
		methods: map[uint64]*method{},
		drained: make(chan struct{}),
		peers:   map[*peer]struct{}{},
	}
	for _, o := range opts {
		o.applyServer(&s.config)
	}
	c := &s.config
	w := &s.workers
	w.limit, w.queueLimit = c.maxHandlers, c.maxQueued
	w.shareLimit, w.shareQueue = c.perSession()
	w.runner = func() func(arrival) int64 { return new(serverCall).run }
	w.atRest = s.checkDrained
	return s
}

// RegisterError says why a service was not registered. None of its methods is then.
type RegisterError struct {
	Service string
	Method  string // full name, if one method is the reason
	Reason  string
}

func (e *RegisterError) Error() string {
	what := e.Service
	if e.Method != "" {
		what = e.Method
	}
	return fmt.Sprintf("rpc: register %s: %s", what, e.Reason)
}

// Register has impl serve the calls of a service. It must come before Listen.
// The error is a *RegisterError: two methods of one name or with one 64-bit
// hash, an impl that does not have the methods, a server that listens already.
func (s *Server) Register(desc *ServiceDesc, impl any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listened {
		return &RegisterError{Service: desc.Name, Reason: "the server listens already"}
	}
	added := map[uint64]*method{}
	for _, d := range desc.Methods {
		wrong := func(format string, args ...any) error {
			return &RegisterError{Service: desc.Name, Method: d.Method.Name, Reason: fmt.Sprintf(format, args...)}
		}
		id := wire.MethodID(d.Method.Name)
		other := s.methods[id]
		if other == nil {
			other = added[id]
		}
		switch {
		case other != nil && other.Name == d.Method.Name:
			return wrong("registered twice")
		case other != nil:
			return wrong("has the method id %#x of %s; rename one of them", id, other.Name)
		case d.Handler.bind == nil:
			return wrong("has no handler")
		}
		cod := d.Method.codec()
		serve, err := d.Handler.bind(impl, cod)
		if err != nil {
			return wrong("%v", err)
		}
		added[id] = &method{Method: d.Method, codec: cod, serve: serve, inline: s.config.inline[d.Method.Name]}
	}
	for id, m := range added {
		s.methods[id] = m
	}
	return nil
}

// Listen opens the server's address, "host:port" as the network's carrier
// takes it. Calls are served from Serve on.
func (s *Server) Listen(addr string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrServerClosed
	case s.acceptor != nil:
		return fmt.Errorf("rpc: listen on %s: the server listens on %s already", addr, s.acceptor.Addr())
	}
	if err := s.config.check(s.methods); err != nil {
		return err
	}
	a, err := s.network.Listen(addr)
	if err != nil {
		return fmt.Errorf("rpc: listen on %s: %w", addr, err)
	}
	s.acceptor, s.listened = a, true
	return nil
}

// Addr is where the server listens; nil before Listen.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acceptor == nil {
		return nil
	}
	return s.acceptor.Addr()
}

// Serve takes in sessions and serves their calls until Shutdown or Close, and
// then returns ErrServerClosed, at once: sessions may still be finishing.
func (s *Server) Serve() error {
	s.mu.Lock()
	a, closed := s.acceptor, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return ErrServerClosed
	case a == nil:
		return errors.New("rpc: Serve before Listen")
	}
	err := a.Serve(func(session *transport.Session) transport.Sink {
		return s.join(session, session.Lane(), session.PeerLimits())
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrServerClosed
	}
	return err
}

// Stats may be called at any time.
func (s *Server) Stats() ServerStats {
	s.mu.Lock()
	sessions := s.sessions
	s.mu.Unlock()
	now, begun := s.workers.busy()
	return ServerStats{
		Sessions: sessions,
		InFlight: int64(now) + s.owed.Load(),
		Calls:    begun + s.stats.inline.Load(),
		Refused:  s.stats.refused.Load(),
		Late:     s.stats.late.Load(),
		Panics:   s.stats.panics.Load(),
	}
}

// Shutdown ends the server gracefully: no new sessions, no new calls (they end
// as NotExecuted), those under way finish and are answered. If ctx ends first,
// the rest is cut off and its error returned. A handler that calls it waits
// for itself.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.workers.refuse()
	s.stop()
	for _, p := range s.snapshot() {
		_ = p.session.GoAway() // an error means that it has ended
	}
	err := s.drain(ctx)
	if err == nil {
		s.waitForClients(ctx)
	}
	s.Close()
	return err
}

// Close ends the server at once: sessions end, the contexts of handlers too.
// It does not wait for handlers that run on regardless; what they return is
// dropped. An inline handler must not call it: it would wait for itself.
func (s *Server) Close() error {
	s.draining.Store(true)
	s.stop()
	peers := s.snapshot()
	for _, p := range peers {
		p.session.Close(ErrServerClosed)
	}
	for _, p := range peers {
		<-p.session.Done()
	}
	s.workers.close()
	return nil
}

// stop takes in no more sessions.
func (s *Server) stop() {
	s.mu.Lock()
	a, was := s.acceptor, s.closed
	s.closed, s.listened = true, true
	s.mu.Unlock()
	if a != nil && !was {
		_ = a.Close() // it gives the address back in any case
	}
}

// drain waits until no call is under way.
func (s *Server) drain(ctx context.Context) error {
	s.checkDrained()
	select {
	case <-s.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkDrained looks whether all is answered. It is called after draining is
// set and whenever that may have become so since.
func (s *Server) checkDrained() {
	if !s.draining.Load() || s.owed.Load() > 0 {
		return
	}
	if now, _ := s.workers.busy(); now == 0 {
		s.drainedOnce.Do(func() { close(s.drained) })
	}
}

// waitForClients gives clients the time to take in the last replies and go.
func (s *Server) waitForClients(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	for _, p := range s.snapshot() {
		select {
		case <-p.session.Done():
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) snapshot() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	peers := make([]*peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	return peers
}

// join makes the server's side of a new session. One that comes after Close
// ends at once.
func (s *Server) join(session session, l lane, limits transport.Limits) *peer {
	own := session.Limits()
	p := &peer{
		server: s, session: session, lane: l,
		maxMessage: limits.MaxMessage, maxCalls: own.MaxCalls,
		share: share[arrival]{maxBytes: max(2*int64(own.MaxMessage), minWaiting), help: l.Help, rouse: l.Rouse},
		calls: arrived{limit: min(own.MaxCalls, maxSlots)},
	}
	s.mu.Lock()
	s.peers[p] = struct{}{}
	s.sessions++
	closed := s.closed
	s.mu.Unlock()
	if closed {
		session.Close(ErrServerClosed)
	}
	return p
}

// leave is told of a session that has ended. Close waits for what is left of it.
func (s *Server) leave(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions--
	go func() {
		<-p.session.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.peers, p)
	}()
}
