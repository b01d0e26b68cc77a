package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// Network makes sessions. The fields are set before first use and not changed
// after; a Network is not copied after first use. Its methods may be called
// from any goroutine.
type Network struct {
	Carrier Carrier // of control links; required
	Fabric  Fabric  // of fast links; nil: every session stays on its control link
	Config  Config

	settingUp atomic.Int32 // fast links that servers of this network are setting up
	rounds    rounds
}

// Config is what a Network may be told. The zero value works.
type Config struct {
	// PayloadSum asks for a checksum over every payload, in both directions,
	// beyond those of TCP and InfiniBand. It costs some 0.1 ns per byte on
	// either side. It holds if either side asks for it.
	PayloadSum bool

	// MaxMessage is the largest message taken in, in bytes. Default 64 MiB,
	// range 4 KiB to 1 GiB. A session allocates at most four times what has
	// arrived of a message, and 2 MiB. It takes in large messages in turn: of
	// those that have begun to arrive it holds at most twice MaxMessage, or
	// 128 MiB if that is more.
	MaxMessage int

	// MaxCalls is how many calls of one session this side takes in at once.
	// Default 4096, range 1 to 2^20.
	MaxCalls int

	// HandshakeTimeout bounds the exchange of HELLO after the connection is
	// there. Default 5 s, at least 1 ms.
	HandshakeTimeout time.Duration

	// MaxHandshakes is how many connections an Acceptor holds that have not
	// said HELLO. When there are more, the oldest is closed, once it had
	// 100 ms. Default 256, at least 1.
	MaxHandshakes int

	// Retain is how many bytes of what was sent a session keeps until the
	// peer has said that it took it in, so that calls outlive the link that
	// carries them. Senders wait where it is used up. Default 8 MiB, range
	// 5 MiB to 1 GiB. Half is for chunks of large messages; less is used unless
	// acknowledgements are slow, or many large messages are under way.
	Retain int

	// Keepalive is how long a link may be silent before it is taken for dead;
	// the peer is asked for a sign of life meanwhile. Default 15 s, range 30 ms
	// to 24 h. Shorter notices a stopped or unreachable peer sooner, and gives
	// up on one that only stalls.
	Keepalive time.Duration

	// ResumeWithin is how long a session lives without any link, for the client
	// to make a new connection; and Keepalive longer where the control link
	// was given up for silence, for the client may not know of it yet. Default
	// 4 s, range 1 ms to 24 h. Longer outlives longer outages; until then the
	// calls of a dead peer neither end nor give back what they hold.
	ResumeWithin time.Duration

	// Standby is how many fast links a client holds ready beside the one that
	// carries its calls, so that these move at once when it dies. Each pins the
	// memory of its rings on both sides. Default 1, at most 4; -1: none.
	Standby int

	// MaxSessions is how many sessions an Acceptor serves at once. Default
	// 65536, at least 1.
	MaxSessions int

	// ReturnAfter is how long a client waits before it tries to come back to
	// a fast link after one has died, and RetryAfter after an attempt that
	// failed. Each in a row doubles the time, up to a minute, and it is
	// spread by a quarter either way. Default 1 s and 10 s, range 1 ms to
	// 24 h. Shorter returns sooner, and disturbs more where a path flaps.
	ReturnAfter, RetryAfter time.Duration

	// FastLink says whether sessions use the Fabric. Default PreferFastLink.
	FastLink FastLinkPolicy

	// OnSetupError is told of connections to an Acceptor that did not become
	// sessions; may be nil. It is called from many goroutines and must not wait.
	OnSetupError func(remote net.Addr, err error)
}

// FastLinkPolicy says whether sessions use fast links.
type FastLinkPolicy uint8

// Policies. With RequireFastLink a session that stays on TCP ends with a
// *NoFastLinkError; it is the only one under which a failed attempt fails Dial.
const (
	PreferFastLink FastLinkPolicy = iota
	RequireFastLink
	NeverFastLink
)

// Times and limits of the set-up; docs/PROTOCOL.md, "Connection set-up".
const (
	attemptTimeout = 5 * time.Second        // of a client for a fast link
	leaseTimeout   = 15 * time.Second       // of a server for a fast link; longer, so that the client says why
	maxAttempts    = 64                     // fast links that a server sets up at once: each holds a QP and its rings
	maxRetry       = time.Minute            // between attempts of a client, unless its Config says more
	standbyDelay   = 100 * time.Millisecond // from a fast link that is ready to an attempt at the next
	maxStandby     = 4
	retainedFrames = 4096 // that a session keeps, half of them chunks; each takes 230 bytes, and its payload where that is larger than smallKept
)

