package rdma

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

const (
	// chunkSlots is how many shared receives are registered at a time, one
	// chunk for each chunkSharers endpoints. Half as many receives as endpoints
	// take a frame from every second of them at once; beyond that a frame waits
	// for RNR (measured on rxe: docs/adr/0012-shared-receive-queues.md).
	chunkSlots   = 256
	chunkSharers = 512

	// lastReceiveTime is how long a QP in ERR is given to flush the shared receive
	// that it had taken for half a message, where no event tells. On rxe it took
	// less each time, under emulation; RESET at once lost it 2 times in 100.
	lastReceiveTime = 20 * time.Millisecond
)

// sharedRecvs is the receive queue that endpoints of a poller share. Fields
// without a note are of who holds the poller's turn.
//
// A slot is the queue's: posted, or taken in by the present batch. What the
// device lost is neither, and never posted again. Memory is added, and stays
// until the queue is closed, after the last of the endpoints.
type sharedRecvs struct {
	recvRing
	dev    *device
	turn   *sync.Mutex // the poller's
	srq    verbs.SRQ
	owners map[uint32]*endpoint // by QP number

	growing sync.Mutex // guards what follows; taken before turn
	chunks  []*rings
	slots   int          // in chunks
	limit   int          // on slots
	pinned  atomic.Int64 // bytes of chunks; any goroutine may read it
}

// newSharedRecvs makes a queue without receives, for those who complete in cq.
func (d *device) newSharedRecvs(cq verbs.CQ, turn *sync.Mutex) (*sharedRecvs, error) {
	s := &sharedRecvs{dev: d, turn: turn, owners: map[uint32]*endpoint{}}
	s.limit = min(d.cfg.SharedSlots, cq.Depth()/2)
	if most := d.attr.MaxSRQWR; most > 0 {
		s.limit = min(s.limit, most)
	}
	var err error
	if s.srq, err = d.pd.CreateSRQ(verbs.SRQCaps{MaxWR: s.limit, MaxSGE: 1}); err != nil {
		return nil, &SetupError{d.name, fmt.Sprintf("create a shared receive queue of %d", s.limit), err}
	}
	return s, nil
}

// close destroys the queue. Memory that the device may still reach stays
// mapped for ever.
func (s *sharedRecvs) close() error {
	if err := s.srq.Destroy(); err != nil {
		return err
	}
	for _, c := range s.chunks {
		if err := c.free(); err != nil {
			return err
		}
	}
	return nil
}

// fit adds receives until there are enough for so many endpoints, or as many
// as there may be.
func (s *sharedRecvs) fit(endpoints int) error {
	s.growing.Lock()
	defer s.growing.Unlock()
	want := min(s.limit, (endpoints+chunkSharers-1)/chunkSharers*chunkSlots)
	for s.slots < want {
		if err := s.grow(min(chunkSlots, want-s.slots)); err != nil {
			return err
		}
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	if _, err := s.post(s.srq); err != nil {
		return &SetupError{s.dev.name, fmt.Sprintf("post %d shared receives", len(s.again)), err}
	}
	return nil
}

// grow registers n slots more, to be posted.
func (s *sharedRecvs) grow(n int) error {
	size := s.dev.cfg.SlotSize
	chunk, err := s.dev.newRings(n * size)
	if err != nil {
		return err
	}
	s.chunks = append(s.chunks, chunk)
	s.slots += n
	s.pinned.Add(int64(chunk.mr.Len()))
	s.turn.Lock()
	defer s.turn.Unlock()
	s.add(chunk.arena.Bytes(), chunk.mr.Addr(), chunk.mr.LKey(), n, size, wrid.Make(wrid.Shared, 0, 0, 0))
	return nil
}

// repost posts the slots that the batch took in. One that the device does not
// take is as good as all: nobody could receive any more.
func (s *sharedRecvs) repost() {
	if _, err := s.post(s.srq); err != nil {
		s.dev.fail(&SetupError{s.dev.name, "post shared receives again", err})
	}
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

// keep copies a frame that nobody takes yet, so that its slot can be posted.
func (a arrival) keep() arrival { return arrival{frame: bytes.Clone(a.frame)} }

// overrun is the error of a peer that has sent all that it may, and sends more: a
// queue of its own would be empty, a shared one is not.
func (ep *endpoint) overrun() error {
	_, window := ep.dev.cfg.queues(true)
	r := &ep.recv
	if n := len(r.early) + r.used - r.ungranted; n >= window {
		return &wire.ParseError{Field: "frames at once", Got: uint64(n + 1), Want: fmt.Sprintf("%d, the depth that was announced", window)}
	}
	return nil
}

// enlist has the poller know the endpoint by its QP number, and gives it its
// share of receives.
func (ep *endpoint) enlist() error {
	s := ep.poller.shared
	s.turn.Lock()
	s.owners[ep.qp.Num()] = ep
	n := len(s.owners)
	s.turn.Unlock()
	select {
	case <-ep.tookLast: // of an earlier life
	default:
	}
	return s.fit(n)
}

// delist has the poller forget it. What still comes is of a QP that nobody
// knows: its slot is posted again, and that is all.
func (ep *endpoint) delist() {
	if !ep.shares {
		return
	}
	s := ep.poller.shared
	s.turn.Lock()
	defer s.turn.Unlock()
	delete(s.owners, ep.qp.Num())
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
