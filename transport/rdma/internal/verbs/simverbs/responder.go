package simverbs

import (
	"encoding/binary"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// responder is the receiving side of a QP.
type responder struct {
	expected uint32 // PSN
	gap      bool   // a sequence NAK was sent for the gap before expected
	atomics  [16]atomicResult
	atomicAt int
}

// atomicResult is kept so that a repeated atomic is answered, not repeated.
type atomicResult struct {
	psn   uint32
	value uint64
	valid bool
}

// packet is one message on the wire, request or answer. It lives on the stack
// of the poster unless it travels.
type packet struct {
	typ  verbs.QPType
	src  *queuePair // who sent it, for address and number alone
	to   *port      // where it goes
	qpn  uint32
	psn  uint32
	data []byte

	wr   *verbs.SendWR // a request
	qkey uint32        // UD
	av   *verbs.AHAttr // UD

	answer   answer // an answer
	status   verbs.WCStatus
	rnrTimer uint8
	value    uint64 // what an atomic found
}

type answer uint8

const (
	answerNone answer = iota // it is a request
	answerAck
	answerRNR
	answerSequence
	answerNak
)

func (q *queuePair) receives() bool {
	return q.in(verbs.RTR) || q.in(verbs.RTS) || q.in(verbs.SQD) || q.in(verbs.SQE)
}

// reply sends an answer to the peer that the QP is connected to.
func (q *queuePair) reply(p *packet) {
	p.typ, p.src, p.to, p.qpn = q.typ, q, q.dst, q.attr.DestQPN
	q.dev.f.carry(p)
}

// onRequest is the RC responder.
func (q *queuePair) onRequest(p *packet) {
	if !q.receives() {
		return
	}
	switch d := psnDiff(p.psn, q.expected); {
	case d < 0:
		q.onDuplicate(p)
		return
	case d > 0:
		if !q.gap {
			q.gap = true
			q.reply(&packet{psn: q.expected, answer: answerSequence})
		}
		return
	}
	q.gap = false
	a := packet{psn: p.psn, answer: answerAck}
	own := q.execute(p, &a)
	if a.answer == answerAck {
		q.expected = (q.expected + 1) & psnMask
	}
	q.reply(&a)
	if a.answer == answerNak {
		q.failResponder(a.status, own)
	}
}

// failResponder moves the QP to ERR after it has refused a request. own is the
// status of the receive that was to take it, success if there is none.
func (q *queuePair) failResponder(told, own verbs.WCStatus) {
	switch {
	case own != verbs.WCSuccess:
		q.completeRecv(verbs.WC{ID: q.takeRecv(), Status: own})
	case q.dev.f.cfg.Model == Spec && told == verbs.WCRemAccessErr:
		q.dev.events.push(verbs.AsyncEvent{Type: verbs.EventQPAccessErr, QPNum: q.num})
	case q.dev.f.cfg.Model == Spec:
		q.dev.events.push(verbs.AsyncEvent{Type: verbs.EventQPReqErr, QPNum: q.num})
	}
	q.enterErr()
}

// onDuplicate answers what was carried out already.
func (q *queuePair) onDuplicate(p *packet) {
	a := packet{psn: p.psn, answer: answerAck}
	switch {
	case p.wr.Opcode == verbs.OpRead:
		q.serveRead(p, &a)
	case p.wr.Opcode > verbs.OpRead:
		i := q.findAtomic(p.psn)
		if i < 0 {
			return
		}
		a.value = q.atomics[i].value
	default:
		a.psn = (q.expected - 1) & psnMask
	}
	q.reply(&a)
}

func (q *queuePair) findAtomic(psn uint32) int {
	for i, r := range q.atomics {
		if r.valid && r.psn == psn {
			return i
		}
	}
	return -1
}

// execute carries a request out and makes the answer. The result is the status
// of the receive that could not take it.
func (q *queuePair) execute(p, a *packet) (own verbs.WCStatus) {
	imm := p.wr.Opcode == verbs.OpWriteImm
	if send := p.wr.Opcode == verbs.OpSend || p.wr.Opcode == verbs.OpSendImm; send || imm {
		if q.noRecv() {
			a.answer, a.rnrTimer = answerRNR, q.attr.MinRNRTimer
			return verbs.WCSuccess
		}
		if send {
			return q.takeSend(p, a)
		}
	}
	switch p.wr.Opcode {
	case verbs.OpWrite, verbs.OpWriteImm:
		if len(p.data) > 0 && !q.takeWrite(p) {
			a.refuse(q.deny(verbs.AccessRemoteWrite))
		} else if imm {
			q.received(p, verbs.WCRecvRDMAImm)
		}
	case verbs.OpRead:
		if q.attr.MaxDestRdAtom == 0 {
			a.refuse(verbs.WCRemInvReqErr)
			break
		}
		q.serveRead(p, a)
	default:
		q.serveAtomic(p, a)
	}
	return verbs.WCSuccess
}

func (a *packet) refuse(status verbs.WCStatus) { a.answer, a.status = answerNak, status }

// takeSend scatters a SEND into the oldest receive.
func (q *queuePair) takeSend(p, a *packet) (own verbs.WCStatus) {
	told, own := q.scatter(p.data)
	if own != verbs.WCSuccess {
		a.refuse(told)
		return own
	}
	q.received(p, verbs.WCRecv)
	return verbs.WCSuccess
}

// scatter copies data into the oldest receive; if it does not fit, told is for
// the sender and own for the receive.
func (q *queuePair) scatter(data []byte) (told, own verbs.WCStatus) {
	r := q.recvs().front()
	rxe := q.dev.f.cfg.Model == RXE
	switch {
	case len(data) == 0:
		return 0, verbs.WCSuccess
	case len(data) > int(r.Length) && rxe:
		return verbs.WCRemOpErr, verbs.WCLocQPOpErr
	case len(data) > int(r.Length):
		return verbs.WCRemInvReqErr, verbs.WCLocLenErr
	}
	mem := q.dev.nic.memory(q.pd, r.LKey, r.Addr, uint32(len(data)), verbs.AccessLocalWrite)
	switch {
	case mem != nil:
		copy(mem, data)
		return 0, verbs.WCSuccess
	case rxe:
		return verbs.WCRemOpErr, verbs.WCLocQPOpErr
	}
	return verbs.WCRemOpErr, verbs.WCLocProtErr
}

// received completes the oldest receive.
func (q *queuePair) received(p *packet, op verbs.WCOpcode) {
	wc := verbs.WC{ID: q.takeRecv(), Opcode: op, ByteLen: uint32(len(p.data))}
	if p.wr.Opcode == verbs.OpSendImm || p.wr.Opcode == verbs.OpWriteImm {
		wc.Flags |= verbs.WCWithImm
		binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&wc.ImmBE))[:], p.wr.Imm)
	}
	if q.typ == verbs.UD {
		wc.Flags |= verbs.WCWithGRH
		wc.ByteLen += grhBytes
		wc.SrcQP = p.src.num
	}
	q.completeRecv(wc)
}