// config validates the Config and fills in defaults.
func (n *Network) config() (Config, error) {
	c := n.Config
	if n.Carrier == nil {
		return c, errors.New("transport: Network.Carrier is nil")
	}
	setDefault(&c.MaxMessage, 64<<20)
	setDefault(&c.MaxCalls, 4096)
	setDefault(&c.MaxHandshakes, 256)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.Retain, 8<<20)
	setDefault(&c.ReturnAfter, time.Second)
	setDefault(&c.RetryAfter, 10*time.Second)
	setDefault(&c.Keepalive, 15*time.Second)
	setDefault(&c.ResumeWithin, 4*time.Second)
	setDefault(&c.Standby, 1)
	setDefault(&c.MaxSessions, 65536)
	switch {
	case c.MaxMessage < 4<<10 || c.MaxMessage > 1<<30:
		return c, &ConfigError{"MaxMessage", c.MaxMessage, "4 KiB to 1 GiB"}
	case c.MaxCalls < 1 || c.MaxCalls > 1<<20:
		return c, &ConfigError{"MaxCalls", c.MaxCalls, "1 to 2^20"}
	case c.MaxHandshakes < 1:
		return c, &ConfigError{"MaxHandshakes", c.MaxHandshakes, "at least 1"}
	case c.HandshakeTimeout < time.Millisecond:
		return c, &ConfigError{"HandshakeTimeout", c.HandshakeTimeout, "at least 1 ms"}
	case c.Retain < 5<<20 || c.Retain > 1<<30:
		return c, &ConfigError{"Retain", c.Retain, "5 MiB to 1 GiB"}
	case c.ReturnAfter < time.Millisecond || c.ReturnAfter > 24*time.Hour:
		return c, &ConfigError{"ReturnAfter", c.ReturnAfter, "1 ms to 24 h"}
	case c.RetryAfter < time.Millisecond || c.RetryAfter > 24*time.Hour:
		return c, &ConfigError{"RetryAfter", c.RetryAfter, "1 ms to 24 h"}
	case c.Keepalive < 30*time.Millisecond || c.Keepalive > 24*time.Hour:
		return c, &ConfigError{"Keepalive", c.Keepalive, "30 ms to 24 h"}
	case c.ResumeWithin < time.Millisecond || c.ResumeWithin > 24*time.Hour:
		return c, &ConfigError{"ResumeWithin", c.ResumeWithin, "1 ms to 24 h"}
	case c.Standby < -1 || c.Standby > maxStandby:
		return c, &ConfigError{"Standby", c.Standby, "-1 to 4"}
	case c.MaxSessions < 1:
		return c, &ConfigError{"MaxSessions", c.MaxSessions, "at least 1"}
	case c.FastLink > NeverFastLink:
		return c, &ConfigError{"FastLink", c.FastLink, "one of the policies"}
	case c.FastLink == RequireFastLink && n.Fabric == nil:
		return c, &ConfigError{"FastLink", "RequireFastLink", "a Network with a Fabric"}
	}
	c.Standby = max(0, c.Standby)
	return c, nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Dial makes a session with the server at addr. It returns when it is settled
// which link carries the lane: at most the time to connect, HandshakeTimeout,
// and 5 s for a fast link that does not come up. ctx bounds all of it, and not
// the session.
//
// newSink is called once, from another goroutine, if the server said HELLO.
// From then on its Ended is called exactly once, even where Dial fails. What a
// failed Dial leaves is released within about a second.
func (n *Network) Dial(ctx context.Context, addr string, newSink func(*Session) Sink) (*Session, error) {
	cfg, err := n.config()
	if err != nil {
		return nil, err
	}
	link, err := n.Carrier.Dial(ctx, addr)
	if err != nil {
		return nil, &SetupError{Addr: addr, Step: "connect", Err: err}
	}
	s, err := n.greet(ctx, cfg, link, addr, newSink)
	if err != nil {
		return nil, &SetupError{Addr: addr, Step: "hello", Err: err}
	}
	select {
	case <-s.settled:
		return s, nil
	case <-s.ending:
	case <-ctx.Done():
		s.Close(ctx.Err())
	}
	return nil, &SetupError{Addr: addr, Step: "fast link", Err: s.Err()}
}

// greet makes the client's session over a new link.
func (n *Network) greet(ctx context.Context, cfg Config, link Link, addr string, newSink func(*Session) Sink) (s *Session, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.HandshakeTimeout, errNoHello)
	defer cancel()
	var id wire.SessionID
	rand.Read(id[:])
	own := n.reach(&cfg, link.Info().Local)
	m := cfg.hello(id, own)
	err = greet(ctx, link, &m, func(peer *wire.HelloMsg) (*path, error) {
		if err := checkVersion(peer); err != nil {
			return nil, err
		}
		if peer.Session != id {
			return nil, fmt.Errorf("HELLO for session %x, asked for %x", peer.Session, id)
		}
		both, err := own.with(peer, cfg.FastLink)
		if err != nil {
			return nil, err
		}
		var p *path
		s, p = newSession(n, cfg, true, peer, link, both)
		s.addr = addr
		s.open(newSink)
		s.begin()
		return p, nil
	})
	if err != nil {
		bid(link, wire.Close, err)
		<-link.Done()
	}
	return s, err
}

var errNoHello = errors.New("no HELLO in time")

// Listen begins to take in connections at addr, as the Carrier reads it.
func (n *Network) Listen(addr string) (*Acceptor, error) {
	cfg, err := n.config()
	if err != nil {
		return nil, err
	}
	l, err := n.Carrier.Listen(addr)
	if err != nil {
		return nil, err
	}
	return newAcceptor(n, cfg, l), nil
}
