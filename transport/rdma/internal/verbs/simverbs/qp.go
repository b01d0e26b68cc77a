package simverbs

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// queuePair is a queue pair. All of it is guarded by Fabric.mu, except sqFree.
//
// The send queue holds the WRs from sqDone to sqTail: those before sqNext are
// with the peer, those from it on were not yet read by the device. The counts
// go up for ever, also across RESET, and index sq modulo its length.
type queuePair struct {
	object
	dev      *device
	pd       *pd
	scq, rcq *compQueue
	num      uint32
	typ      verbs.QPType
	caps     verbs.QPCaps
	sigAll   bool

	attr   verbs.QPAttr  // attr.State is the state
	dst    *port         // resolved at RTR; nil for UD
	life   uint64        // how often it was RESET; ends the timers of an earlier life
	heard  bool          // it was in RTR in this life: something may be in flight
	made   *atomic.Int64 // completions of this life that were not polled yet
	notify bool          // raise SQ_DRAINED

	sq                     []sendWQE
	sqDone, sqNext, sqTail uint64
	sqFree                 atomic.Uint64 // slots up to here may be posted again; Poll advances it under the Spec model
	rq                     recvQueue     // its own; takes nothing with an srq
	srq                    *sharedQueue

	requester
	responder
}

type sendWQE struct {
	wr     verbs.SendWR
	inline []byte // copied at post
	psn    uint32
}

// roundQueue is the size of a work queue for which n entries were asked.
func (f *Fabric) roundQueue(n int) int {
	switch {
	case f.cfg.Round != nil:
		return max(n, f.cfg.Round(n))
	case f.cfg.Model == Spec:
		return 1 << bits.Len(uint(max(n, 1)-1))
	}
	return 1<<bits.Len(uint(n)) - 1
}

func (f *Fabric) roundCQ(n int) int {
	if f.cfg.Round != nil {
		return max(n, f.cfg.Round(n))
	}
	return 1<<bits.Len(uint(n)) - 1
}

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	const op = "ibv_create_qp"
	d := p.dev
	if err := d.enterAlive(op, &p.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	refuse := func(errno syscall.Errno, format string, args ...any) (verbs.QP, error) {
		return nil, &verbs.Error{Op: op, Object: d.name, Errno: errno, Hint: fmt.Sprintf(format, args...)}
	}
	if init.Type != verbs.RC && init.Type != verbs.UC && init.Type != verbs.UD {
		return refuse(syscall.EOPNOTSUPP, "QP type %v", init.Type)
	}
	scq, ok1 := init.SendCQ.(*compQueue)
	rcq, ok2 := init.RecvCQ.(*compQueue)
	if !ok1 || !ok2 || scq.dev != d || rcq.dev != d || scq.gone || rcq.gone {
		return refuse(syscall.EINVAL, "a QP needs two CQs of its device")
	}
	from := []*object{&p.object, &scq.object, &rcq.object}
	c := init.Caps
	srq, ok := init.SRQ.(*sharedQueue)
	switch {
	case init.SRQ == nil:
	case !ok || srq.pd != p || srq.gone:
		return refuse(syscall.EINVAL, "SRQ must be an SRQ of the same PD")
	default:
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
		from = append(from, &srq.object)
	}
	for _, limit := range []struct {
		name       string
		value, max int
	}{
		{"max_send_wr", c.MaxSendWR, d.nic.attr.MaxQPWR}, {"max_recv_wr", c.MaxRecvWR, d.nic.attr.MaxQPWR},
		{"max_send_sge", c.MaxSendSGE, d.nic.attr.MaxSGE}, {"max_recv_sge", c.MaxRecvSGE, d.nic.attr.MaxSGE},
		{"max_inline_data", c.MaxInlineData, d.nic.maxInline},
	} {
		if limit.value < 0 || limit.value > limit.max {
			return refuse(syscall.EINVAL, "%s %d, the device allows %d", limit.name, limit.value, limit.max)
		}
	}
	if len(d.nic.qps) == d.nic.attr.MaxQP {
		return refuse(syscall.ENOMEM, "all %d QPs are in use", d.nic.attr.MaxQP)
	}

	// As rxe has it: inline data shares the space of the gather elements, 16
	// bytes each.
	c.MaxSendWR, c.MaxSendSGE = d.f.roundQueue(c.MaxSendWR), max(c.MaxSendSGE, 1)
	if srq == nil {
		c.MaxRecvWR, c.MaxRecvSGE = d.f.roundQueue(c.MaxRecvWR), max(c.MaxRecvSGE, 1)
	}
	c.MaxInlineData = max(16*c.MaxSendSGE, (c.MaxInlineData+15)&^15)
	c.MaxInlineData = min(c.MaxInlineData, d.nic.maxInline)

	q := &queuePair{
		dev: d, pd: p, scq: scq, rcq: rcq, typ: init.Type, caps: c, sigAll: init.SignalAll, num: d.nic.newQPN(),
		made: new(atomic.Int64), sq: make([]sendWQE, max(c.MaxSendWR, 1)), rq: newRecvQueue(c.MaxRecvWR), srq: srq,
	}
	d.nic.qps[q.num] = q
	q.born("QP", fmt.Sprintf("QP %#x", q.num), from...)
	return q, nil
}

