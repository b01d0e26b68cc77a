//go:build linux

package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// qp is a queue pair: two rings that we fill, each behind its own lock, and
// the doorbell of the send queue; with an SRQ, recv has no ring. What is not in a queue never changes, but
// for state, which is the one that was last set or read: work requests are
// checked against it, as libibverbs does.
type qp struct {
	uobject.Object
	dev    *device
	id     uint64 // of its events
	handle uint32
	num    uint32
	typ    verbs.QPType
	caps   verbs.QPCaps
	state  atomic.Uint32
	send   sendQueue
	recv   recvQueue
	bell   *doorbell
}

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	const op = "ibv_create_qp"
	if err := p.Alive(op); err != nil {
		return nil, err
	}
	send, err := p.ownCQ(op, "SendCQ", init.SendCQ)
	if err != nil {
		return nil, err
	}
	recv, err := p.ownCQ(op, "RecvCQ", init.RecvCQ)
	if err != nil {
		return nil, err
	}
	if err := uobject.CheckSizes(init.Caps); err != nil {
		return nil, uobject.Failure(op, p.Name(), syscall.EINVAL, err.Error())
	}
	parents := []*uobject.Object{&p.Object, &send.Object, &recv.Object}
	var shared *srq
	if init.SRQ != nil {
		if shared, err = p.ownSRQ(op, init.SRQ); err != nil {
			return nil, err
		}
		parents = append(parents, &shared.Object)
		init.Caps.MaxRecvWR, init.Caps.MaxRecvSGE = 0, 0
	}
	bell, err := newDoorbell(p.dev.fd)
	if err != nil {
		return nil, uobject.Failure(op, p.Name(), err)
	}
	q := &qp{dev: p.dev, typ: init.Type, bell: bell}
	q.id = p.dev.enter(q)
	if err := q.create(p, send, recv, shared, &init); err != nil {
		p.dev.forget(q.id)
		bell.close()
		return nil, uobject.Failure(op, p.Name(), err, cmp.Or(ringHint(err), uobject.CapsHint(p.dev, init.Caps), uobject.MemlockHint(err, 0)))
	}
	q.Born("QP", fmt.Sprintf("QP %#x of %s", q.num, p.dev.Name()), parents...)
	return q, nil
}

// ownCQ refuses CQs of other devices: the kernel would take their handle for
// another object of this one.
func (p *pd) ownCQ(op, field string, c verbs.CQ) (*cq, error) {
	own, ok := c.(*cq)
	if !ok || own.dev != p.dev {
		return nil, uobject.Failure(op, p.Name(), syscall.EINVAL, field+" must be a CQ of the same device")
	}
	return own, own.Alive(op)
}

func (q *qp) create(p *pd, send, recv *cq, shared *srq, init *verbs.QPInit) error {
	cmd := createQP{
		userHandle: q.id, pdHandle: p.handle, sendCQHandle: send.handle, recvCQHandle: recv.handle,
		maxSendWR: uint32(init.Caps.MaxSendWR), maxRecvWR: uint32(init.Caps.MaxRecvWR),
		maxSendSGE: uint32(init.Caps.MaxSendSGE), maxRecvSGE: uint32(init.Caps.MaxRecvSGE),
		maxInlineData: uint32(init.Caps.MaxInlineData), qpType: uint8(init.Type),
	}
	if init.SignalAll {
		cmd.sqSigAll = 1
	}
	if shared != nil {
		cmd.isSRQ, cmd.srqHandle = 1, shared.handle
	}
	resp, rxe, err := runDriver[createQPResp, rxeCreateQPResp](q.dev.cmd, cmdCreateQP, cmd)
	if err != nil {
		return err
	}
	q.handle, q.num = resp.qpHandle, resp.qpn
	hang[postSendResp](q.bell, cmdPostSend, postSend{qpHandle: q.handle, wqeSize: sendWRSize})
	if err := q.mapRings(&resp, &rxe, shared != nil); err != nil {
		_ = q.destroy()
		return err
	}
	// rxe answers with the number of work requests asked for, and rounds up.
	q.caps = verbs.QPCaps{
		MaxSendWR: q.send.ring.capacity(), MaxSendSGE: int(resp.maxSendSGE), MaxInlineData: int(resp.maxInlineData),
	}
	if shared == nil {
		q.caps.MaxRecvWR, q.caps.MaxRecvSGE = q.recv.ring.capacity(), int(resp.maxRecvSGE)
	}
	return nil
}

func (q *qp) mapRings(resp *createQPResp, rxe *rxeCreateQPResp, shared bool) error {
	room := max(uintptr(resp.maxSendSGE)*unsafe.Sizeof(sge{}), uintptr(resp.maxInlineData))
	r, err := mapRing(q.dev.fd, rxe.sqMI, unsafe.Sizeof(sendWQE{})+room)
	if err != nil {
		return err
	}
	q.send = sendQueue{ring: r, next: r.produced(), datagrams: q.typ == verbs.UD, maxSGE: resp.maxSendSGE, maxInline: resp.maxInlineData}
	if shared {
		return nil
	}
	if err := q.recv.mapRing(q.dev.fd, rxe.rqMI, resp.maxRecvSGE); err != nil {
		_ = q.send.ring.unmap()
		return err
	}
	return nil
}

func (q *qp) destroy() error {
	_, err := run[destroyQPResp](q.dev.cmd, cmdDestroyQP, destroyQP{qpHandle: q.handle})
	return err
}

func (q *qp) Num() uint32        { return q.num }
func (q *qp) Type() verbs.QPType { return q.typ }
func (q *qp) Caps() verbs.QPCaps { return q.caps }

func (q *qp) Destroy() error {
	return q.End("ibv_destroy_qp", func() error {
		if err := q.destroy(); err != nil {
			return err
		}
		q.dev.forget(q.id)
		q.bell.close()
		err := q.send.ring.unmap()
		if q.recv.ring != nil {
			err = errors.Join(err, q.recv.ring.unmap())
		}
		return err
	})
}

// PostSend rings the doorbell outside the queue's lock: what another goroutine
// adds meanwhile is found by the same ring, or by its own.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	const op = "ibv_post_send"
	if err := q.Alive(op); err != nil || len(wrs) == 0 {
		return 0, err
	}
	// The driver refuses the doorbell, but would send what is in the queue
	// once the QP is in RTS.
	if verbs.QPState(q.state.Load()) < verbs.RTS {
		return 0, uobject.Failure(op, q.Name(), syscall.EINVAL, uobject.PostHint(syscall.EINVAL, "send"))
	}
	n, errno := q.send.push(wrs)
	if n > 0 {
		if e := q.bell.ring(); e != 0 {
			return n, uobject.Failure(op, q.Name(), e)
		}
	}
	if errno != 0 {
		return n, uobject.Failure(op, q.Name(), errno, uobject.PostHint(errno, "send"))
	}
	return n, nil
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "ibv_post_recv"
	if err := q.Alive(op); err != nil || len(wrs) == 0 {
		return 0, err
	}
	if q.recv.ring == nil {
		return 0, uobject.Failure(op, q.Name(), syscall.EINVAL, uobject.SharedHint)
	}
	var n int
	errno := syscall.EINVAL
	if verbs.QPState(q.state.Load()) != verbs.Reset {
		n, errno = q.recv.push(wrs)
	}
	if errno != 0 {
		return n, uobject.Failure(op, q.Name(), errno, uobject.PostHint(errno, "receive"))
	}
	return n, nil
}
