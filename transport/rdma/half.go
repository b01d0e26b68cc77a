package rdma

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/qpstate"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// maxRdAtomic is how many READs of the peer a QP serves at once, and how many of its
// own it has outstanding, where the devices can: what one-sided transfers need to fill
// a path.
const maxRdAtomic = 16

// half is an endpoint in INIT on its way to a peer. One goroutine uses it.
type half struct {
	ep    *endpoint
	from  candidate
	offer wire.QP
	ended atomic.Bool
}

func newHalf(ep *endpoint, from candidate) *half {
	cfg := &ep.dev.cfg
	_, window := cfg.queues(ep.shares)
	mtu := from.attr.ActiveMTU
	if cfg.MTU != 0 {
		mtu = min(mtu, mtuCode(cfg.MTU))
	}
	return &half{ep: ep, from: from, offer: wire.QP{
		GID:         from.entry.GID,
		GIDType:     uint8(from.entry.Type),
		LID:         from.attr.LID,
		QPN:         ep.qp.Num(),
		PSN:         randomPSN(),
		Depth:       uint32(window),
		Slot:        uint32(cfg.SlotSize),
		MTU:         uint8(mtu),
		MaxRdAtomic: uint8(min(maxRdAtomic, ep.dev.attr.MaxQPRdAtomic)),
		Shared:      ep.shares,
	}}
}

// randomPSN is new for each direction and attempt, so that packets of an
// earlier life of either QP are out of sequence (case 15).
func randomPSN() uint32 {
	var b [4]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return binary.LittleEndian.Uint32(b[:]) & (1<<24 - 1)
}

// Offer is what the peer must know.
func (h *half) Offer() wire.QP { return h.offer }

// Connect takes the QP to RTS on the calling goroutine. See transport.Half.
func (h *half) Connect(ctx context.Context, epoch uint64, peer wire.QP) (transport.Link, error) {
	if h.ended.Swap(true) {
		return nil, net.ErrClosed
	}
	err := ctx.Err()
	if err == nil {
		err = h.check(&peer)
	}
	if err == nil {
		err = h.locate()
	}
	if err != nil {
		h.ep.release(fmt.Sprintf("not connected: %v", err), true)
		return nil, err
	}
	l := newLink(h.ep, epoch, &h.offer, &peer)
	if h.ep.dev.cfg.Adaptive {
		h.ep.send.probe.path = h.ep.dev.fabric.paths.to(pathKey{h.ep.dev.name, h.ep.port, peer.GID})
	}
	h.ep.link.Store(l) // before a frame can arrive, and before the looks that follow
	if h.ep.dev.isClosed() {
		err = net.ErrClosed
	} else if why := h.ep.spoiled.Load(); why != nil {
		err = why
	} else if err = h.transit(l, &peer); err == nil {
		err = ctx.Err()
	}
	h.ep.poller.join() // not before: a poller that spins would keep the transitions from the processor
	close(l.connected)
	if err != nil {
		l.fail(err, true)
		<-l.done
		return nil, err
	}
	return l, nil
}

// check refuses what would only fail later, or lock up.
func (h *half) check(peer *wire.QP) error {
	switch {
	case peer.GID == [16]byte{} && h.from.attr.LinkLayer == verbs.LinkEthernet:
		return &PeerError{"GID", 0, "an address"}
	case peer.GIDType != h.offer.GIDType:
		return &PeerError{"GID type", uint64(peer.GIDType), fmt.Sprintf("%v as ours", h.from.entry.Type)}
	case peer.Depth < credit.MinDepth:
		return &PeerError{"receive ring", uint64(peer.Depth), fmt.Sprintf("at least %d slots", credit.MinDepth)}
	case peer.Slot < wire.MinSlot:
		return &PeerError{"receive slot", uint64(peer.Slot), fmt.Sprintf("at least %d bytes", wire.MinSlot)}
	case verbs.MTU(peer.MTU).Bytes() == 0:
		return &PeerError{"MTU", uint64(peer.MTU), "a code of 1 to 5"}
	}
	return nil
}

// transit takes the QP to RTS. When it stays in INIT and the offered GID turns
// out to be at another index, the event of that move is still on its way. When
// it came between locate and the transitions, it did not see the link yet: hence
// another look after them.
func (h *half) transit(l *link, peer *wire.QP) error {
	for {
		from := h.from
		l.from.Store(&from)
		err := h.ep.machine.Connect(h.path(l, peer), h.timing(peer))
		refused := err != nil && h.ep.machine.State() == verbs.Init
		switch {
		case refused:
			h.ep.dev.gids.forget()
		case err != nil:
			return err
		}
		gone := h.locate()
		moved := gone == nil && h.from.entry.Index != from.entry.Index
		switch {
		case refused && !moved:
			return err
		case refused:
			continue
		case moved:
			return errGIDMoved
		}
		return gone
	}
}

var errGIDMoved = errors.New("rdma: the GID went to another index while the link was made")

// locate looks up the index of the GID that was offered: the table may have
// changed since (case 44).
func (h *half) locate() error {
	all, err := h.ep.dev.candidates(h.ep.port)
	if err != nil {
		return err
	}
	offered := &h.from.entry
	for _, c := range all {
		if c.entry.GID == offered.GID && c.entry.Type == offered.Type && c.active() {
			h.from = c
			return nil
		}
	}
	return newNoGIDError(offered.GID.Addr(), fmt.Sprintf("active port with the %v GID that was offered", offered.Type), all)
}

func (h *half) path(l *link, peer *wire.QP) qpstate.Path {
	return qpstate.Path{
		DestQPN:       peer.QPN,
		RQPSN:         peer.PSN,
		MTU:           l.mtu,
		MaxDestRdAtom: h.offer.MaxRdAtomic,
		SGIDIndex:     uint8(h.from.entry.Index),
		DGID:          peer.GID,
		TrafficClass:  h.offer.TrafficClass,
		FlowLabel:     h.offer.FlowLabel,
		DLID:          peer.LID,
	}
}

func (h *half) timing(peer *wire.QP) qpstate.Timing {
	own := h.ep.dev.attr.MaxQPInitRdAtomic
	if own == 0 { // unknown
		own = h.ep.dev.attr.MaxQPRdAtomic
	}
	t := qpstate.Timing{SQPSN: h.offer.PSN, MaxRdAtomic: uint8(min(maxRdAtomic, own, int(peer.MaxRdAtomic)))}
	if p := h.ep.send.probe.path; p != nil {
		t.Timeout, t.RetryCnt = p.next()
	}
	switch {
	case peer.Shared: // it has receives again, or is found to be gone by other means
		t.RNRRetry = qpstate.ForeverRNR
	case h.ep.dev.cfg.Strict:
		t.RNRRetry = qpstate.NoRetry
	}
	return t
}

// Abort gives the endpoint back. It returns at once.
func (h *half) Abort() {
	if !h.ended.Swap(true) {
		go h.ep.release("aborted", true)
	}
}
