//go:build linux && cgo

package ibverbs

/*
#include "shim.h"
*/
import "C"

import (
	"sync"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// device is an open device context.
//
// Its CQs and SRQs are known by a number, which the library hands back with an
// event: an address could belong to the next one by then.
type device struct {
	uobject.Object
	ctx  *C.struct_vb_context
	wake uobject.WakeFD // of Interrupt

	mu      sync.Mutex
	sources map[uint64]any // *cq or *srq
	next    uint64
}

func openDevice(name string, d *C.struct_vb_device) (*device, error) {
	ctx, err := C.vb_open_device(d)
	if ctx == nil {
		return nil, uobject.OpenFailure(name, err)
	}
	dev := &device{ctx: ctx, sources: map[uint64]any{}}
	if err := errnoOf(C.vb_set_nonblock(ctx.async_fd)); err != nil {
		C.vb_close_device(ctx)
		return nil, uobject.Failure("fcntl", name+"'s event descriptor", err)
	}
	// One Interrupt, one ErrInterrupted: a counter taken one by one.
	if dev.wake, err = uobject.NewWakeFD(uobject.OneSignal); err != nil {
		C.vb_close_device(ctx)
		return nil, uobject.Failure("eventfd", name, err)
	}
	dev.Born("device", name)
	return dev, nil
}

func (d *device) Query() (verbs.DeviceAttr, error) {
	const op = "ibv_query_device"
	if err := d.Alive(op); err != nil {
		return verbs.DeviceAttr{}, err
	}
	var a C.struct_vb_device_attr
	if err := errnoOf(C.vb_query_device(d.ctx, &a)); err != nil {
		return verbs.DeviceAttr{}, uobject.Failure(op, d.Name(), err)
	}
	return verbs.DeviceAttr{
		FirmwareVersion:   C.GoString(&a.fw_ver[0]),
		VendorID:          uint32(a.vendor_id),
		VendorPartID:      uint32(a.vendor_part_id),
		Ports:             uint8(a.phys_port_cnt),
		MaxQP:             int(a.max_qp),
		MaxQPWR:           int(a.max_qp_wr),
		MaxSGE:            int(a.max_sge),
		MaxCQ:             int(a.max_cq),
		MaxCQE:            int(a.max_cqe),
		MaxMR:             int(a.max_mr),
		MaxPD:             int(a.max_pd),
		MaxQPRdAtomic:     int(a.max_qp_rd_atom),
		MaxQPInitRdAtomic: int(a.max_qp_init_rd_atom),
		MaxSRQ:            int(a.max_srq),
		MaxSRQWR:          int(a.max_srq_wr),
		MaxSRQSGE:         int(a.max_srq_sge),
	}, nil
}

func (d *device) QueryPort(port uint8) (verbs.PortAttr, error) {
	const op = "ibv_query_port"
	if err := d.Alive(op); err != nil {
		return verbs.PortAttr{}, err
	}
	var a C.struct_vb_port_attr // zero where a driver does not fill it
	if err := errnoOf(C.vb_query_port(d.ctx, C.uint8_t(port), &a)); err != nil {
		return verbs.PortAttr{}, uobject.Failure(op, uobject.PortName(d.Name(), port), err)
	}
	return verbs.PortAttr{
		State:     verbs.PortState(a.state),
		MaxMTU:    verbs.MTU(a.max_mtu),
		ActiveMTU: verbs.MTU(a.active_mtu),
		GIDTable:  int(a.gid_tbl_len),
		PKeyTable: int(a.pkey_tbl_len),
		LID:       uint16(a.lid),
		LinkLayer: verbs.LinkLayer(a.link_layer),
	}, nil
}

func (d *device) AsyncEvent() (verbs.AsyncEvent, error) {
	const op = "ibv_get_async_event"
	if err := d.Alive(op); err != nil {
		return verbs.AsyncEvent{}, err
	}
	var e C.struct_vb_event
	switch rc := C.vb_wait_async(d.ctx, C.int(d.wake), &e); {
	case rc < 0:
		return verbs.AsyncEvent{}, uobject.Failure(op, d.Name(), syscall.Errno(-rc))
	case rc == 0:
		return verbs.AsyncEvent{}, verbs.ErrInterrupted
	}
	event := verbs.AsyncEvent{Type: verbs.EventType(e._type), QPNum: uint32(e.qp_num), Port: uint8(e.port)}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch source := d.sources[uint64(e.source)].(type) {
	case *cq:
		event.CQ = source
	case *srq:
		event.SRQ = source
	}
	return event, nil
}

// enter gives the source of events a number.
func (d *device) enter(source any) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	d.sources[d.next] = source
	return d.next
}

func (d *device) forget(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sources, id)
}

func (d *device) Interrupt() {
	if !d.Gone() {
		d.wake.Signal()
	}
}

func (d *device) Close() error {
	return d.End("ibv_close_device", func() error {
		if err := errnoOf(C.vb_close_device(d.ctx)); err != nil {
			return err
		}
		d.wake.Close()
		return nil
	})
}
