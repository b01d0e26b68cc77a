package rdma

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/qpstate"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
)

// maxLives is how many links an endpoint carries before its QP is destroyed.
const maxLives = 64

// inlineSizes are what CreateQP is asked to copy into a work request, the
// first that the device takes. A 64-byte message makes a frame of 128 or 136
// bytes. rxe takes 512, irdma 101.
var inlineSizes = [...]int{256, 96, 0}

// endpoint is one QP with the memory of its rings and its place in a poller's
// table. It carries one link at a time, up to maxLives of them.
//
// It is made, connected and released by one goroutine at a time, which owns
// all fields without a note. While it has a link, send is shared as its
// comment says, and recv is the poller's.
type endpoint struct {
	dev     *device
	port    uint8
	poller  *poller
	index   uint16 // in the poller's table
	rings   *rings // nil: it shares
	own     region // for frames of its links themselves
	qp      verbs.QP
	machine *qpstate.Machine
	lives   int
	shares  bool // its slots are the poller's

	spoiled    atomic.Pointer[EventError] // the device said that the QP failed: no life follows this one
	generation atomic.Uint32              // of the work requests posted
	link       atomic.Pointer[link]
	send       *sendRing // of the present life
	recv       recvRing

	touched int           // poller: completions in the present batch
	owed    bool          // poller: it is among those whose receives are to be posted again
	sealed  bool          // poller: nothing is posted any more
	drained chan struct{} // closed by the poller once sealed and all is completed

	tookLast chan struct{} // of one: the QP in ERR took its last shared receive
}

// rings is the memory of an endpoint: send slots, receive slots, then those for
// frames of the link itself. Or it is a chunk of shared slots.
type rings struct {
	arena *pool.Arena
	mr    verbs.MR
	held  bool // a caller has not given a slot back
}

// region is registered memory.
type region struct {
	mem  []byte
	addr uint64
	key  uint32
}

func (r *rings) region() region { return region{r.arena.Bytes(), r.mr.Addr(), r.mr.LKey()} }

// cut is n bytes of the region, from at on.
func (m region) cut(at, n int) region { return region{m.mem[at:][:n:n], m.addr + uint64(at), m.key} }

// free gives the memory back; the QP is destroyed. Memory that the device or
// a caller may still reach stays mapped for ever.
func (r *rings) free() error {
	if err := r.mr.Deregister(); err != nil || r.held {
		return err
	}
	return r.arena.Close()
}

// newEndpoint makes an endpoint in INIT with its receives posted. On error
// nothing is left (case 63).
func (d *device) newEndpoint(port uint8) (_ *endpoint, err error) {
	began := time.Now()
	ep := &endpoint{dev: d, port: port, tookLast: make(chan struct{}, 1)}
	if err := d.admit(ep); err != nil {
		return nil, err
	}
	undo := []func(){func() { d.dismiss(ep) }}
	defer func() {
		if err != nil {
			for i := range undo {
				undo[len(undo)-1-i]()
			}
		}
	}()

	if err := ep.furnish(); err != nil {
		return nil, err
	}
	undo = append(undo, func() { ep.unfurnish() })
	if err := ep.createQP(); err != nil {
		return nil, err
	}
	undo = append(undo, func() {
		ep.delist()
		ep.qp.Destroy()
	})
	ep.machine = qpstate.New(ep.qp, qpstate.Options{Device: d.ctx, Strict: d.cfg.Strict})
	if err := ep.begin(); err != nil {
		return nil, err
	}
	d.add(ep)
	d.fabric.lives.made.add(began)
	return ep, nil
}

// furnish gives the endpoint its memory.
func (ep *endpoint) furnish() (err error) {
	if ep.shares {
		ep.own, err = ep.poller.sends.enter()
		return err
	}
	cfg := &ep.dev.cfg
	if ep.rings, err = ep.dev.newRings(cfg.memory()); err == nil {
		_, end := cfg.split()
		ep.own = ep.rings.region().cut(end, credit.Reserve*linkFrame)
	}
	return err
}

// unfurnish gives the memory back, which nobody can reach.
func (ep *endpoint) unfurnish() error {
	if ep.shares {
		ep.poller.sends.leave(ep.own)
		return nil
	}
	return ep.rings.free()
}

func (ep *endpoint) createQP() (err error) {
	d := ep.dev
	sends, window := d.cfg.queues(ep.shares)
	init := verbs.QPInit{
		Type:   verbs.RC,
		SendCQ: ep.poller.cq,
		RecvCQ: ep.poller.cq,
		Caps: verbs.QPCaps{
			MaxSendWR: sends, MaxRecvWR: window,
			MaxSendSGE: 1, MaxRecvSGE: 1,
		},
	}
	if ep.shares {
		init.SRQ = ep.poller.shared.Load().srq
	}
	for _, init.Caps.MaxInlineData = range inlineSizes {
		ep.qp, err = d.pd.CreateQP(init)
		if err == nil {
			return nil
		}
	}
	return &SetupError{d.name, fmt.Sprintf("create a QP of %d sends and %d receives", sends, window), err}
}

