package rdma

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// enough is how many receives of a queue are posted again at once, at least: fewer
// wait for more, or until the poller's goroutine has nothing else to do. So a lone
// caller and a lone worker seldom wait for them.
func enough(depth int) int { return max(1, min(8, depth/8)) }

// maxRecvSlots bounds Config.RQDepth: the slot's share of a receive's position.
const maxRecvSlots = 1 << 16

// recvRing is a receive queue, of an endpoint or of a poller. It is the
// poller's, except while no receive is posted. Of an endpoint that shares,
// early, used and ungranted alone are in use.
type recvRing struct {
	mem         [][]byte       // by slot
	all         []verbs.RecvWR // by slot: how it is posted, now or next
	posted      []bool         // by slot
	outstanding int            // how many are posted
	again       []verbs.RecvWR // to be posted at the end of the batch
	early       []arrival      // came before Start
	used        int            // shared receives that frames of this batch used
	ungranted   int            // of again, or of used: by frames that were not the peer's
}

// arrival is a frame, and its receive slot if that is the endpoint's own.
type arrival struct {
	slot  uint32
	frame []byte
}

// add adds the n slots in mem, to be posted. Their wr_ids are those of first
// with the slot for position.
func (r *recvRing) add(mem []byte, addr uint64, key uint32, n, size int, first wrid.ID) {
	for i := range n {
		slot := uint32(len(r.all))
		wr := verbs.RecvWR{ID: uint64(first.At(slot)), Addr: addr + uint64(i*size), Length: uint32(size), LKey: key}
		r.all = append(r.all, wr)
		r.again = append(r.again, wr)
		r.mem = append(r.mem, mem[i*size:][:size:size])
		r.posted = append(r.posted, false)
	}
}

// recvQueue is where receives are posted: a QP or an SRQ.
type recvQueue interface {
	PostRecv([]verbs.RecvWR) (int, error)
}

// post posts again, in one crossing, and returns how many were taken. The
// others are left there.
func (r *recvRing) post(to recvQueue) (n int, err error) {
	if len(r.again) == 0 {
		return 0, nil
	}
	n, err = to.PostRecv(r.again)
	for i := range n {
		r.posted[wrid.ID(r.again[i].ID).Position()%maxRecvSlots] = true
	}
	r.outstanding += n
	r.again = r.again[:copy(r.again, r.again[n:])]
	return n, err
}

// frame is what arrived in a slot.
func (r *recvRing) frame(slot uint32, size int) []byte {
	mem := r.mem[slot]
	return mem[:min(size, len(mem))]
}

// complete counts a receive that completed, well or not, and returns its slot;
// false if that receive is not posted: it completes for the second time. The
// position names the slot and its lap, so that a slot posted again is not
// taken for it.
func (r *recvRing) complete(id wrid.ID) (slot uint32, ok bool) {
	slot = id.Position() % maxRecvSlots
	if int(slot) >= len(r.posted) || !r.posted[slot] || r.all[slot].ID != uint64(id) {
		return 0, false
	}
	r.posted[slot] = false
	r.outstanding--
	return slot, true
}

// reuse puts a slot among those posted at the end of the batch, for its next lap.
func (r *recvRing) reuse(slot uint32) {
	wr := &r.all[slot]
	id := wrid.ID(wr.ID)
	wr.ID = uint64(id.At(id.Position() + maxRecvSlots))
	r.again = append(r.again, *wr)
}

// received takes in a frame that arrived.
func (ep *endpoint) received(a arrival) {
	l := ep.link.Load()
	if l == nil || l.dead() != nil {
		return
	}
	if ep.shares {
		if err := ep.overrun(); err != nil {
			l.fail(err, true)
			return
		}
	}
	if l.receiver == nil {
		if ep.shares {
			a = a.keep()
		}
		ep.recv.early = append(ep.recv.early, a)
		return
	}
	l.deliver(a)
}

