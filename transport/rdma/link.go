package rdma

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/internal/crowd"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// cause is why something ended. err is nil for a regular end.
type cause struct {
	err   error
	reuse bool // the QP is as good as before, once drained
	own   bool // by Close
}

// link is one life of an endpoint: the transport.Link over it. It is live
// until died is set, by whoever comes first; the teardown goroutine that is
// started then ends it in the order of docs/rdma-link.md.
type link struct {
	ep         *endpoint
	epoch      uint64
	generation uint16 // of the endpoint
	maxPayload int
	sums       bool
	mtu        verbs.MTU
	from       atomic.Pointer[candidate] // nil until the first transition
	local      Addr
	remote     Addr

	connected chan struct{} // closed when Connect makes no transition any more
	died      atomic.Pointer[cause]
	dying     chan struct{} // closed when died is set
	done      chan struct{} // closed at the end of teardown

	send   *sendRing
	window *credit.Window
	grants *credit.Grants
	crowd  crowd.Crowd
	giving atomic.Bool // somebody gives way, and flushes then

	// The poller's.
	receiver transport.Receiver // nil until Start
	ended    bool               // nothing is delivered any more
	holding  bool               // the flush lock, for the present batch
	came     int                // frames in it
	header   wire.Header        // of the frame in hand: Take may read it

	stats stats
}

func newLink(ep *endpoint, epoch uint64, own, peer *wire.QP) *link {
	cfg := &ep.dev.cfg
	l := &link{
		ep: ep, epoch: epoch,
		generation: uint16(ep.generation.Load()),
		maxPayload: min(int(peer.Slot), cfg.SlotSize) - wire.HeaderSize - wire.SumSize,
		sums:       cfg.PayloadSum,
		mtu:        verbs.MTU(min(own.MTU, peer.MTU)),
		local:      addrOf(own),
		remote:     addrOf(peer),
		send:       ep.send,
		connected:  make(chan struct{}),
		dying:      make(chan struct{}),
		done:       make(chan struct{}),
		window:     credit.NewWindow(peer.Depth),
		grants:     credit.NewGrants(own.Depth),
	}
	if s := ep.send.share; s != nil {
		s.bind(l.window, int64(peer.Depth))
	}
	window := peer.Depth
	if ep.shares || peer.Shared { // half of 12 frames would not fill the path
		window = max(window, sharedHold)
	}
	ep.send.bulkLimit = min(ep.send.bulkLimit, int32(window-credit.Reserve)/2)
	return l
}

func (l *link) Kind() transport.Kind  { return transport.RDMA }
func (l *link) MaxPayload() int       { return l.maxPayload }
func (l *link) Done() <-chan struct{} { return l.done }

// dead is what callers of a dead link are told; nil while it is live.
func (l *link) dead() error {
	c := l.died.Load()
	switch {
	case c == nil:
		return nil
	case c.err == nil:
		return net.ErrClosed
	}
	return c.err
}

// Start hands r what has arrived and what will.
func (l *link) Start(r transport.Receiver) {
	ep := l.ep
	ep.poller.do(func() {
		if l.ended {
			// Who closed it knows; who did not is told, off the poller, which
			// stays prompt.
			if why := l.died.Load(); !why.own {
				go r.Closed(why.err)
			}
			return
		}
		l.receiver = r
		early := ep.recv.early
		ep.recv.early = nil
		for _, a := range early {
			if l.dead() == nil {
				l.deliver(a)
			}
		}
		ep.endBatch(0)
	})
}

// Close ends the link. The QP itself is good.
func (l *link) Close(err error) { l.end(&cause{err: err, reuse: true, own: true}) }

// fail ends the link from below.
func (l *link) fail(err error, reuse bool) { l.end(&cause{err: err, reuse: reuse}) }

// end ends the link: the first cause counts, later ones do nothing.
func (l *link) end(c *cause) {
	if l.died.CompareAndSwap(nil, c) {
		close(l.dying)
		go l.teardown()
	}
}

// teardown ends a link whose cause is set. See docs/rdma-link.md. Of a link that
// fails while it is being connected, it lets the device finish first: the QP
// would be another link's when the next transition comes.
func (l *link) teardown() {
	<-l.connected
	why, poller := l.died.Load(), l.ep.poller
	l.send.mu.Lock() // 1: for ever; no send is posted
	var receiver transport.Receiver
	passed := make(chan struct{})
	poller.do(func() { // 2: no receive is posted, nothing delivered
		l.ended = true
		receiver = l.receiver
		close(passed)
	})
	<-passed
	if receiver != nil {
		receiver.Closed(why.err) // 3
	}
	l.ep.release(fmt.Sprintf("link closed: %v", l.dead()), why.reuse) // 4 to 6
	poller.links.Add(-1)
	close(l.done)
}

// Info describes the link.
func (l *link) Info() transport.LinkInfo {
	return transport.LinkInfo{
		Kind: transport.RDMA, Epoch: l.epoch,
		Local: l.local, Remote: l.remote,
		Device: fmt.Sprintf("%s/%d", l.ep.dev.name, l.ep.port),
		MTU:    l.mtu.Bytes(),
		Stats:  l.stats.read(),
	}
}

// Addr is one end of a link. It is a net.Addr.
type Addr struct {
	IP  netip.Addr // the GID
	QPN uint32
}

func addrOf(q *wire.QP) Addr { return Addr{IP: verbs.GID(q.GID).Addr(), QPN: q.QPN} }

// Network returns "rdma".
func (a Addr) Network() string { return "rdma" }

func (a Addr) String() string { return fmt.Sprintf("%v QP %#x", a.IP, a.QPN) }
