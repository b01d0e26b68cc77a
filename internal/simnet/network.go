// Package simnet is TCP in memory: hosts with addresses, connections between
// them, and a network that delays, cuts and resets. Time is that of package
// time, so that testing/synctest makes it virtual. It owns no goroutine.
//
// What is modelled is what a program sees of TCP: ordered streams with a
// window, FIN and RST, a connect that waits for a path that is cut and is
// refused where nobody listens, data that arrives once a cut is over, and the
// end of a connection whose peer cannot be heard for Config.PeerTimeout.
package simnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Config describes a network. The zero value works: no latency, no limit.
type Config struct {
	Latency     time.Duration // one way
	Bandwidth   int           // bytes per second, of each direction between two hosts; 0: no limit
	Window      int           // bytes that were written and not read; default 256 KiB
	PeerTimeout time.Duration // see the package comment; default 15 s

	// OnWrite sees each segment before it leaves and may change it; it runs
	// under the network's lock. nil: nothing is changed.
	OnWrite func(from, to netip.Addr, segment []byte)
}

// Network is a simulated network. Its methods may be called from any goroutine.
//
// mu guards all of it: listeners, connections and what is on its way.
type Network struct {
	cfg Config

	mu        sync.Mutex
	paths     map[way]*path
	ways      []way // the keys of paths, in the order they were first used
	listeners map[netip.AddrPort]*listener
	conns     []*conn // ends that are open, in the order they were made
	lastPort  uint16
}

// way is a direction between two hosts.
type way struct{ from, to netip.Addr }

// path is one direction between two hosts. While it is cut, what is on it
// waits.
type path struct {
	cutSince time.Time // zero: it is open
	timeout  *time.Timer
	delay    time.Duration // beyond Latency
	busy     time.Time     // until then bytes leave that were written before
}

// never is when what was sent on a cut path arrives.
var never = time.Unix(1<<40, 0)

// resend is how long after the end of a cut the first lost segment comes again.
const resend = 5 * time.Millisecond

// New makes a network.
func New(cfg Config) *Network {
	if cfg.Window == 0 {
		cfg.Window = 256 << 10
	}
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = 15 * time.Second
	}
	return &Network{
		cfg: cfg, lastPort: 1 << 15,
		paths:     map[way]*path{},
		listeners: map[netip.AddrPort]*listener{},
	}
}

func (n *Network) path(w way) *path {
	p := n.paths[w]
	if p == nil {
		p = new(path)
		n.paths[w] = p
		n.ways = append(n.ways, w)
	}
	return p
}

// arrival is when bytes arrive that are sent now. n.mu is held.
func (n *Network) arrival(p *path, bytes int) time.Time {
	now := time.Now()
	if p.busy.Before(now) {
		p.busy = now
	}
	if n.cfg.Bandwidth > 0 {
		p.busy = p.busy.Add(time.Duration(bytes) * time.Second / time.Duration(n.cfg.Bandwidth))
	}
	if !p.cutSince.IsZero() {
		return never
	}
	return p.busy.Add(n.cfg.Latency + p.delay)
}

// Cut loses everything from one host to another, in that direction, until
// Heal. What was lost then comes again; connections of which neither end can
// have been heard for PeerTimeout end with ETIMEDOUT at both.
func (n *Network) Cut(from, to netip.Addr) { n.cut(way{from, to}, true) }

// Hold is a Cut behind which no connection times out: the process at one of
// the ends is stopped, and its kernel answers.
func (n *Network) Hold(from, to netip.Addr) { n.cut(way{from, to}, false) }

func (n *Network) cut(w way, timesOut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.path(w)
	if p.cutSince.IsZero() {
		p.cutSince = time.Now()
	}
	if timesOut && p.timeout == nil {
		p.timeout = time.AfterFunc(n.cfg.PeerTimeout, func() { n.timedOut(w) })
	}
}

// Heal ends a Cut or Hold.
func (n *Network) Heal(from, to netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := way{from, to}
	p := n.path(w)
	if p.cutSince.IsZero() {
		return
	}
	for _, c := range n.conns {
		if c.other.way() == w { // which may be closed
			c.in.again(p.cutSince, time.Now().Add(n.cfg.Latency+p.delay+resend))
		}
	}
	p.cutSince = time.Time{}
	if p.timeout != nil {
		p.timeout.Stop()
		p.timeout = nil
	}
}

