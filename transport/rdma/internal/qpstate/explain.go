package qpstate

import (
	"slices"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// explain turns the device's refusal into a TransitionError, and returns the
// state the QP is in. It asks the QP, for from may be out of date: a QP that
// failed tells nobody until its completions are polled.
func (m *Machine) explain(from verbs.QPState, attr *verbs.QPAttr, mask verbs.AttrMask, err error) (*TransitionError, verbs.QPState) {
	now := from
	q, queryErr := m.qp.Query()
	if queryErr == nil && int(q.State) < states {
		now = q.State
	}
	e := Check(m.qp.Type(), now, attr, mask, FactsOf(m.dev, m.portOf(attr, mask)))
	if e == nil {
		e = &TransitionError{Type: m.qp.Type(), From: now, To: now}
		if mask&verbs.AttrState != 0 {
			e.To = attr.State
		}
	}
	e.QPN, e.Err = m.qp.Num(), err
	if queryErr != nil {
		e.problem(0, "the state is not certain (%v)", queryErr)
	} else if now != from {
		e.problem(0, "the QP was thought to be in %v", from)
	}
	known := slices.ContainsFunc(e.Problems, func(p Problem) bool { return p.Attr == verbs.AttrAV })
	if text := pathErrno(errnoOf(err)); text != "" && mask&verbs.AttrAV != 0 && !known {
		e.problem(verbs.AttrAV, "from GID index %d to %v: %s", attr.AV.SGIDIndex, attr.AV.DGID.Addr(), text)
	}
	return e, now
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
