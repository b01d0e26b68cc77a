package simverbs

import (
	"encoding/binary"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

const psnMask = 1<<24 - 1

// psnDiff is a - b in the circle of 24 bits.
func psnDiff(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }

// requester is the sending side of a QP.
type requester struct {
	psn        uint32 // of the next WR posted
	reads      int    // READs and atomics with the peer
	retries    uint8  // left; a sign of progress restores them
	rnrRetries uint8
	rnrWait    bool // the peer was not ready
	pumping    bool
	kicked     bool      // pump is due
	timing     bool      // onTimeout is due
	progress   time.Time // good while timing
}

// kick makes the device look at the send queue, at once or after Doorbell.
func (q *queuePair) kick() {
	d := q.dev.f.cfg.Doorbell
	if d == 0 {
		q.pump()
		return
	}
	if !q.kicked {
		q.kicked = true
		q.later(d, func() {
			q.kicked = false
			q.pump()
		})
	}
}

// pump sends what can be sent. Acknowledgements that arrive meanwhile move
// sqDone, a negative one moves sqNext back.
func (q *queuePair) pump() {
	if q.pumping {
		return
	}
	q.pumping = true
	for q.sqNext < q.sqTail && q.in(verbs.RTS) && !q.rnrWait {
		w := q.wqe(q.sqNext)
		if q.mustWait(w) || !q.transmit(w) {
			break
		}
	}
	q.pumping = false
	q.startTimer()
	q.noteDrained()
}

// mustWait says whether earlier READs and atomics must end first.
func (q *queuePair) mustWait(w *sendWQE) bool {
	if w.wr.Opcode >= verbs.OpRead && q.reads >= int(q.attr.MaxRdAtomic) {
		return true
	}
	return w.wr.Flags&verbs.SendFence != 0 && q.reads > 0
}

// transmit reads a WR's memory and sends it. It is false when the WR has to
// wait until those before it have completed.
func (q *queuePair) transmit(w *sendWQE) bool {
	p := packet{typ: q.typ, src: q, to: q.dst, qpn: q.attr.DestQPN, psn: w.psn, wr: &w.wr}
	data, status := q.gather(w)
	if status == verbs.WCSuccess && q.typ == verbs.UD {
		status = q.address(&p, w)
	}
	if status != verbs.WCSuccess {
		if q.sqDone == q.sqNext {
			q.fail(status)
			return true
		}
		return false
	}
	p.data = data
	if q.timing && q.sqDone == q.sqNext {
		q.progress = time.Now()
	}
	q.sqNext++
	if w.wr.Opcode >= verbs.OpRead {
		q.reads++
	}
	q.dev.f.carry(&p)
	if q.typ != verbs.RC {
		q.finishSend(verbs.WCSuccess)
	}
	return true
}

// gather finds the bytes that a WR sends.
func (q *queuePair) gather(w *sendWQE) ([]byte, verbs.WCStatus) {
	rxe := q.dev.f.cfg.Model == RXE
	if rxe && q.port().attr.State != verbs.PortActive {
		return nil, verbs.WCLocQPOpErr
	}
	switch {
	case w.wr.Length == 0 || w.wr.Opcode >= verbs.OpRead:
		return nil, verbs.WCSuccess
	case w.wr.Flags&verbs.SendInline != 0:
		return w.inline[:w.wr.Length], verbs.WCSuccess
	}
	mem := q.dev.nic.memory(q.pd, w.wr.LKey, w.wr.Addr, w.wr.Length, 0)
	switch {
	case mem != nil:
		return mem, verbs.WCSuccess
	case rxe:
		return nil, verbs.WCLocQPOpErr
	}
	return nil, verbs.WCLocProtErr
}

// onAck takes the peer's answer to the WR with its PSN. It answers those
// before it as well.
func (q *queuePair) onAck(p *packet) {
	if !q.waiting() {
		return
	}
	n := psnDiff(p.psn, q.wqe(q.sqDone).psn)
	if n < 0 || n >= int(q.sqNext-q.sqDone) {
		return // an old one
	}
	for range n {
		if q.wqe(q.sqDone).wr.Opcode >= verbs.OpRead {
			q.rewind() // its response was lost
			q.pump()
			return
		}
		q.acknowledged()
	}
	if !q.waiting() {
		return
	}
	switch p.answer {
	case answerAck:
		if q.wqe(q.sqDone).wr.Opcode >= verbs.OpRead && !q.land(p) {
			q.fail(verbs.WCLocProtErr)
			return
		}
		q.acknowledged()
	case answerRNR:
		q.notReady(p.rnrTimer)
	case answerSequence:
		q.rewind()
	case answerNak:
		q.fail(p.status)
		return
	}
	q.pump()
}

// waiting says whether answers are due.
func (q *queuePair) waiting() bool {
	return q.sqDone != q.sqNext && (q.in(verbs.RTS) || q.in(verbs.SQD))
}

func (q *queuePair) acknowledged() {
	if q.wqe(q.sqDone).wr.Opcode >= verbs.OpRead {
		q.reads--
	}
	q.retries, q.rnrRetries = q.attr.RetryCnt, q.attr.RNRRetry
	if q.timing {
		q.progress = time.Now()
	}
	q.finishSend(verbs.WCSuccess)
}

// land puts a response where the oldest WR wants it.
func (q *queuePair) land(p *packet) bool {
	wr := &q.wqe(q.sqDone).wr
	if wr.Length == 0 {
		return true
	}
	mem := q.dev.nic.memory(q.pd, wr.LKey, wr.Addr, wr.Length, verbs.AccessLocalWrite)
	if mem == nil {
		return false
	}
	if wr.Opcode == verbs.OpRead {
		copy(mem, p.data)
	} else {
		binary.NativeEndian.PutUint64(mem, p.value)
	}
	return true
}

// rewind makes everything that is with the peer go out again.
func (q *queuePair) rewind() {
	q.sqNext = q.sqDone
	q.reads = 0
}

// infiniteRNR is the rnr_retry that never gives up.
const infiniteRNR = 7

func (q *queuePair) notReady(timer uint8) {
	if q.rnrRetries == 0 {
		q.fail(verbs.WCRNRRetryExcErr)
		return
	}
	if q.attr.RNRRetry != infiniteRNR {
		q.rnrRetries--
	}
	q.rewind()
	q.rnrWait = true
	q.later(q.dev.f.rnrDelay(timer), func() {
		q.rnrWait = false
		q.pump()
	})
}

// startTimer watches over what is with the peer.
func (q *queuePair) startTimer() {
	if q.timing || q.attr.Timeout == 0 || q.typ != verbs.RC || !q.waiting() {
		return
	}
	q.timing = true
	q.progress = time.Now()
	q.later(q.timeout(), q.onTimeout)
}

func (q *queuePair) onTimeout() {
	q.timing = false
	if q.rnrWait || !q.waiting() {
		return
	}
	if rest := q.timeout() - time.Since(q.progress); rest > 0 {
		q.timing = true
		q.later(rest, q.onTimeout)
		return
	}
	if q.retries == 0 {
		q.fail(verbs.WCRetryExcErr)
		return
	}
	if q.attr.RetryCnt != 7 || q.dev.f.cfg.Model == Spec {
		q.retries--
	}
	q.rewind()
	q.pump()
}

// fail ends the oldest send with an error: the QP is in ERR, or in SQE where
// only its send queue has failed, and everything else is flushed.
func (q *queuePair) fail(status verbs.WCStatus) {
	rxe := q.dev.f.cfg.Model == RXE
	w := q.wqe(q.sqDone).wr
	sqe := q.typ != verbs.RC && !rxe
	q.attr.State = verbs.Err
	if sqe {
		q.attr.State = verbs.SQE
	}
	q.finishSend(status)
	if !sqe {
		q.flushRecvs()
	}
	if rxe && status == verbs.WCRemAccessErr && (w.Opcode == verbs.OpWrite || w.Opcode == verbs.OpWriteImm) {
		q.complete(q.scq, cqEntry{wc: verbs.WC{ID: w.ID, Status: verbs.WCWRFlushErr}, send: true})
	}
	q.flushSends()
}

// timeout is the time of one attempt. rxe measures it in jiffies.
func (q *queuePair) timeout() time.Duration {
	d := 4096 * time.Nanosecond << q.attr.Timeout
	if q.dev.f.cfg.Model == RXE {
		d = max(d, 4*time.Millisecond)
	}
	return d
}

// rnrDelays is the table of min_rnr_timer (InfiniBand Architecture
// Specification, volume 1, section 9.7.5.2.8), in units of 10 µs.
var rnrDelays = [32]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

func (f *Fabric) rnrDelay(code uint8) time.Duration {
	d := rnrDelays[code&31] * 10 * time.Microsecond
	if f.cfg.Model == RXE {
		d = max(d, 6*time.Millisecond) // as measured, whatever the code
	}
	return d
}