// remote is the memory that a peer's request names, if it may touch it so.
func (q *queuePair) remote(wr *verbs.SendWR, need verbs.Access) []byte {
	if q.attr.Access&need == 0 {
		return nil
	}
	return q.dev.nic.memory(q.pd, wr.RKey, wr.RemoteAddr, wr.Length, need)
}

// deny is the status for a peer that may not touch the memory it names.
func (q *queuePair) deny(need verbs.Access) verbs.WCStatus {
	if q.dev.f.cfg.Model == RXE && q.attr.Access&need == 0 {
		return verbs.WCRemInvReqErr
	}
	return verbs.WCRemAccessErr
}

func (q *queuePair) takeWrite(p *packet) bool {
	mem := q.remote(p.wr, verbs.AccessRemoteWrite)
	if mem == nil {
		return false
	}
	copy(mem, p.data)
	return true
}

func (q *queuePair) serveRead(p, a *packet) {
	if p.wr.Length == 0 {
		return
	}
	if a.data = q.remote(p.wr, verbs.AccessRemoteRead); a.data == nil {
		a.refuse(q.deny(verbs.AccessRemoteRead))
	}
}

func (q *queuePair) serveAtomic(p, a *packet) {
	mem := q.remote(p.wr, verbs.AccessRemoteAtomic)
	switch {
	case q.attr.MaxDestRdAtom == 0:
		a.refuse(verbs.WCRemInvReqErr)
		return
	case mem == nil:
		a.refuse(q.deny(verbs.AccessRemoteAtomic))
		return
	}
	a.value = binary.NativeEndian.Uint64(mem)
	switch {
	case p.wr.Opcode == verbs.OpFetchAdd:
		binary.NativeEndian.PutUint64(mem, a.value+p.wr.CompareAdd)
	case a.value == p.wr.CompareAdd:
		binary.NativeEndian.PutUint64(mem, p.wr.Swap)
	}
	q.atomics[q.atomicAt] = atomicResult{psn: p.psn, value: a.value, valid: true}
	q.atomicAt = (q.atomicAt + 1) % len(q.atomics)
}