// newQPN takes the lowest number that is free, or the next one.
func (n *nic) newQPN() uint32 {
	num := n.lastQPN
	if n.f.cfg.LowestQPN {
		num = firstQPN - 1
	}
	for {
		if num = (num + 1) & psnMask; num < firstQPN {
			num = firstQPN
		}
		if n.qps[num] == nil {
			n.lastQPN = num
			return num
		}
	}
}

func (q *queuePair) Num() uint32             { return q.num }
func (q *queuePair) Type() verbs.QPType      { return q.typ }
func (q *queuePair) Caps() verbs.QPCaps      { return q.caps }
func (q *queuePair) in(s verbs.QPState) bool { return q.attr.State == s }

func (q *queuePair) Query() (verbs.QPAttr, error) {
	if err := q.dev.enterAlive("ibv_query_qp", &q.object); err != nil {
		return verbs.QPAttr{}, err
	}
	defer q.dev.f.mu.Unlock()
	a := q.attr
	a.CurState, a.Caps = a.State, q.caps
	a.SQDraining = q.in(verbs.SQD) && q.sqDone != q.sqNext
	a.SQPSN, a.RQPSN = q.psn, q.expected
	return a, nil
}

// Destroy implements verbs.QP. What is outstanding vanishes without a
// completion.
func (q *queuePair) Destroy() error {
	if err := q.dev.enter("ibv_destroy_qp", &q.object); err != nil {
		return err
	}
	defer q.dev.f.mu.Unlock()
	if err := q.die("ibv_destroy_qp"); err != nil {
		return err
	}
	q.abandon()
	q.forget()
	if q.dev.nic.qps[q.num] == q { // else its host was killed, and the number is another's
		delete(q.dev.nic.qps, q.num)
	}
	return nil
}

// abandon notes a life that ends before all of it was completed and polled.
func (q *queuePair) abandon() {
	if q.heard && (q.sqDone < q.sqTail || !q.rq.empty() || q.made.Load() > 0) {
		q.dev.f.stats.Abandoned++
	}
}

// produced counts a completion until it is polled.
func (q *queuePair) produced() *atomic.Int64 {
	q.made.Add(1)
	return q.made
}

// forget empties both queues and begins a new life.
func (q *queuePair) forget() {
	q.life++
	q.heard, q.made = false, new(atomic.Int64)
	q.attr.State = verbs.Reset
	q.sqDone, q.sqNext = q.sqTail, q.sqTail
	q.free(q.sqTail)
	q.rq.clear()
	q.requester = requester{}
	q.responder = responder{}
	q.dst = nil
}

