// Package tcp makes the links that always work: one TCP connection each, with
// the frames of docs/PROTOCOL.md one behind the other.
//
// A caller writes its frame into the socket itself, and with it those that
// others have committed meanwhile, in one system call; a goroutine takes over
// where the socket would block. One goroutine reads, many frames at a time.
package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/verbena-rpc/verbena/transport"
)

// MaxPayload is the largest payload of a frame in bytes: large enough that
// system calls and headers cost little, small enough to pass others quickly
// (2 ms at 1 Gbit/s).
const MaxPayload = 256 << 10

// Carrier makes links over TCP. The zero value works; Config is not changed
// after first use.
type Carrier struct{ Config Config }

// Config is what a Carrier may be told.
type Config struct {
	// PeerTimeout is how long a peer may leave probes and data without
	// acknowledgement before the link is closed. Default 15 s, range 1 s to
	// 1 h. It costs an idle connection one probe per fifth of it.
	PeerTimeout time.Duration

	// LocalAddr is the IP address that Dial connects from. Default: the
	// system's choice. With several NICs it chooses the one, and with it the
	// RDMA device, since that must have the address.
	LocalAddr string
}

func (c Config) withDefaults() (Config, error) {
	if c.PeerTimeout == 0 {
		c.PeerTimeout = 15 * time.Second
	}
	if c.PeerTimeout < time.Second || c.PeerTimeout > time.Hour {
		return c, fmt.Errorf("tcp: Config.PeerTimeout is %v, expected 1 s to 1 h", c.PeerTimeout)
	}
	if c.LocalAddr != "" && net.ParseIP(c.LocalAddr) == nil {
		return c, fmt.Errorf("tcp: Config.LocalAddr is %q, expected an IP address", c.LocalAddr)
	}
	return c, nil
}

// Dial connects to addr, "host:port". The dialing side chooses the epoch.
func (c *Carrier) Dial(ctx context.Context, addr string) (transport.Link, error) {
	cfg, err := c.Config.withDefaults()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	if cfg.LocalAddr != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(cfg.LocalAddr)}
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return client(conn, cfg)
}

// Listen listens at addr, "host:port" or ":port"; port 0 is a free one.
func (c *Carrier) Listen(addr string) (transport.Listener, error) {
	cfg, err := c.Config.withDefaults()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, cfg: cfg}, nil
}

type listener struct {
	net.Listener
	cfg Config
}

func (l *listener) Accept() (transport.Link, error) {
	conn, err := l.Listener.Accept()
	if errors.Is(err, net.ErrClosed) {
		return nil, net.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	return server(conn, l.cfg)
}

// Client makes the link of the side that connected conn, which it takes over.
// Any ordered stream serves; a *net.TCPConn is written to without a goroutine.
func Client(conn net.Conn) (transport.Link, error) {
	cfg, _ := Config{}.withDefaults()
	return client(conn, cfg)
}

// Server makes the link of the side that accepted conn; see Client.
func Server(conn net.Conn) (transport.Link, error) {
	cfg, _ := Config{}.withDefaults()
	return server(conn, cfg)
}

func client(conn net.Conn, cfg Config) (transport.Link, error) {
	var b [8]byte
	rand.Read(b[:])
	return newLink(conn, cfg, max(1, binary.LittleEndian.Uint64(b[:])))
}

func server(conn net.Conn, cfg Config) (transport.Link, error) {
	return newLink(conn, cfg, 0)
}

// tune sets what a TCP connection needs; other streams are left alone.
func tune(conn net.Conn, cfg Config) error {
	tc, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	// No delay is Go's default. Probes start after a fifth of PeerTimeout;
	// the user timeout is a fifth less, for it takes effect when the next
	// probe is due.
	probe := cfg.PeerTimeout / 5
	err := tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: probe, Interval: probe, Count: 4})
	if err != nil {
		return err
	}
	return setUserTimeout(tc, cfg.PeerTimeout-probe)
}