// begin starts a life: empty rings, INIT, receives posted, known to the poller.
func (ep *endpoint) begin() error {
	cfg := &ep.dev.cfg
	sends, window := cfg.queues(ep.shares)
	split, end := cfg.split()
	inline := ep.qp.Caps().MaxInlineData
	generation := uint16(ep.generation.Load() % wrid.Generations)
	ep.link.Store(nil)
	if ep.shares {
		ep.send = newSendRing(sends, ep.own, region{}, ep.poller.sends, cfg, inline)
	} else {
		ep.send = newSendRing(sends, ep.own, ep.rings.region().cut(0, split), nil, cfg, inline)
	}
	ep.recv = recvRing{}
	ep.drained = make(chan struct{})
	ep.lives++
	if err := ep.machine.ToInit(qpstate.Local{Port: ep.port}); err != nil {
		return err
	}
	if ep.shares {
		if err := ep.enlist(); err != nil {
			return err
		}
	} else {
		at := ep.rings.region().cut(split, end-split)
		ep.recv.add(at.mem, at.addr, at.key, window, cfg.SlotSize, wrid.Make(wrid.Recv, generation, ep.index, 0))
		if n, err := ep.recv.post(ep.qp); err != nil {
			return &SetupError{ep.dev.name, fmt.Sprintf("post receive %d of %d", n+1, window), err}
		}
	}
	ep.poller.table[ep.index].Store(ep)
	return nil
}

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

// release ends a life, and gives the endpoint back to its pool or destroys it.
// Nothing but the poller may be using it: no send can be posted, and no
// receive once its link is dead. It takes as long as the drain, and blocks.
func (ep *endpoint) release(why string, reuse bool) {
	began := time.Now()
	if l := ep.link.Load(); l != nil && l.died.Load() != ep.dev.fault.Load() { // that is counted
		ep.dev.fabric.breakers.note(ep.dev.name, l.dead())
	}
	limit := drainTime
	if isRXE(&ep.dev.attr) {
		limit = drainTimeRXE
	}
	err := ep.machine.ToErr(why)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	drained := err == nil && ep.drain(ctx)
	if !drained {
		ep.detach() // what the device kept is counted below, and stays so
	}
	home := ep.send.home(ctx)
	switch {
	case !drained || !home:
		ep.dev.fabric.lost.Add(1)
		ep.destroy(drained, home)
	case !reuse || ep.spoiled.Load() != nil || ep.lives >= maxLives || ep.restart() != nil:
		ep.destroy(true, true)
	default:
		ep.dev.fabric.lives.recycled.add(began)
		ep.dev.recycle(ep)
	}
}

// drain waits until every work request of a QP in ERR has completed (cases 1,
// 2, 14). A marker is posted only where it must be: not every device completes
// one.
func (ep *endpoint) drain(ctx context.Context) bool {
	if ep.send.unmarked {
		ep.mark()
	}
	ep.poller.do(func() {
		ep.sealed = true
		ep.settle()
	})
	select {
	case <-ep.drained:
		if ep.shares && ep.link.Load() != nil { // else it has taken none
			ep.lastReceive(ctx)
		}
		ep.delist() // until the next life: a receive that comes between is nobody's
		return true
	case <-ctx.Done():
		return false
	}
}

// mark posts a signalled send of nothing behind sends that may have completed
// unseen. In ERR it never leaves, and completes after them. When it is refused
// it stays counted, and the drain ends by its time.
func (ep *endpoint) mark() {
	position := ep.send.posted.Load() - 1
	id := wrid.Make(wrid.Send, uint16(ep.generation.Load()%wrid.Generations), ep.index, position)
	ep.qp.PostSend([]verbs.SendWR{{ID: uint64(id), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
}

// settle closes drained when the last completion has come, on the poller, as
// the last thing of a batch. From then on the poller knows the endpoint by a
// generation that nothing was posted with yet, and leaves it alone.
func (ep *endpoint) settle() {
	if ep.sealed && (mutateDrain || ep.recv.outstanding == 0 && ep.send.posted.Load() == ep.send.completed.Load()) {
		ep.sealed = false
		ep.generation.Add(1)
		close(ep.drained)
	}
}

// restart takes a drained endpoint to INIT again. The PSN and the epoch will
// be new; the generation is. A device that refuses (some cannot leave ERR but by
// destruction) has the endpoint destroyed, and the pool makes another.
func (ep *endpoint) restart() error {
	if err := ep.machine.ToReset("drained"); err != nil {
		return err
	}
	return ep.begin()
}

// detach makes the poller forget the endpoint.
func (ep *endpoint) detach() {
	ep.poller.table[ep.index].Store(nil)
	ep.delist()
	ep.poller.sync()
}

// destroy destroys the QP. Memory of which not all is known to be back, from the device
// or from a caller with a slot, goes into quarantine. A QP that is gone makes no
// completion any more: its room in the CQ comes back once that was found empty. So do slots that
// are shared, those of callers when they give them back.
func (ep *endpoint) destroy(drained, home bool) {
	ep.detach()
	ep.dev.unname(ep)
	gone := ep.qp.Destroy() == nil
	if gone && !drained {
		ep.poller.empty()
	}
	if gone {
		ep.dev.dismiss(ep)
	}
	var lost *rings
	switch {
	case ep.shares && gone:
		ep.send.reclaim()
		if home {
			ep.unfurnish()
		} else {
			ep.send.homeLate(func() { ep.unfurnish() })
		}
	case ep.shares:
	case gone && drained && home && ep.unfurnish() == nil:
	default:
		lost = ep.rings
		lost.held = !home
	}
	ep.dev.remove(ep, lost)
	ep.dev.fabric.lives.destroyed.Add(1)
}
