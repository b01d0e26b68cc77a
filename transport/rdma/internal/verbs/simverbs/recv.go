package simverbs

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// recvQueue is a queue of receives, of a QP or an SRQ: those from head to
// tail. The counts go up for ever and index ring modulo its length. Guarded by
// Fabric.mu.
type recvQueue struct {
	ring       []verbs.RecvWR
	head, tail uint64
}

func newRecvQueue(size int) recvQueue { return recvQueue{ring: make([]verbs.RecvWR, size)} }

func (r *recvQueue) at(i uint64) *verbs.RecvWR { return &r.ring[i%uint64(len(r.ring))] }
func (r *recvQueue) front() *verbs.RecvWR      { return r.at(r.head) }
func (r *recvQueue) len() int                  { return int(r.tail - r.head) }
func (r *recvQueue) empty() bool               { return r.head == r.tail }
func (r *recvQueue) clear()                    { r.head = r.tail }

// push adds a receive, if there is room.
func (r *recvQueue) push(wr *verbs.RecvWR) bool {
	if r.len() == len(r.ring) {
		return false
	}
	*r.at(r.tail) = *wr
	r.tail++
	return true
}

// pop removes the oldest receive.
func (r *recvQueue) pop() (id uint64) {
	id = r.front().ID
	r.head++
	return id
}

// naming counts the receives into a region.
func (r *recvQueue) naming(m *mr) (n int) {
	for i := r.head; i < r.tail; i++ {
		if wr := r.at(i); wr.LKey == m.key && wr.Length > 0 {
			n++
		}
	}
	return n
}

// recvs is the queue that the QP receives from.
func (q *queuePair) recvs() *recvQueue {
	if q.srq != nil {
		return &q.srq.recvs
	}
	return &q.rq
}

// noRecv says that the QP has nowhere to put a message.
func (q *queuePair) noRecv() bool {
	return q.recvs().empty() || q.srq != nil && q.srq.failed
}

// takeRecv removes the oldest receive, for its completion.
func (q *queuePair) takeRecv() (id uint64) {
	id = q.recvs().pop()
	if q.srq != nil {
		q.srq.checkLimit()
	}
	return id
}

// sharedQueue is an SRQ. Guarded by Fabric.mu.
type sharedQueue struct {
	object
	dev    *device
	pd     *pd
	caps   verbs.SRQCaps
	recvs  recvQueue
	limit  int  // armed with; 0: not
	failed bool // SRQ_ERR was raised
}

func (p *pd) CreateSRQ(caps verbs.SRQCaps) (verbs.SRQ, error) {
	const op = "ibv_create_srq"
	d := p.dev
	if err := d.enterAlive(op, &p.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	a := &d.nic.attr
	if caps.MaxWR < 1 || caps.MaxWR > a.MaxSRQWR || caps.MaxSGE < 0 || caps.MaxSGE > a.MaxSRQSGE {
		return nil, &verbs.Error{Op: op, Object: p.name, Errno: syscall.EINVAL, Hint: fmt.Sprintf(
			"MaxWR %d and MaxSGE %d, the device allows 1 to %d and up to %d", caps.MaxWR, caps.MaxSGE, a.MaxSRQWR, a.MaxSRQSGE)}
	}
	if len(d.nic.srqs) >= a.MaxSRQ {
		return nil, &verbs.Error{Op: op, Object: p.name, Errno: syscall.ENOMEM, Hint: fmt.Sprintf("all %d SRQs are in use", a.MaxSRQ)}
	}
	caps = verbs.SRQCaps{MaxWR: d.f.roundQueue(caps.MaxWR), MaxSGE: max(caps.MaxSGE, 1)}
	s := &sharedQueue{dev: d, pd: p, caps: caps, recvs: newRecvQueue(caps.MaxWR)}
	s.born("SRQ", "SRQ of "+d.name, &p.object)
	d.nic.srqs = append(d.nic.srqs, s)
	return s, nil
}

// Caps are the sizes after rounding.
func (s *sharedQueue) Caps() verbs.SRQCaps { return s.caps }

func (s *sharedQueue) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.dev.f.mu.Lock()
	defer s.dev.f.mu.Unlock()
	for i := range wrs {
		if errno, hint := s.post(&wrs[i]); errno != 0 {
			return i, &verbs.Error{Op: "ibv_post_srq_recv", Object: s.name, Errno: errno, Hint: hint}
		}
	}
	return len(wrs), nil
}

func (s *sharedQueue) post(wr *verbs.RecvWR) (syscall.Errno, string) {
	if errno := s.dev.f.plannedPost(s.dev, "ibv_post_srq_recv"); errno != 0 {
		return errno, "planned fault"
	}
	switch {
	case s.gone:
		return syscall.EBADF, "it was destroyed before"
	case s.dev.nic.dead:
		return syscall.EIO, "the device is dead"
	case !s.recvs.push(wr):
		return syscall.ENOMEM, fmt.Sprintf("shared receive queue of %d is full", s.caps.MaxWR)
	}
	return 0, ""
}

func (s *sharedQueue) Arm(limit int) error {
	const op = "ibv_modify_srq"
	if err := s.dev.enterAlive(op, &s.object); err != nil {
		return err
	}
	defer s.dev.f.mu.Unlock()
	switch {
	case limit < 0 || limit > s.caps.MaxWR:
		return &verbs.Error{Op: op, Object: s.name, Errno: syscall.EINVAL,
			Hint: fmt.Sprintf("a limit of %d, the queue has room for %d receives", limit, s.caps.MaxWR)}
	case s.failed:
		return &verbs.Error{Op: op, Object: s.name, Errno: syscall.EINVAL, Hint: "it is in error"}
	}
	s.limit = limit
	if s.dev.f.cfg.Model == Spec {
		s.checkLimit()
	}
	return nil
}

// checkLimit raises the event that was asked for, once.
func (s *sharedQueue) checkLimit() {
	if s.recvs.len() < s.limit {
		s.limit = 0
		s.dev.events.push(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

// Destroy implements verbs.SRQ. What is posted vanishes without a completion.
func (s *sharedQueue) Destroy() error {
	const op = "ibv_destroy_srq"
	if err := s.dev.enter(op, &s.object); err != nil {
		return err
	}
	defer s.dev.f.mu.Unlock()
	if err := s.die(op); err != nil {
		return err
	}
	n := s.dev.nic
	n.srqs = slices.DeleteFunc(n.srqs, func(other *sharedQueue) bool { return other == s })
	return nil
}
