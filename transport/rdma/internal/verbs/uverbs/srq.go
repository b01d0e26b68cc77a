//go:build linux

package uverbs

import (
	"cmp"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// srq is a shared receive queue: a ring that we fill, behind its lock. What is
// not in the queue never changes.
type srq struct {
	uobject.Object
	pd     *pd
	id     uint64 // of its events
	handle uint32
	caps   verbs.SRQCaps
	recv   recvQueue
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
	if err := s.create(caps); err != nil {
		p.dev.forget(s.id)
		return nil, uobject.Failure(op, p.Name(), err, cmp.Or(ringHint(err), uobject.SRQCapsHint(p.dev, caps), uobject.MemlockHint(err, 0)))
	}
	s.Born("SRQ", "SRQ of "+p.dev.Name(), &p.Object)
	return s, nil
}

func (s *srq) create(caps verbs.SRQCaps) error {
	resp, rxe, err := runDriver[createSRQResp, rxeCreateSRQResp](s.pd.dev.cmd, cmdCreateSRQ, createSRQ{
		userHandle: s.id, pdHandle: s.pd.handle, maxWR: uint32(caps.MaxWR), maxSGE: uint32(caps.MaxSGE),
	})
	if err != nil {
		return err
	}
	s.handle = resp.srqHandle
	if err := s.recv.mapRing(s.pd.dev.fd, rxe.mi, resp.maxSGE); err != nil {
		_ = s.destroy()
		return err
	}
	// As for a QP, rxe answers with the number asked for, and rounds up.
	s.caps = verbs.SRQCaps{MaxWR: s.recv.ring.capacity(), MaxSGE: int(resp.maxSGE)}
	return nil
}

func (s *srq) destroy() error {
	_, err := run[destroySRQResp](s.pd.dev.cmd, cmdDestroySRQ, destroySRQ{srqHandle: s.handle})
	return err
}

// ownSRQ refuses those of other PDs: rxe checks the keys of receives against
// the PD of the QP, other devices against that of the queue.
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
	n, errno := s.recv.push(wrs)
	if errno != 0 {
		return n, uobject.Failure(op, s.Name(), errno, uobject.PostHint(errno, "shared receive"))
	}
	return n, nil
}

func (s *srq) Arm(limit int) error {
	const op = "ibv_modify_srq"
	if err := s.Alive(op); err != nil {
		return err
	}
	if hint := uobject.LimitHint(limit, s.caps.MaxWR); hint != "" {
		return uobject.Failure(op, s.Name(), syscall.EINVAL, hint)
	}
	cmd := modifySRQ{srqHandle: s.handle, attrMask: srqLimit, srqLimit: uint32(limit)}
	if err := runWord(s.pd.dev.cmd, cmdModifySRQ, cmd, rxeModifySRQ{}.mmapInfoAddr); err != nil {
		return uobject.Failure(op, s.Name(), err)
	}
	return nil
}

func (s *srq) Destroy() error {
	return s.End("ibv_destroy_srq", func() error {
		if err := s.destroy(); err != nil {
			return err
		}
		s.pd.dev.forget(s.id)
		return s.recv.ring.unmap()
	})
}
