//go:build linux

package uverbs

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// pd is a protection domain.
type pd struct {
	uobject.Object
	dev    *device
	handle uint32
}

func (d *device) AllocPD() (verbs.PD, error) {
	const op = "ibv_alloc_pd"
	if err := d.Alive(op); err != nil {
		return nil, err
	}
	resp, err := run[allocPDResp](d.cmd, cmdAllocPD, allocPD{})
	if err != nil {
		return nil, uobject.Failure(op, d.Name(), err)
	}
	p := &pd{dev: d, handle: resp.pdHandle}
	p.Born("PD", "PD of "+d.Name(), &d.Object)
	return p, nil
}

func (p *pd) Dealloc() error {
	return p.End("ibv_dealloc_pd", func() error {
		_, err := run[none](p.dev.cmd, cmdDeallocPD, deallocPD{p.handle})
		return err
	})
}

// mr is a memory region. Nothing in it changes.
type mr struct {
	uobject.Object
	dev        *device
	handle     uint32
	addr       uint64
	length     int
	lkey, rkey uint32
}

func (p *pd) RegisterMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	const op = "ibv_reg_mr"
	if err := p.Alive(op); err != nil {
		return nil, err
	}
	if len(mem) == 0 {
		return nil, uobject.Failure(op, p.Name(), syscall.EINVAL, "the region is empty")
	}
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	resp, err := run[regMRResp](p.dev.cmd, cmdRegMR, regMR{
		start: addr, length: uint64(len(mem)), hcaVA: addr, pdHandle: p.handle, accessFlags: uint32(access),
	})
	if err != nil {
		return nil, uobject.Failure(op, p.Name(), err, uobject.MemlockHint(err, len(mem)))
	}
	m := &mr{dev: p.dev, handle: resp.mrHandle, addr: addr, length: len(mem), lkey: resp.lkey, rkey: resp.rkey}
	m.Born("MR", fmt.Sprintf("MR %#x of %s, %d bytes", m.lkey, p.dev.Name(), len(mem)), &p.Object)
	return m, nil
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) Len() int     { return m.length }
func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

func (m *mr) Deregister() error {
	return m.End("ibv_dereg_mr", func() error {
		_, err := run[none](m.dev.cmd, cmdDeregMR, deregMR{m.handle})
		return err
	})
}

// ah is an address handle. Work requests name it by the number that rxe gave
// it, which is never 0.
type ah struct {
	uobject.Object
	dev    *device
	handle uint32
	num    uint32
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	const op = "ibv_create_ah"
	if err := p.Alive(op); err != nil {
		return nil, err
	}
	resp, rxe, err := runDriver[createAHResp, rxeCreateAHResp](p.dev.cmd, cmdCreateAH, createAH{pdHandle: p.handle, attr: ahAttrOf(&attr)})
	if err != nil {
		return nil, uobject.Failure(op, p.Name(), err, uobject.PathHint(err))
	}
	a := &ah{dev: p.dev, handle: resp.ahHandle, num: rxe.ahNum}
	if a.num == 0 {
		_ = a.destroy()
		return nil, uobject.Failure(op, p.Name(), syscall.EOPNOTSUPP, "the driver is too old to number address handles")
	}
	a.Born("AH", fmt.Sprintf("AH to %v of %s", attr.DGID, p.dev.Name()), &p.Object)
	return a, nil
}

func (a *ah) Handle() uint64 { return uint64(a.num) }

func (a *ah) destroy() error {
	_, err := run[none](a.dev.cmd, cmdDestroyAH, destroyAH{a.handle})
	return err
}

func (a *ah) Destroy() error { return a.End("ibv_destroy_ah", a.destroy) }

func ahAttrOf(a *verbs.AHAttr) ahAttr {
	k := ahAttr{dlid: a.DLID, sl: a.SL, portNum: a.Port}
	if a.Global {
		k.isGlobal = 1
		k.grh = globalRoute{
			dgid: a.DGID, flowLabel: a.FlowLabel, sgidIndex: a.SGIDIndex, hopLimit: a.HopLimit, trafficClass: a.TrafficClass,
		}
	}
	return k
}
