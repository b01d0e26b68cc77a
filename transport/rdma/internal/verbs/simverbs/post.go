package simverbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// maxMessage is the longest message of RC and UC (InfiniBand Architecture
// Specification, volume 1, section 9.4.1).
const maxMessage = 1 << 31

func (q *queuePair) PostSend(wrs []verbs.SendWR) (int, error) {
	f := q.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range wrs {
		if errno, hint := q.postSend(&wrs[i]); errno != 0 {
			q.carryOut()
			return i, &verbs.Error{Op: "ibv_post_send", Object: q.name, Errno: errno, Hint: hint}
		}
	}
	if errno := f.plannedPost(q.dev, Doorbell); errno != 0 {
		return len(wrs), &verbs.Error{Op: "ibv_post_send", Object: q.name, Errno: errno, Hint: "planned fault"}
	}
	q.carryOut()
	return len(wrs), nil
}

// carryOut sets the device on what was posted.
func (q *queuePair) carryOut() {
	switch q.attr.State {
	case verbs.RTS:
		q.kick()
	case verbs.SQE, verbs.Err:
		q.flushSends()
	}
}

func (q *queuePair) postSend(wr *verbs.SendWR) (syscall.Errno, string) {
	f := q.dev.f
	if errno := f.plannedPost(q.dev, "ibv_post_send"); errno != 0 {
		return errno, "planned fault"
	}
	switch {
	case q.gone:
		return syscall.EBADF, "it was destroyed before"
	case q.dev.nic.dead:
		return syscall.EIO, "the device is dead"
	case q.attr.State < verbs.RTS:
		return syscall.EINVAL, fmt.Sprintf("it is in %v", q.attr.State)
	case q.sqTail-q.sqFree.Load() >= uint64(q.caps.MaxSendWR):
		return syscall.ENOMEM, fmt.Sprintf("send queue of %d is full", q.caps.MaxSendWR)
	}
	if hint := q.checkSend(wr); hint != "" {
		return syscall.EINVAL, hint
	}
	w := q.wqe(q.sqTail)
	w.wr = *wr
	w.psn = q.psn
	q.psn = (q.psn + 1) & psnMask
	if wr.Flags&verbs.SendInline != 0 && wr.Length > 0 {
		w.inline = append(w.inline[:0], inlineBytes(wr.Addr, wr.Length)...)
	}
	q.sqTail++
	return 0, ""
}

// checkSend says what is wrong with a WR, "" if nothing is.
func (q *queuePair) checkSend(wr *verbs.SendWR) string {
	inline := wr.Flags&verbs.SendInline != 0
	switch {
	case wr.Opcode > verbs.OpFetchAdd,
		q.typ == verbs.UC && wr.Opcode > verbs.OpSendImm,
		q.typ == verbs.UD && wr.Opcode != verbs.OpSend && wr.Opcode != verbs.OpSendImm:
		return fmt.Sprintf("opcode %d on a %v QP", wr.Opcode, q.typ)
	case inline && wr.Opcode >= verbs.OpRead:
		return "only sends and writes can be inline"
	case inline && int(wr.Length) > q.caps.MaxInlineData:
		return fmt.Sprintf("%d bytes inline, the QP takes %d", wr.Length, q.caps.MaxInlineData)
	case wr.Opcode > verbs.OpRead && (wr.Length != 8 || wr.RemoteAddr%8 != 0):
		return "an atomic is on 8 bytes, aligned"
	case wr.Length > maxMessage:
		return "longer than 2 GiB"
	}
	return ""
}

func (q *queuePair) PostRecv(wrs []verbs.RecvWR) (int, error) {
	f := q.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range wrs {
		if errno, hint := q.postRecv(&wrs[i]); errno != 0 {
			return i, &verbs.Error{Op: "ibv_post_recv", Object: q.name, Errno: errno, Hint: hint}
		}
	}
	if q.in(verbs.Err) && f.cfg.Model == Spec {
		q.flushRecvs()
	}
	return len(wrs), nil
}

func (q *queuePair) postRecv(wr *verbs.RecvWR) (syscall.Errno, string) {
	if errno := q.dev.f.plannedPost(q.dev, "ibv_post_recv"); errno != 0 {
		return errno, "planned fault"
	}
	switch {
	case q.gone:
		return syscall.EBADF, "it was destroyed before"
	case q.dev.nic.dead:
		return syscall.EIO, "the device is dead"
	case q.srq != nil:
		return syscall.EINVAL, "the QP receives from its SRQ: post there"
	case q.in(verbs.Reset):
		return syscall.EINVAL, "it is in RESET"
	case !q.rq.push(wr):
		return syscall.ENOMEM, fmt.Sprintf("receive queue of %d is full", q.caps.MaxRecvWR)
	}
	return 0, ""
}
