package transport

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// handshakeGrace is how long a connection has for its HELLO although others
// wait to be accepted: some round trips, and little to an attacker.
const handshakeGrace = 100 * time.Millisecond

// Acceptor takes in sessions at one address.
//
// Serve's goroutine accepts. Each connection has the goroutines of its session
// and stands in pending until it said HELLO or ended; a watcher takes it out.
type Acceptor struct {
	network  *Network
	cfg      Config
	listener Listener
	freed    chan struct{} // one token: there is room in pending
	closed   chan struct{}
	once     sync.Once
	watchers sync.WaitGroup

	mu      sync.Mutex
	pending []pendingSession // oldest first
}

type pendingSession struct {
	s     *Session
	since time.Time
}

func newAcceptor(n *Network, cfg Config, l Listener) *Acceptor {
	return &Acceptor{
		network: n, cfg: cfg, listener: l,
		freed:  make(chan struct{}, 1),
		closed: make(chan struct{}),
	}
}

// Addr is the address it listens at.
func (a *Acceptor) Addr() net.Addr { return a.listener.Addr() }

// Close stops listening and drops connections that have not said HELLO.
// Sessions live on.
func (a *Acceptor) Close() error {
	var err error
	a.once.Do(func() {
		close(a.closed)
		err = a.listener.Close()
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, p := range a.pending {
			p.s.Close(nil)
		}
	})
	return err
}

// Serve accepts connections until Close, after which it returns nil, or until
// the listener fails. newSink is called for each session, from many
// goroutines, before its first message; it must not wait.
func (a *Acceptor) Serve(newSink func(*Session) Sink) error {
	defer a.watchers.Wait()
	var pause time.Duration
	for {
		link, err := a.listener.Accept()
		switch {
		case err == nil:
			pause = 0
			a.admit(newSession(a.network, a.cfg, link, false, newSink))
		case a.isClosed():
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// Out of file descriptors, say: it passes when others close.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-a.closed:
			}
		}
	}
}

func (a *Acceptor) isClosed() bool {
	select {
	case <-a.closed:
		return true
	default:
		return false
	}
}

// admit starts the session once there is room for it among the pending.
func (a *Acceptor) admit(s *Session) {
	for !a.enter(s) {
	}
	s.start()
	a.watchers.Go(func() {
		select {
		case <-s.greeted:
		case <-s.ending:
		}
		a.leave(s)
	})
}

// enter puts the session in, or makes or waits for room.
func (a *Acceptor) enter(s *Session) bool {
	now := time.Now()
	a.mu.Lock()
	if len(a.pending) < a.cfg.MaxHandshakes {
		a.pending = append(a.pending, pendingSession{s, now})
		if a.isClosed() {
			s.Close(nil)
		}
		a.mu.Unlock()
		return true
	}
	oldest := a.pending[0]
	a.mu.Unlock()

	wait := handshakeGrace - now.Sub(oldest.since)
	if wait <= 0 {
		oldest.s.end("closed here", errors.New("no HELLO, and others wait"), false)
	}
	select {
	case <-a.freed:
	case <-time.After(max(wait, time.Millisecond)):
	}
	return false
}

func (a *Acceptor) leave(s *Session) {
	a.mu.Lock()
	a.pending = slices.DeleteFunc(a.pending, func(p pendingSession) bool { return p.s == s })
	a.mu.Unlock()
	select {
	case a.freed <- struct{}{}:
	default:
	}
}
