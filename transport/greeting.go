package transport

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// software names this implementation in HELLO, for logs.
const software = "verbena-go"

// greeting is the Receiver of a control link until HELLO has come; what follows
// it hands to the path that hello returned. Fields without a note are the
// link's goroutine's.
type greeting struct {
	client bool
	hello  func(m *wire.HelloMsg) (*path, error) // takes in the peer's HELLO
	done   func(err error)                       // told once: HELLO was taken in, or why not
	over   atomic.Bool                           // done is being called, or was
	path   *path
	land   []byte
}

// claim says that the caller ends the greeting: nobody has yet.
func (g *greeting) claim() bool { return g.over.CompareAndSwap(false, true) }

// Land implements Receiver.
func (g *greeting) Land(h *wire.Header) ([]byte, error) {
	if g.path != nil {
		return g.path.Land(h)
	}
	if err := g.check(h); err != nil {
		return nil, err
	}
	g.land = make([]byte, h.Length) // bounded by the rules of the kind
	return g.land, nil
}

func (g *greeting) check(h *wire.Header) error {
	switch h.Kind {
	case wire.Hello:
		return nil
	case wire.Refuse, wire.Close:
		if g.client {
			return nil
		}
	}
	return &wire.ParseError{Field: "kind", Got: uint64(h.Kind), Want: "HELLO before anything else"}
}

// Take implements Receiver.
func (g *greeting) Take(h *wire.Header, payload []byte) error {
	if g.path != nil {
		return g.path.Take(h, payload)
	}
	if len(payload) > 0 {
		land, err := g.Land(h)
		if err != nil {
			return err
		}
		copy(land, payload)
	}
	return g.Frame(h)
}

// Frame implements Receiver.
func (g *greeting) Frame(h *wire.Header) error {
	if g.path != nil {
		return g.path.Frame(h)
	}
	err := g.check(h)
	if err != nil {
		return err
	}
	if h.Kind != wire.Hello {
		return refusal(g.land)
	}
	var m wire.HelloMsg
	if err := m.Parse(g.land); err != nil {
		return err
	}
	if !g.claim() {
		return errLate
	}
	g.path, err = g.hello(&m)
	g.land = nil
	g.done(err)
	return nil // who is told closes the link, and says why
}

var errLate = fmt.Errorf("transport: HELLO came too late")

// refusal is the error in REFUSE or CLOSE.
func refusal(payload []byte) error {
	text, _, err := wire.ParseFault(payload)
	if err != nil {
		return err
	}
	return &PeerError{Text: cmp.Or(text, "closed")}
}

// Closed implements Receiver.
func (g *greeting) Closed(err error) {
	if g.path != nil {
		g.path.Closed(err)
	} else if g.claim() {
		g.done(cmp.Or(err, io.ErrUnexpectedEOF))
	}
}

// greet is the client's exchange of HELLO on a new link. hello runs at most
// once, in the link's goroutine, before greet returns. On error it is the
// caller's to close the link.
func greet(ctx context.Context, link Link, own *wire.HelloMsg, hello func(*wire.HelloMsg) (*path, error)) error {
	result := make(chan error, 1)
	g := &greeting{client: true, hello: hello, done: func(err error) { result <- err }}
	link.Start(g)
	err := sendOwn(ctx, link, &wire.Header{Kind: wire.Hello}, own.Append(nil))
	if err == nil {
		select {
		case err = <-result:
		case <-ctx.Done():
			if err = context.Cause(ctx); !g.claim() {
				err = <-result
			}
		}
	}
	return err
}

// bid says the last word on a link that is not a session's, and closes it.
func bid(link Link, kind wire.Kind, why error) {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	_ = sendOwn(ctx, link, &wire.Header{Kind: kind}, closeText(why))
	link.Close(nil)
}

// hello is the HELLO of this side.
func (c *Config) hello(id wire.SessionID, own reach) wire.HelloMsg {
	m := wire.HelloMsg{
		MinVersion: wire.Version, MaxVersion: wire.Version,
		Session:    id,
		MaxMessage: uint32(c.MaxMessage), MaxCalls: uint32(c.MaxCalls),
		NoFastLink: own.why(),
		Software:   software,
	}
	if own.never == "" {
		m.Features |= wire.FeatureFastLink
	}
	if c.PayloadSum {
		m.Features |= wire.FeaturePayloadSum
	}
	return m
}

// checkVersion says why there can be no session with the peer, or nil.
func checkVersion(m *wire.HelloMsg) error {
	if m.MinVersion > wire.Version || m.MaxVersion < wire.Version {
		return fmt.Errorf("versions %d to %d, this side has %d", m.MinVersion, m.MaxVersion, wire.Version)
	}
	return nil
}
