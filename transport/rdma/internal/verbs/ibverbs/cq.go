//go:build linux && cgo

package ibverbs

/*
#cgo noescape vb_poll_cq
#cgo nocallback vb_poll_cq
#cgo nocallback vb_arm_cq
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

// cq is a completion queue, known to its device by a number that
// asynchronous events bring back.
type cq struct {
	uobject.Object
	cq    *C.struct_vb_cq
	dev   *device
	id    uint64
	depth int
}

func (d *device) CreateCQ(depth int, ch verbs.CompChannel) (verbs.CQ, error) {
	const op = "ibv_create_cq"
	if err := d.Alive(op); err != nil {
		return nil, err
	}
	parents := []*uobject.Object{&d.Object}
	var cch *C.struct_vb_comp_channel
	if ch != nil {
		own, ok := ch.(*compChannel)
		if !ok || own.dev != d {
			return nil, uobject.Failure(op, d.Name(), syscall.EINVAL, "the channel is of another device")
		}
		if err := own.Alive(op); err != nil {
			return nil, err
		}
		cch, parents = own.ch, append(parents, &own.Object)
	}
	if depth < 1 || depth > math.MaxInt32 {
		return nil, uobject.Failure(op, d.Name(), syscall.EINVAL, "depth must be at least 1 and fit 31 bits")
	}

	c := &cq{dev: d}
	c.id = d.enter(c)
	var err error
	c.cq, err = C.vb_create_numbered_cq(d.ctx, C.int(depth), C.uint64_t(c.id), cch)
	if c.cq == nil {
		d.forget(c.id)
		return nil, uobject.Failure(op, d.Name(), err, cmp.Or(uobject.DepthHint(d, depth), uobject.MemlockHint(err, 0)))
	}
	c.depth = int(c.cq.cqe)
	c.Born("CQ", "CQ of "+d.Name(), parents...)
	return c, nil
}

func (c *cq) Poll(wc []verbs.WC) (int, error) {
	const op = "ibv_poll_cq"
	if err := c.Alive(op); err != nil {
		return 0, err
	}
	if len(wc) == 0 {
		return 0, nil
	}
	n := C.vb_poll_cq(c.cq, (*C.struct_vb_wc)(unsafe.Pointer(&wc[0])), C.int(min(len(wc), math.MaxInt32)))
	if n < 0 {
		return 0, uobject.Failure(op, c.Name(), syscall.Errno(-n))
	}
	return int(n), nil
}

func (c *cq) Arm() error {
	const op = "ibv_req_notify_cq"
	if err := c.Alive(op); err != nil {
		return err
	}
	if rc := C.vb_arm_cq(c.cq); rc < 0 {
		return uobject.Failure(op, c.Name(), syscall.Errno(-rc))
	}
	return nil
}

func (c *cq) Depth() int { return c.depth }

func (c *cq) Destroy() error {
	return c.End("ibv_destroy_cq", func() error {
		if err := errnoOf(C.vb_destroy_cq(c.cq)); err != nil {
			return err
		}
		c.dev.forget(c.id)
		return nil
	})
}
