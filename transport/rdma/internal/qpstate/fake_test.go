package qpstate

import (
	"runtime"
	"sync"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// fakeQP is a QP that follows the table, or fails as told. The other methods
// of verbs.QP are those of the nil interface: a Machine must not call them.
type fakeQP struct {
	verbs.QP
	typ verbs.QPType

	mu    sync.Mutex
	attr  verbs.QPAttr
	calls int
	inUse bool // to catch two calls at once

	fail     error         // returned by the next Modify
	queryErr error         // returned by Query
	during   func()        // called within Modify
	became   verbs.QPState // with fail: the state found afterwards
}

func (q *fakeQP) Num() uint32        { return 0x11 }
func (q *fakeQP) Type() verbs.QPType { return q.typ }

func (q *fakeQP) Modify(attr *verbs.QPAttr, mask verbs.AttrMask) error {
	q.mu.Lock()
	if q.inUse {
		panic("two transitions at once")
	}
	q.inUse = true
	q.calls++
	q.mu.Unlock()
	runtime.Gosched()
	if q.during != nil {
		q.during()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inUse = false
	if q.fail != nil {
		err := q.fail
		q.fail, q.attr.State = nil, q.became
		return err
	}
	if e := Check(q.typ, q.attr.State, attr, mask, Facts{}); e != nil {
		return refusal(syscall.EINVAL)
	}
	if mask&verbs.AttrState == 0 {
		return nil
	}
	q.attr = *attr
	return nil
}

func (q *fakeQP) Query() (verbs.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr, q.queryErr
}

// set is a transition that the device makes by itself.
func (q *fakeQP) set(s verbs.QPState) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.attr.State = s
}

func (q *fakeQP) failInRTS() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.attr.State == verbs.RTS {
		q.attr.State = verbs.Err
	}
}

func (q *fakeQP) state() verbs.QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr.State
}

func refusal(errno syscall.Errno) error {
	return &verbs.Error{Op: "ibv_modify_qp", Object: "QP 0x11", Errno: errno}
}

// fakeDevice answers what facts are asked for.
type fakeDevice struct {
	verbs.Device
	attr verbs.DeviceAttr
	port verbs.PortAttr
	gids []verbs.GIDEntry
}

func (d *fakeDevice) Query() (verbs.DeviceAttr, error)          { return d.attr, nil }
func (d *fakeDevice) QueryPort(uint8) (verbs.PortAttr, error)   { return d.port, nil }
func (d *fakeDevice) QueryGIDs(uint8) ([]verbs.GIDEntry, error) { return d.gids, nil }
