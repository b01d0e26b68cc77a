//go:build linux && cgo

package ibverbs

/*
#cgo noescape vb_post_srq_recv
#cgo nocallback vb_post_srq_recv
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"math"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// srq is a shared receive queue, known to its device by a number that
// asynchronous events bring back. Its sizes never change.
type srq struct {
	uobject.Object
	srq  *C.struct_vb_srq
	pd   *pd
	id   uint64
	caps verbs.SRQCaps
}

func (p *pd) CreateSRQ(caps verbs.SRQCaps) (verbs.SRQ, error) {
	const op = "ibv_create_srq"
	if err := p.Alive(op); err != nil {
		return nil, err
	}
	if err := uobject.CheckSRQ(caps); err != nil {
		return nil, uobject.Failure(op, p.Name(), syscall.EINVAL, err.Error())
	}
	s := &srq{pd: p}
	s.id = p.dev.enter(s)
	attr := C.struct_vb_srq_attr{max_wr: C.uint32_t(caps.MaxWR), max_sge: C.uint32_t(caps.MaxSGE)}
	var err error
	s.srq, err = C.vb_create_numbered_srq(p.pd, &attr, C.uint64_t(s.id))
	if s.srq == nil {
		p.dev.forget(s.id)
		return nil, uobject.Failure(op, p.Name(), err, cmp.Or(uobject.SRQCapsHint(p.dev, caps), uobject.MemlockHint(err, 0)))
	}
	s.caps = s.roundedCaps(caps)
	s.Born("SRQ", "SRQ of "+p.dev.Name(), &p.Object)
	return s, nil
}

// roundedCaps asks what was made of the sizes: rxe answers to the creation
// with those asked for, and rounds up all the same.
func (s *srq) roundedCaps(asked verbs.SRQCaps) verbs.SRQCaps {
	var attr C.struct_vb_srq_attr
	if C.vb_query_srq(s.srq, &attr) != 0 {
		return asked
	}
	return verbs.SRQCaps{MaxWR: max(asked.MaxWR, int(attr.max_wr)), MaxSGE: max(asked.MaxSGE, int(attr.max_sge))}
}

// ownSRQ refuses those of other PDs: some devices check the keys of receives
// against the PD of the queue, some against that of the QP.
func (p *pd) ownSRQ(op string, q verbs.SRQ) (*srq, error) {
	own, ok := q.(*srq)
	if !ok || own.pd != p {
		return nil, uobject.Failure(op, p.Name(), syscall.EINVAL, "SRQ must be an SRQ of the same PD")
	}
	return own, own.Alive(op)
}

func (s *srq) Caps() verbs.SRQCaps { return s.caps }

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "ibv_post_srq_recv"
	if err := s.Alive(op); err != nil || len(wrs) == 0 {
		return 0, err
	}
	done := C.vb_post_srq_recv(s.srq, (*C.struct_vb_recv_req)(unsafe.Pointer(&wrs[0])), C.int(min(len(wrs), math.MaxInt32)))
	if done.err != 0 {
		errno := syscall.Errno(done.err)
		return int(done.n), uobject.Failure(op, s.Name(), errno, uobject.PostHint(errno, "shared receive"))
	}
	return int(done.n), nil
}

func (s *srq) Arm(limit int) error {
	const op = "ibv_modify_srq"
	if err := s.Alive(op); err != nil {
		return err
	}
	if hint := uobject.LimitHint(limit, s.caps.MaxWR); hint != "" {
		return uobject.Failure(op, s.Name(), syscall.EINVAL, hint)
	}
	attr := C.struct_vb_srq_attr{srq_limit: C.uint32_t(limit)}
	if err := errnoOf(C.vb_modify_srq(s.srq, &attr, C.VB_SRQ_LIMIT)); err != nil {
		return uobject.Failure(op, s.Name(), err)
	}
	return nil
}

func (s *srq) Destroy() error {
	return s.End("ibv_destroy_srq", func() error {
		if err := errnoOf(C.vb_destroy_srq(s.srq)); err != nil {
			return err
		}
		s.pd.dev.forget(s.id)
		return nil
	})
}