// HealAll ends every Cut, Hold and Delay.
func (n *Network) HealAll() {
	n.mu.Lock()
	ways := slices.Clone(n.ways)
	for _, p := range n.paths {
		p.delay = 0
	}
	n.mu.Unlock()
	for _, w := range ways {
		n.Heal(w.from, w.to)
	}
}

func (n *Network) timedOut(w way) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.path(w).timeout != nil {
		n.failBetween(w, syscall.ETIMEDOUT)
	}
}

// Delay makes everything that is sent from one host to another take so much
// longer from now on.
func (n *Network) Delay(from, to netip.Addr, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.path(way{from, to}).delay = d
}

// Reset ends all connections between two hosts with ECONNRESET.
func (n *Network) Reset(a, b netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failBetween(way{a, b}, syscall.ECONNRESET)
}

func (n *Network) failBetween(w way, why error) {
	for _, c := range slices.Clone(n.conns) {
		if c.way() == w || c.way() == (way{w.to, w.from}) {
			c.fail(why)
		}
	}
}

// Kill is the death of the process on a host: nobody listens there any more,
// its connections are reset. What the dead process does to its ends fails.
func (n *Network) Kill(host netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, l := range n.listeners {
		if at.Addr() == host {
			l.close()
		}
	}
	for _, c := range slices.Clone(n.conns) {
		if c.local.Addr() == host {
			c.out.reset(n.arrival(c.path, 0))
			c.fail(syscall.ECONNRESET)
		}
	}
}

// Dial connects from an address to another. It takes a round trip, and waits
// while the path is cut.
func (n *Network) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	for wait := 2 * n.cfg.Latency; ; wait = 50 * time.Millisecond {
		select {
		case <-ctx.Done():
			return nil, opError("dial", to, ctx.Err())
		case <-time.After(wait):
		}
		c, err := n.connect(from, to)
		if err != nil {
			return nil, opError("dial", to, err)
		}
		if c != nil {
			return c, nil
		}
	}
}

// connect makes a connection, or nil if the path is cut.
func (n *Network) connect(from netip.Addr, to netip.AddrPort) (*conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	there, back := n.path(way{from, to.Addr()}), n.path(way{to.Addr(), from})
	if !there.cutSince.IsZero() || !back.cutSince.IsZero() {
		return nil, nil
	}
	l := n.listeners[to]
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	n.lastPort++
	a, b := newStream(), newStream()
	client := &conn{n: n, local: netip.AddrPortFrom(from, n.lastPort), remote: to, path: there, in: b, out: a}
	server := &conn{n: n, local: to, remote: client.local, path: back, in: a, out: b}
	client.other, server.other = server, client
	n.conns = append(n.conns, client, server)
	l.backlog = append(l.backlog, server)
	signal(l.ready)
	return client, nil
}

// Listen listens at an address; port 0 is a free one.
func (n *Network) Listen(at netip.AddrPort) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at.Port() == 0 {
		n.lastPort++
		at = netip.AddrPortFrom(at.Addr(), n.lastPort)
	}
	if n.listeners[at] != nil {
		return nil, opError("listen", at, syscall.EADDRINUSE)
	}
	l := &listener{n: n, at: at, ready: make(chan struct{}, 1)}
	n.listeners[at] = l
	return l, nil
}

// Open counts the ends of connections that are not closed.
func (n *Network) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

// listener is guarded by Network.mu.
type listener struct {
	n       *Network
	at      netip.AddrPort
	ready   chan struct{} // one token: look again
	backlog []*conn
	closed  bool
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		l.n.mu.Lock()
		switch {
		case l.closed:
			l.n.mu.Unlock()
			signal(l.ready)
			return nil, opError("accept", l.at, net.ErrClosed)
		case len(l.backlog) > 0:
			c := l.backlog[0]
			l.backlog = l.backlog[1:]
			if len(l.backlog) > 0 {
				signal(l.ready)
			}
			l.n.mu.Unlock()
			return c, nil
		}
		l.n.mu.Unlock()
		<-l.ready
	}
}

func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.close()
	return nil
}

// close refuses those that wait to be accepted. Network.mu is held.
func (l *listener) close() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.n.listeners, l.at)
	for _, c := range l.backlog {
		c.out.reset(l.n.arrival(c.path, 0))
		c.fail(syscall.ECONNRESET)
	}
	signal(l.ready)
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

func opError(op string, at netip.AddrPort, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return err
	}
	return fmt.Errorf("simnet: %s %v: %w", op, at, err)
}

// signal leaves a token in a channel of one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
