package main

import (
	"context"
	"net"
	"sync"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/results"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// ledger knows every link that a network makes, and counts what they did, those
// that are gone included. Its methods may be called from any goroutine.
type ledger struct {
	mu   sync.Mutex
	live map[transport.Link]bool
	past map[transport.Kind]*echo.LinkUsage
}

// watchLinks has the links of n entered in a ledger from now on.
func watchLinks(n *transport.Network) *ledger {
	l := &ledger{
		live: map[transport.Link]bool{},
		past: map[transport.Kind]*echo.LinkUsage{transport.TCP: {}, transport.RDMA: {}},
	}
	n.Carrier = &watchedCarrier{n.Carrier, l}
	if n.Fabric != nil {
		n.Fabric = &watchedFabric{n.Fabric.(transport.Watcher), l}
	}
	return l
}

// enter takes a link in.
func (l *ledger) enter(link transport.Link, err error) (transport.Link, error) {
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[link] = true
	return link, nil
}

// settle keeps of dead links their counts alone. Callers hold mu. A goroutine that
// waits for each to die would be a third of what a connection at rest has.
func (l *ledger) settle() {
	for link := range l.live {
		select {
		case <-link.Done():
			delete(l.live, link)
			count(l.past[link.Kind()], link)
		default:
		}
	}
}

// usage is that of all links of a kind.
func (l *ledger) usage(kind transport.Kind) *echo.LinkUsage {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	past := l.past[kind]
	sum := &echo.LinkUsage{Posts: past.Posts, Posted: past.Posted, Polls: past.Polls, Completions: past.Completions}
	for link := range l.live {
		if link.Kind() == kind {
			count(sum, link)
		}
	}
	return sum
}

// count adds what a link did so far.
func count(sum *echo.LinkUsage, link transport.Link) {
	s := link.Info().Stats
	sum.Posts += s.SendBatches + s.RecvPosts
	sum.Posted += s.FramesSent + s.RecvsPosted
	sum.Polls += s.RecvBatches
	if link.Kind() == transport.RDMA {
		sum.Completions += s.Completions
	} else {
		sum.Completions += s.FramesReceived
	}
}

// crossings are those between two looks at the same ledger, per call.
func crossings(before, after *echo.LinkUsage, calls int64) results.Crossings {
	per := func(get func(*echo.LinkUsage) uint64) float64 {
		return float64(get(after)-get(before)) / float64(max(calls, 1))
	}
	return results.Crossings{
		Posts: per((*echo.LinkUsage).GetPosts), Posted: per((*echo.LinkUsage).GetPosted),
		Polls: per((*echo.LinkUsage).GetPolls), Completions: per((*echo.LinkUsage).GetCompletions),
	}
}

// watchedFabric enters the links of a fabric.
type watchedFabric struct {
	transport.Watcher
	ledger *ledger
}

func (f *watchedFabric) Prepare(ctx context.Context, local net.Addr) (transport.Half, error) {
	half, err := f.Watcher.Prepare(ctx, local)
	if err != nil {
		return nil, err
	}
	return &watchedHalf{half, f.ledger}, nil
}

type watchedHalf struct {
	transport.Half
	ledger *ledger
}

func (h *watchedHalf) Connect(ctx context.Context, epoch uint64, peer wire.QP) (transport.Link, error) {
	return h.ledger.enter(h.Half.Connect(ctx, epoch, peer))
}

// watchedCarrier enters the links of a carrier.
type watchedCarrier struct {
	transport.Carrier
	ledger *ledger
}

func (c *watchedCarrier) Dial(ctx context.Context, addr string) (transport.Link, error) {
	return c.ledger.enter(c.Carrier.Dial(ctx, addr))
}

func (c *watchedCarrier) Listen(addr string) (transport.Listener, error) {
	listener, err := c.Carrier.Listen(addr)
	if err != nil {
		return nil, err
	}
	return &watchedListener{listener, c.ledger}, nil
}

type watchedListener struct {
	transport.Listener
	ledger *ledger
}

func (l *watchedListener) Accept() (transport.Link, error) {
	return l.ledger.enter(l.Listener.Accept())
}
