//go:build linux && cgo

package ibverbs

/*
#cgo noescape vb_post_send
#cgo nocallback vb_post_send
#cgo noescape vb_post_recv
#cgo nocallback vb_post_recv
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"math"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// qp is a queue pair. Its number, type and sizes never change.
type qp struct {
	uobject.Object
	qp     *C.struct_vb_qp
	num    uint32
	typ    verbs.QPType
	caps   verbs.QPCaps
	shared bool // it receives from an SRQ
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
	c := C.struct_vb_qp_init_attr{send_cq: send.cq, recv_cq: recv.cq, qp_type: C.uint32_t(init.Type)}
	if init.SRQ != nil {
		shared, err := p.ownSRQ(op, init.SRQ)
		if err != nil {
			return nil, err
		}
		c.srq, parents = shared.srq, append(parents, &shared.Object)
		init.Caps.MaxRecvWR, init.Caps.MaxRecvSGE = 0, 0
	}
	c.cap = cCaps(init.Caps)
	if init.SignalAll {
		c.sq_sig_all = 1
	}
	q, err := C.vb_create_qp(p.pd, &c)
	if q == nil {
		return nil, uobject.Failure(op, p.Name(), err, cmp.Or(uobject.CapsHint(p.dev, init.Caps), uobject.MemlockHint(err, 0)))
	}
	v := &qp{qp: q, num: uint32(q.qp_num), typ: init.Type, caps: roundedCaps(q, goCaps(&c.cap)), shared: init.SRQ != nil}
	if v.shared {
		v.caps.MaxRecvWR, v.caps.MaxRecvSGE = 0, 0
	}
	v.Born("QP", fmt.Sprintf("QP %#x of %s", v.num, p.dev.Name()), parents...)
	return v, nil
}

// roundedCaps are the sizes the device made of those it answered to the
// creation: rxe answers what was asked for, and rounds up all the same.
func roundedCaps(q *C.struct_vb_qp, answered verbs.QPCaps) verbs.QPCaps {
	var attr C.struct_vb_qp_attr
	var init C.struct_vb_qp_init_attr
	if C.vb_query_qp(q, &attr, C.int(verbs.AttrCap), &init) != 0 {
		return answered
	}
	queried := goCaps(&attr.cap)
	return verbs.QPCaps{
		MaxSendWR:     max(answered.MaxSendWR, queried.MaxSendWR),
		MaxRecvWR:     max(answered.MaxRecvWR, queried.MaxRecvWR),
		MaxSendSGE:    max(answered.MaxSendSGE, queried.MaxSendSGE),
		MaxRecvSGE:    max(answered.MaxRecvSGE, queried.MaxRecvSGE),
		MaxInlineData: max(answered.MaxInlineData, queried.MaxInlineData),
	}
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

func (q *qp) Num() uint32        { return q.num }
func (q *qp) Type() verbs.QPType { return q.typ }
func (q *qp) Caps() verbs.QPCaps { return q.caps }

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.AttrMask) error {
	const op = "ibv_modify_qp"
	if err := q.Alive(op); err != nil {
		return err
	}
	c := cQPAttr(attr)
	if err := errnoOf(C.vb_modify_qp(q.qp, &c, C.int(mask))); err != nil {
		return uobject.Failure(op, q.Name(), err, uobject.PathHint(err))
	}
	return nil
}

func (q *qp) Query() (verbs.QPAttr, error) {
	const op = "ibv_query_qp"
	if err := q.Alive(op); err != nil {
		return verbs.QPAttr{}, err
	}
	var c C.struct_vb_qp_attr
	var init C.struct_vb_qp_init_attr
	if err := errnoOf(C.vb_query_qp(q.qp, &c, C.int(queryMask), &init)); err != nil {
		return verbs.QPAttr{}, uobject.Failure(op, q.Name(), err)
	}
	return goQPAttr(&c), nil
}

func (q *qp) Destroy() error {
	return q.End("ibv_destroy_qp", func() error { return errnoOf(C.vb_destroy_qp(q.qp)) })
}

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	const op = "ibv_post_send"
	if err := q.Alive(op); err != nil || len(wrs) == 0 {
		return 0, err
	}
	done := C.vb_post_send(q.qp, (*C.struct_vb_send_req)(unsafe.Pointer(&wrs[0])), C.int(min(len(wrs), math.MaxInt32)))
	if done.err != 0 {
		errno := syscall.Errno(done.err)
		return int(done.n), uobject.Failure(op, q.Name(), errno, uobject.PostHint(errno, "send"))
	}
	return int(done.n), nil
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "ibv_post_recv"
	if err := q.Alive(op); err != nil || len(wrs) == 0 {
		return 0, err
	}
	if q.shared {
		return 0, uobject.Failure(op, q.Name(), syscall.EINVAL, uobject.SharedHint)
	}
	done := C.vb_post_recv(q.qp, (*C.struct_vb_recv_req)(unsafe.Pointer(&wrs[0])), C.int(min(len(wrs), math.MaxInt32)))
	if done.err != 0 {
		errno := syscall.Errno(done.err)
		return int(done.n), uobject.Failure(op, q.Name(), errno, uobject.PostHint(errno, "receive"))
	}
	return int(done.n), nil
}
