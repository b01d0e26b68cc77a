package rdma

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

const (
	// chunkSlots is how many shared receives are registered at a time, one
	// chunk for each chunkSharers endpoints, if they take no more than chunkBytes,
	// as on rxe. Half as many receives as endpoints take a frame from every second
	// of them at once; beyond that a frame waits for RNR (measured on rxe:
	// docs/adr/0012-shared-receive-queues.md).
	chunkSlots   = 256
	chunkBytes   = chunkSlots * DefaultSlotSizeRXE
	chunkSharers = 512

	// lastReceiveTime is how long a QP in ERR is given to flush the shared receive
	// that it had taken for half a message, where no event tells. On rxe it took
	// less each time, under emulation; RESET at once lost it 2 times in 100.
	lastReceiveTime = 20 * time.Millisecond
)

// sharedRecvs is the receive queue that endpoints of a poller share. Fields
// without a note are of who holds the poller's turn.
//
// A slot is the queue's: posted, or taken in and to be posted again. What the
// device lost is neither, and never posted again. Memory is added, and stays
// until the queue is closed, after the last of the endpoints.
type sharedRecvs struct {
	recvRing
	dev    *device
	turn   *sync.Mutex // the poller's
	srq    verbs.SRQ
	owners map[uint32]*endpoint // by QP number

	growing sync.Mutex // guards what follows; taken before turn
	chunks  chunks
	slots   int // in chunks
	limit   int // on slots
}

// chunks is memory that is added, and given back all at once.
type chunks struct {
	dev    *device
	all    []*rings
	pinned atomic.Int64 // bytes; any goroutine may read it
}

// add registers so many bytes more.
func (c *chunks) add(size int) (region, error) {
	chunk, err := c.dev.newRings(size)
	if err != nil {
		return region{}, err
	}
	c.all = append(c.all, chunk)
	c.pinned.Add(int64(chunk.mr.Len()))
	return chunk.region(), nil
}

// close gives the memory back. Where it is held, it stays mapped for ever.
func (c *chunks) close(held bool) error {
	for _, chunk := range c.all {
		chunk.held = held
		if err := chunk.free(); err != nil {
			return err
		}
	}
	return nil
}

// newSharedRecvs makes a queue for so many receives, without one.
func (d *device) newSharedRecvs(limit int, turn *sync.Mutex) (*sharedRecvs, error) {
	srq, err := d.pd.CreateSRQ(verbs.SRQCaps{MaxWR: limit, MaxSGE: 1})
	if err != nil {
		return nil, &SetupError{d.name, fmt.Sprintf("create a shared receive queue of %d", limit), err}
	}
	return &sharedRecvs{dev: d, turn: turn, srq: srq, limit: limit, owners: map[uint32]*endpoint{}, chunks: chunks{dev: d}}, nil
}

// close destroys the queue. Memory that the device may still reach stays
// mapped for ever.
func (s *sharedRecvs) close() error {
	if err := s.srq.Destroy(); err != nil {
		return err
	}
	return s.chunks.close(false)
}

// fit adds receives until there are enough for so many endpoints, or as many
// as there may be.
func (s *sharedRecvs) fit(endpoints int) error {
	s.growing.Lock()
	defer s.growing.Unlock()
	chunk := s.dev.cfg.chunk()
	want := min(s.limit, (endpoints+chunkSharers-1)/chunkSharers*chunk)
	for s.slots < want {
		if err := s.grow(min(chunk, want-s.slots)); err != nil {
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
	mem, err := s.chunks.add(n * size)
	if err != nil {
		return err
	}
	s.slots += n
	s.turn.Lock()
	defer s.turn.Unlock()
	s.add(mem.mem, mem.addr, mem.key, n, size, wrid.Make(wrid.Shared, 0, 0, 0))
	return nil
}

// repost posts the slots that were taken in. One that the device does not
// take is as good as all: nobody could receive any more.
func (s *sharedRecvs) repost() {
	if _, err := s.post(s.srq); err != nil {
		s.dev.fail(&SetupError{s.dev.name, "post shared receives again", err})
	}
}

// came takes in a completion. The slot is posted again at the end of the batch, or
// with more, whatever becomes of the frame, which is copied out before.
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
	s := ep.poller.shared.Load()
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
	s := ep.poller.shared.Load()
	s.turn.Lock()
	defer s.turn.Unlock()
	delete(s.owners, ep.qp.Num())
}

// lastReceive waits until no completion of a shared receive comes for a QP in
// ERR any more, and those that came were taken in: they have no generation. An event
// that is late would be taken for one of the next life, so there is none.
func (ep *endpoint) lastReceive(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastReceiveTime)
	defer cancel()
	select {
	case <-ep.tookLast:
	case <-ctx.Done():
		if ep.dev.tellsLast.Load() {
			ep.lives = maxLives
		}
	}
	ep.poller.empty()
}

// sharing says that endpoints of the device may share their slots.
func (d *device) sharing() bool { return d.cfg.Dedicated < wrid.MaxEndpoints && d.attr.MaxSRQ > 0 }

// share makes what endpoints of the poller share, where its CQ has room for their
// completions and those of an endpoint. dev.mu is held.
func (p *poller) share() error {
	d := p.dev
	limit := min(d.cfg.SharedSlots, p.room/2)
	if most := d.attr.MaxSRQWR; most > 0 {
		limit = min(limit, most)
	}
	if limit < credit.MinDepth {
		return &FullError{Device: d.name, QPs: len(d.endpoints), Depth: p.cq.Depth(), Need: 2 * credit.MinDepth}
	}
	recvs, err := d.newSharedRecvs(limit, &p.turn)
	if err != nil {
		return err
	}
	p.sends = newSharedSends(d, limit/2)
	p.shared.Store(recvs)
	p.room -= limit + limit/2
	return nil
}
