package qpstate

import (
	"slices"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// explain turns the device's refusal into a TransitionError. It asks the QP for
// its state, for what is known may be out of date: a QP that failed tells
// nobody until its completions are polled.
func (m *Machine) explain(attr *verbs.QPAttr, mask verbs.AttrMask, err error) *TransitionError {
	known := m.State()
	now := known
	q, queryErr := m.qp.Query()
	if queryErr == nil {
		now = q.State
	}
	e := Check(m.qp.Type(), now, attr, mask, m.facts(attr, mask))
	if e == nil {
		e = &TransitionError{Type: m.qp.Type(), From: now, To: target(now, attr, mask)}
	}
	e.QPN, e.Err = m.qp.Num(), err
	switch {
	case queryErr != nil:
		e.problem(0, "the state is not certain (%v)", queryErr)
	case now != known:
		e.problem(0, "the QP was thought to be in %v", known)
	case now == verbs.SQD && (q.SQDraining || !e.found()):
		e.problem(0, "the send queue was draining, which only ERR may interrupt: wait until SQDraining is false")
	}
	named := slices.ContainsFunc(e.Problems, func(p Problem) bool { return p.Attr == verbs.AttrAV })
	if text := pathErrno(errnoOf(err)); text != "" && mask&verbs.AttrAV != 0 && !named {
		e.problem(verbs.AttrAV, "from GID index %d to %v: %s", attr.AV.SGIDIndex, attr.AV.DGID.Addr(), text)
	}
	return e
}

// pathErrno says what an errno means that the kernel returns while it resolves
// an address vector on Ethernet: it looks up the source GID, the route, and
// the peer's link address.
func pathErrno(errno syscall.Errno) string {
	switch errno {
	case syscall.ENODATA:
		return "the GID index is empty"
	case syscall.ETIMEDOUT:
		return "the peer's link address did not resolve (ARP or neighbour discovery had no answer)"
	case syscall.ENETUNREACH, syscall.EHOSTUNREACH:
		return "there is no route"
	}
	return ""
}
