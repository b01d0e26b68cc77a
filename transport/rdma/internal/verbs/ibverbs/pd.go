//go:build linux && cgo

package ibverbs

/*
#include "shim.h"
*/
import "C"

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
	pd  *C.struct_vb_pd
	dev *device
}

func (d *device) AllocPD() (verbs.PD, error) {
	const op = "ibv_alloc_pd"
	if err := d.Alive(op); err != nil {
		return nil, err
	}
	p, err := C.vb_alloc_pd(d.ctx)
	if p == nil {
		return nil, uobject.Failure(op, d.Name(), err)
	}
	v := &pd{pd: p, dev: d}
	v.Born("PD", "PD of "+d.Name(), &d.Object)
	return v, nil
}

func (p *pd) Dealloc() error {
	return p.End("ibv_dealloc_pd", func() error { return errnoOf(C.vb_dealloc_pd(p.pd)) })
}

// mr is a memory region. Its numbers are copied, so that they may still be
// read after Deregister.
type mr struct {
	uobject.Object
	mr         *C.struct_vb_mr
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
	start := unsafe.Pointer(unsafe.SliceData(mem))
	m, err := C.vb_reg_mr(p.pd, start, C.size_t(len(mem)), C.int(access))
	if m == nil {
		return nil, uobject.Failure(op, p.Name(), err, uobject.MemlockHint(err, len(mem)))
	}
	v := &mr{mr: m, addr: uint64(uintptr(start)), length: len(mem), lkey: uint32(m.lkey), rkey: uint32(m.rkey)}
	v.Born("MR", fmt.Sprintf("MR %#x of %s, %d bytes", v.lkey, p.dev.Name(), len(mem)), &p.Object)
	return v, nil
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) Len() int     { return m.length }
func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

func (m *mr) Deregister() error {
	return m.End("ibv_dereg_mr", func() error { return errnoOf(C.vb_dereg_mr(m.mr)) })
}

// ah is an address handle.
type ah struct {
	uobject.Object
	ah *C.struct_vb_ah
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	const op = "ibv_create_ah"
	if err := p.Alive(op); err != nil {
		return nil, err
	}
	c := cAHAttr(&attr)
	h, err := C.vb_create_ah(p.pd, &c)
	if h == nil {
		return nil, uobject.Failure(op, p.Name(), err, uobject.PathHint(err))
	}
	v := &ah{ah: h}
	v.Born("AH", fmt.Sprintf("AH to %v of %s", attr.DGID, p.dev.Name()), &p.Object)
	return v, nil
}

func (a *ah) Handle() uint64 { return uint64(uintptr(unsafe.Pointer(a.ah))) }

func (a *ah) Destroy() error {
	return a.End("ibv_destroy_ah", func() error { return errnoOf(C.vb_destroy_ah(a.ah)) })
}

func cAHAttr(a *verbs.AHAttr) C.struct_vb_ah_attr {
	c := C.struct_vb_ah_attr{
		dlid:     C.uint16_t(a.DLID),
		sl:       C.uint8_t(a.SL),
		port_num: C.uint8_t(a.Port),
	}
	if a.Global {
		c.is_global = 1
		c.grh.dgid = *(*C.union_vb_gid)(unsafe.Pointer(&a.DGID))
		c.grh.sgid_index = C.uint8_t(a.SGIDIndex)
		c.grh.flow_label = C.uint32_t(a.FlowLabel)
		c.grh.hop_limit = C.uint8_t(a.HopLimit)
		c.grh.traffic_class = C.uint8_t(a.TrafficClass)
	}
	return c
}

func goAHAttr(c *C.struct_vb_ah_attr) verbs.AHAttr {
	return verbs.AHAttr{
		Global:       c.is_global != 0,
		DGID:         *(*verbs.GID)(unsafe.Pointer(&c.grh.dgid)),
		SGIDIndex:    uint8(c.grh.sgid_index),
		FlowLabel:    uint32(c.grh.flow_label),
		HopLimit:     uint8(c.grh.hop_limit),
		TrafficClass: uint8(c.grh.traffic_class),
		DLID:         uint16(c.dlid),
		SL:           uint8(c.sl),
		Port:         uint8(c.port_num),
	}
}