// outstanding counts the WRs that name m, and that the device may still touch.
func (q *queuePair) outstanding(m *mr) (n int) {
	if q.in(verbs.Err) {
		return 0
	}
	for i := q.sqDone; i < q.sqTail; i++ {
		if w := q.wqe(i); w.wr.LKey == m.key && w.wr.Length > 0 && w.wr.Flags&verbs.SendInline == 0 {
			n++
		}
	}
	return n + q.rq.naming(m)
}

func (q *queuePair) wqe(i uint64) *sendWQE { return &q.sq[i%uint64(len(q.sq))] }

// enterErr moves the QP to ERR and flushes: first the receives, then the
// sends, those that the peer has as well.
func (q *queuePair) enterErr() {
	if q.in(verbs.Err) || q.in(verbs.Reset) {
		return
	}
	q.attr.State = verbs.Err
	q.flushRecvs()
	q.flushSends()
}

// flushRecvs flushes the QP's own receives. Those of an SRQ stay for others.
func (q *queuePair) flushRecvs() {
	q.flushOwn()
	if q.srq != nil && q.dev.f.cfg.Model == Spec {
		q.dev.events.push(verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QPNum: q.num})
	}
}

func (q *queuePair) flushOwn() {
	for !q.rq.empty() {
		q.completeRecv(verbs.WC{ID: q.rq.pop(), Status: verbs.WCWRFlushErr})
	}
}

func (q *queuePair) flushSends() {
	for q.sqDone < q.sqTail {
		q.finishSend(verbs.WCWRFlushErr)
	}
	q.sqNext = q.sqTail
}

// free gives the slots before end back.
func (q *queuePair) free(end uint64) {
	for {
		old := q.sqFree.Load()
		if end <= old || q.sqFree.CompareAndSwap(old, end) {
			return
		}
	}
}

// finishSend completes the oldest send with a status. A success makes a
// completion only if it was asked for.
func (q *queuePair) finishSend(status verbs.WCStatus) {
	w := q.wqe(q.sqDone)
	q.sqDone++
	if q.sqNext < q.sqDone {
		q.sqNext = q.sqDone
	}
	spec := q.dev.f.cfg.Model == Spec
	if !spec {
		q.free(q.sqDone)
	}
	if status == verbs.WCSuccess && !q.sigAll && w.wr.Flags&verbs.SendSignaled == 0 {
		return
	}
	wc := verbs.WC{ID: w.wr.ID, Status: status}
	if status == verbs.WCSuccess {
		wc.Opcode = sendOpcodes[w.wr.Opcode]
		if w.wr.Opcode >= verbs.OpRead {
			wc.ByteLen = w.wr.Length
		}
	}
	e := cqEntry{wc: wc, send: true}
	if spec {
		e.qp, e.sqEnd = q, q.sqDone
	}
	q.complete(q.scq, e)
}

var sendOpcodes = [...]verbs.WCOpcode{
	verbs.OpWrite: verbs.WCRDMAWrite, verbs.OpWriteImm: verbs.WCRDMAWrite, verbs.OpSend: verbs.WCSend,
	verbs.OpSendImm: verbs.WCSend, verbs.OpRead: verbs.WCRDMARead, verbs.OpCompareSwap: verbs.WCCompSwap,
	verbs.OpFetchAdd: verbs.WCFetchAdd,
}

func (q *queuePair) completeRecv(wc verbs.WC) { q.complete(q.rcq, cqEntry{wc: wc}) }

// complete enters a completion into a CQ, through the faults.
func (q *queuePair) complete(cq *compQueue, e cqEntry) {
	e.wc.QPNum = q.num
	if f := q.dev.f; f.cfg.Faults.OnCompletion != nil {
		f.completeFaulty(q, cq, e)
		return
	}
	e.unpolled = q.produced()
	cq.push(e)
}

// later runs fn after d, unless the QP was RESET or destroyed meanwhile.
func (q *queuePair) later(d time.Duration, fn func()) {
	life := q.life
	q.dev.f.after(d, func() {
		if q.life == life {
			fn()
		}
	})
}
