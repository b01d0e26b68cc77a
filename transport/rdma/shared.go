package rdma

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
)

// lastReceiveTime is how long a QP in ERR is given to flush the shared receive
// that it had taken for half a message, where no event tells. On rxe it took
// less each time, under emulation; RESET at once lost it 2 times in 100.
const lastReceiveTime = 20 * time.Millisecond

// sharedRecvs is the receive queue that endpoints of a poller share. It is of
// who holds the poller's turn, from when it is made, before the first endpoint,
// to close, after the last.
//
// A slot is the queue's: posted, or taken in by the present batch. What the
// device lost is neither, and never posted again.
type sharedRecvs struct {
	recvRing
	dev    *device
	srq    verbs.SRQ
	rings  *rings
	owners map[uint32]*endpoint // by QP number
}

// newSharedRecvs makes the queue with all receives posted.
func (d *device) newSharedRecvs() (_ *sharedRecvs, err error) {
	n, size := d.cfg.SharedSlots, d.cfg.SlotSize
	s := &sharedRecvs{dev: d, owners: map[uint32]*endpoint{}}
	if s.rings, err = d.newRings(n * size); err != nil {
		return nil, err
	}
	if s.srq, err = d.pd.CreateSRQ(verbs.SRQCaps{MaxWR: n, MaxSGE: 1}); err != nil {
		s.rings.free()
		return nil, &SetupError{d.name, fmt.Sprintf("create a shared receive queue of %d", n), err}
	}
	s.init(s.rings.arena.Bytes(), s.rings.mr.Addr(), s.rings.mr.LKey(), n, size, wrid.Make(wrid.Shared, 0, 0, 0))
	s.again = append(s.again, s.all...)
	if _, err := s.post(s.srq); err != nil {
		s.close()
		return nil, &SetupError{d.name, fmt.Sprintf("post %d shared receives", n), err}
	}
	return s, nil
}

// close destroys the queue. Memory that the device may still reach stays
// mapped for ever.
func (s *sharedRecvs) close() error {
	if err := s.srq.Destroy(); err != nil {
		return err
	}
	return s.rings.free()
}

// came takes in a completion. The slot is posted again at the end of the batch,
// whatever becomes of the frame, which is copied out before.
func (s *sharedRecvs) came(wc *verbs.WC) {
	slot, known := s.complete(wrid.ID(wc.ID))
	if !known {
		s.dev.fabric.stale.Add(1)
		return
	}
	s.reuse(slot)
	ep := s.owners[wc.QPNum]
	switch {
	case ep == nil:
		s.dev.fabric.stale.Add(1)
	case wc.Status == verbs.WCWRFlushErr: // of this life or an earlier one
	case wc.Status != verbs.WCSuccess:
		ep.poller.touch(ep)
		ep.failed(wc)
	default:
		ep.poller.touch(ep)
		ep.received(arrival{frame: s.frame(slot, int(wc.ByteLen))})
	}
}

// repost posts the slots that the batch took in. One that the device does not
// take is as good as all: nobody could receive any more.
func (s *sharedRecvs) repost() {
	if _, err := s.post(s.srq); err != nil {
		s.dev.fail(&SetupError{s.dev.name, "post shared receives", err})
	}
}

// keep copies a frame that nobody takes yet, so that its slot can be posted.
func (a arrival) keep() arrival { return arrival{frame: bytes.Clone(a.frame)} }

// enlist has the poller know the endpoint by its QP number.
func (ep *endpoint) enlist() {
	p := ep.poller
	p.turn.Lock()
	defer p.turn.Unlock()
	p.shared.owners[ep.qp.Num()] = ep
}

// delist has the poller forget it. What still comes is of a QP that nobody
// knows: its slot is posted again, and that is all.
func (ep *endpoint) delist() {
	if !ep.shares {
		return
	}
	p := ep.poller
	p.turn.Lock()
	defer p.turn.Unlock()
	delete(p.shared.owners, ep.qp.Num())
}

// lastReceive waits until no completion of a shared receive comes for a QP in
// ERR any more, and those that came were taken in: they have no generation.
func (ep *endpoint) lastReceive(ctx context.Context) {
	wait := time.NewTimer(lastReceiveTime)
	defer wait.Stop()
	select {
	case <-ep.tookLast:
	case <-wait.C:
	case <-ctx.Done():
	}
	passed := make(chan struct{})
	ep.poller.do(func() {
		defer close(passed)
		p := ep.poller
		for range p.cq.Depth()/pollBatch + 1 { // all that was in the CQ before
			if p.poll() < pollBatch {
				return
			}
		}
	})
	<-passed
}

// sharing says that endpoints of the device may share their receives.
func (d *device) sharing() bool { return d.cfg.Dedicated != 0 && d.attr.MaxSRQ > 0 }

// newRings maps and registers memory for rings. The registration carries no
// remote rights: the peer reaches a slot by a SEND alone.
func (d *device) newRings(size int) (*rings, error) {
	arena, err := pool.NewArena(size)
	if err != nil {
		return nil, &SetupError{d.name, "map rings", err}
	}
	mr, err := d.pd.RegisterMR(arena.Bytes(), verbs.AccessLocalWrite)
	if err != nil {
		arena.Close()
		return nil, &SetupError{d.name, fmt.Sprintf("register %d KiB for rings", size>>10), err}
	}
	return &rings{arena: arena, mr: mr}, nil
}
