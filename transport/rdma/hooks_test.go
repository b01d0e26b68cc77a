package rdma

import "github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"

// hooks is a provider that calls back before a command, or an event, is taken. Each
// may be nil.
type hooks struct {
	verbs.Provider
	createSRQ, reset, event func()
}

func call(fn func()) {
	if fn != nil {
		fn()
	}
}

func (h *hooks) Open(name string) (verbs.Device, error) {
	d, err := h.Provider.Open(name)
	return hookedDevice{d, h}, err
}

type hookedDevice struct {
	verbs.Device
	h *hooks
}

func (d hookedDevice) AsyncEvent() (verbs.AsyncEvent, error) {
	e, err := d.Device.AsyncEvent()
	call(d.h.event)
	return e, err
}

func (d hookedDevice) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return hookedPD{pd, d.h}, err
}

type hookedPD struct {
	verbs.PD
	h *hooks
}

func (p hookedPD) CreateSRQ(caps verbs.SRQCaps) (verbs.SRQ, error) {
	call(p.h.createSRQ)
	return p.PD.CreateSRQ(caps)
}

func (p hookedPD) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(init)
	return hookedQP{qp, p.h}, err
}

type hookedQP struct {
	verbs.QP
	h *hooks
}

func (q hookedQP) Modify(attr *verbs.QPAttr, mask verbs.AttrMask) error {
	if mask&verbs.AttrState != 0 && attr.State == verbs.Reset {
		call(q.h.reset)
	}
	return q.QP.Modify(attr, mask)
}
