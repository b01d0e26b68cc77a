package transport

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// handshakeGrace is how long a connection has for its HELLO although others
// wait to be accepted: some round trips, and little to an attacker.
const handshakeGrace = 100 * time.Millisecond

// Acceptor takes in sessions at one address, and new connections of those it has.
//
// Serve's goroutine accepts. Each connection stands in pending until it said
// HELLO or ended.
type Acceptor struct {
	network  *Network
	cfg      Config
	listener Listener
	freed    chan struct{} // one token: there is room in pending
	closed   chan struct{}
	once     sync.Once
	partings sync.WaitGroup // goroutines that say REFUSE

	mu       sync.Mutex
	pending  []*caller // oldest first
	over     bool      // Serve returns: nobody is told why any more
	sessions map[wire.SessionID]*Session
}

// caller is a connection that has not said HELLO.
type caller struct {
	link  Link
	since time.Time
	timer *time.Timer // refuses it; guarded by Acceptor.mu
	greeting
}

func newAcceptor(n *Network, cfg Config, l Listener) *Acceptor {
	return &Acceptor{
		network: n, cfg: cfg, listener: l,
		freed:    make(chan struct{}, 1),
		closed:   make(chan struct{}),
		sessions: map[wire.SessionID]*Session{},
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
		a.refuseAll()
	})
	return err
}

func (a *Acceptor) refuseAll() {
	a.mu.Lock()
	pending := slices.Clone(a.pending)
	a.mu.Unlock()
	for _, c := range pending {
		a.refuse(c, net.ErrClosed)
	}
}

// Serve accepts connections until Close, after which it returns nil, or until
// the listener fails. newSink is called for each session, from many
// goroutines, before its first message; it must not wait.
func (a *Acceptor) Serve(newSink func(*Session) Sink) error {
	defer a.part()
	var pause time.Duration
	for {
		link, err := a.listener.Accept()
		switch {
		case err == nil:
			pause = 0
			a.admit(link, newSink)
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

// part ends what Serve has begun.
func (a *Acceptor) part() {
	a.refuseAll()
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	a.partings.Wait()
}

func (a *Acceptor) isClosed() bool {
	select {
	case <-a.closed:
		return true
	default:
		return false
	}
}

// admit lets the connection say HELLO once there is room for it among the pending.
func (a *Acceptor) admit(link Link, newSink func(*Session) Sink) {
	c := &caller{link: link, since: time.Now()}
	c.hello = func(m *wire.HelloMsg) (*path, error) { return a.hello(c, m, newSink) }
	c.done = func(err error) { a.leave(c, err) }
	for !a.enter(c) {
	}
	if a.isClosed() {
		a.refuse(c, net.ErrClosed)
	}
	link.Start(c)
}

// refuse ends a connection that has not said HELLO.
func (a *Acceptor) refuse(c *caller, why error) {
	if c.claim() {
		c.done(why)
	}
}

// enter puts the connection in, or makes or waits for room.
func (a *Acceptor) enter(c *caller) bool {
	now := time.Now()
	a.mu.Lock()
	if len(a.pending) < a.cfg.MaxHandshakes {
		a.pending = append(a.pending, c)
		c.timer = time.AfterFunc(a.cfg.HandshakeTimeout, func() { a.refuse(c, errNoHello) })
		a.mu.Unlock()
		return true
	}
	oldest := a.pending[0]
	a.mu.Unlock()

	wait := handshakeGrace - now.Sub(oldest.since)
	if wait <= 0 {
		a.refuse(oldest, errors.New("no HELLO, and others wait"))
	}
	select {
	case <-a.freed:
	case <-time.After(max(wait, time.Millisecond)):
	}
	return false
}

// leave takes out a connection that has said HELLO, or will not any more.
func (a *Acceptor) leave(c *caller, err error) {
	a.mu.Lock()
	a.pending = slices.DeleteFunc(a.pending, func(p *caller) bool { return p == c })
	c.timer.Stop()
	switch {
	case err != nil && a.over:
		c.link.Close(err)
	case err != nil:
		a.partings.Go(func() { bid(c.link, wire.Refuse, err) })
	}
	a.mu.Unlock()
	select {
	case a.freed <- struct{}{}:
	default:
	}
	if err != nil && a.cfg.OnSetupError != nil {
		remote := c.link.Info().Remote
		a.cfg.OnSetupError(remote, &SetupError{Addr: remote.String(), Step: "hello", Err: err})
	}
}

// hello takes in the HELLO of a connection.
func (a *Acceptor) hello(c *caller, m *wire.HelloMsg, newSink func(*Session) Sink) (*path, error) {
	if err := checkVersion(m); err != nil {
		return nil, err
	}
	own := a.network.reach(&a.cfg, c.link.Info().Local)
	answer := a.cfg.hello(m.Session, own)
	first := ownFrame{wire.Hello, answer.Append(nil)}
	if len(m.Lanes) > 0 {
		a.mu.Lock()
		s := a.sessions[m.Session]
		a.mu.Unlock()
		if s == nil {
			return nil, errUnknownSession
		}
		return s.attach(c.link, &first)
	}
	both, err := own.with(m, a.cfg.FastLink)
	if err != nil {
		return nil, err
	}
	s, p := newSession(a.network, a.cfg, false, m, c.link, both)
	if err := a.open(s, newSink); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.post(p, first)
	s.mu.Unlock()
	s.begin()
	return p, nil
}

var errUnknownSession = errors.New("no such session")

// open adds a session and makes its sink, for which another connection of the
// session waits.
func (a *Acceptor) open(s *Session, newSink func(*Session) Sink) error {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	err := a.add(s)
	if err == nil {
		s.sink = newSink(s)
	}
	return err
}

func (a *Acceptor) add(s *Session) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.sessions[s.id] != nil:
		return fmt.Errorf("session %x is there already", s.id)
	case len(a.sessions) >= a.cfg.MaxSessions:
		return fmt.Errorf("%d sessions, no more are served", len(a.sessions))
	}
	a.sessions[s.id] = s
	s.forget = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.sessions, s.id)
	}
	return nil
}