// deliver checks a frame, hands it over and frees its receive slot. With the
// first of a batch it takes the flush lock, if nobody has it: what is committed
// while the batch is handled leaves in one crossing at its end.
func (l *link) deliver(a arrival) {
	if !l.holding {
		l.holding = l.send.mu.TryLock()
	}
	l.came++
	r := &l.ep.recv
	if err := l.accept(a.frame); err != nil {
		l.fail(err, true)
		return
	}
	if l.ep.shares {
		r.used++
	} else {
		r.reuse(a.slot)
	}
}

// accept checks a frame, everything before anything is believed, and hands it
// to the receiver.
func (l *link) accept(frame []byte) error {
	h := &l.header
	if err := h.Parse(frame); err != nil {
		return err
	}
	if h.Epoch != l.epoch && !mutateEpoch {
		// A packet of an earlier QP found its way here (case 9). It used a
		// receive that the peer still counts on.
		l.stats.stale.Add(1)
		l.ep.recv.ungranted++
		return nil
	}
	if h.FrameSize() != len(frame) {
		return &wire.ParseError{Field: "frame", Got: uint64(len(frame)), Want: fmt.Sprintf("%d bytes", h.FrameSize())}
	}
	if err := l.window.Grant(h.Credit); err != nil {
		return &wire.ParseError{Field: "credit", Got: uint64(h.Credit), Want: err.Error()}
	}
	payload := frame[wire.HeaderSize:][:h.Length]
	if h.Flags&wire.Sum != 0 {
		if sum := binary.LittleEndian.Uint64(frame[wire.HeaderSize+len(payload):]); sum != wire.PayloadSum(payload) {
			return &wire.ParseError{Field: "payload sum", Got: sum, Want: "XXH64 of the payload"}
		}
	}
	l.stats.framesReceived.Add(1)
	l.stats.bytesReceived.Add(uint64(len(frame)))
	if h.Kind == wire.Credit {
		return nil
	}
	return l.receiver.Take(h, payload)
}

func putSum(at, payload []byte) { binary.LittleEndian.PutUint64(at, wire.PayloadSum(payload)) }

// endBatch posts the receive slots that came free and the frames that were
// published, and serves who waits for a slot. The batch had n completions: none
// where it is of frames that came before Start.
func (ep *endpoint) endBatch(n int) {
	l := ep.link.Load()
	if l == nil {
		ep.settle()
		return
	}
	l.crowd.Arrived(l.came)
	l.came = 0
	switch r := &ep.recv; {
	case r.used > 0 || len(r.again) >= enough(len(r.all)):
		l.repost()
	case len(r.again) > 0:
		ep.poller.owe(ep)
	}
	if l.holding {
		l.holding = false
		ep.send.mu.Unlock()
	}
	if l.sendable() {
		l.flush()
	}
	ep.send.serve()
	if n > 0 {
		l.stats.recvBatches.Add(1)
		l.stats.completions.Add(uint64(n))
	}
	ep.settle()
}

// repost posts the slots that were taken, in one crossing, and grants
// them. Those that are shared the poller posts, in one crossing for all. After the
// first error of the QP nothing is posted (case 7).
func (l *link) repost() {
	r := &l.ep.recv
	if l.dead() != nil || len(r.again)+r.used == 0 { // in this order: a dead link's are not the poller's for long
		return
	}
	n, err := r.post(l.ep.qp)
	if n > 0 {
		l.stats.recvPosts.Add(1)
		l.stats.recvsPosted.Add(uint64(n))
	}
	l.grants.Posted(n + r.used - r.ungranted)
	r.used, r.ungranted = 0, 0
	if err != nil {
		l.fail(err, false)
	}
}

// failed takes in an error completion. Of a flush nothing can be learnt: it
// follows another, or a transition of our own.
func (ep *endpoint) failed(wc *verbs.WC) {
	if wc.Status == verbs.WCRNRRetryExcErr {
		ep.dev.fabric.rnr.Add(1)
	}
	l := ep.link.Load()
	if l == nil || l.dead() != nil {
		return
	}
	ep.machine.Observe(verbs.Err, wc.Status.String())
	class := completionClass(wc.Status, isRXE(&ep.dev.attr))
	l.fail(&CompletionError{ep.dev.name, wc.QPNum, wc.Status, wc.VendorErr, class}, class.reusable())
}
