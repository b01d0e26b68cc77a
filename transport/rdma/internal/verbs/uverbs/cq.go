//go:build linux

package uverbs

import (
	"cmp"
	"math"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// cq is a completion queue: a ring that the driver fills. next is the element
// to be polled, and belongs to the goroutine that polls.
type cq struct {
	uobject.Object
	dev    *device
	id     uint64 // of its events
	handle uint32
	ring   *ring
	next   uint32
	bell   *doorbell // arms
}

func (d *device) CreateCQ(depth int, ch verbs.CompChannel) (verbs.CQ, error) {
	const op = "ibv_create_cq"
	if err := d.Alive(op); err != nil {
		return nil, err
	}
	parents := []*uobject.Object{&d.Object}
	channel := int32(-1)
	if ch != nil {
		own, ok := ch.(*compChannel)
		if !ok || own.dev != d {
			return nil, uobject.Failure(op, d.Name(), syscall.EINVAL, "the channel is of another device")
		}
		if err := own.Alive(op); err != nil {
			return nil, err
		}
		channel, parents = int32(own.fd), append(parents, &own.Object)
	}
	if depth < 1 || depth > math.MaxInt32 {
		return nil, uobject.Failure(op, d.Name(), syscall.EINVAL, "depth must be at least 1 and fit 31 bits")
	}
	bell, err := newDoorbell(d.fd)
	if err != nil {
		return nil, uobject.Failure(op, d.Name(), err)
	}
	c := &cq{dev: d, bell: bell}
	c.id = d.enter(c)
	if err := c.create(depth, channel); err != nil {
		d.forget(c.id)
		c.bell.close()
		return nil, uobject.Failure(op, d.Name(), err, cmp.Or(ringHint(err), uobject.DepthHint(d, depth), uobject.MemlockHint(err, 0)))
	}
	c.Born("CQ", "CQ of "+d.Name(), parents...)
	return c, nil
}

func (c *cq) create(depth int, channel int32) error {
	resp, rxe, err := runDriver[createCQResp, rxeCreateCQResp](c.dev.cmd, cmdCreateCQ, createCQ{userHandle: c.id, cqe: uint32(depth), compChannel: channel})
	if err != nil {
		return err
	}
	c.handle = resp.cqHandle
	hang[none](c.bell, cmdReqNotifyCQ, reqNotifyCQ{cqHandle: c.handle})
	if c.ring, err = mapRing(c.dev.fd, rxe.mi, unsafe.Sizeof(verbs.WC{})); err != nil {
		_ = c.destroy()
		return err
	}
	c.next = c.ring.consumed()
	return nil
}

func (c *cq) destroy() error {
	_, err := run[destroyCQResp](c.dev.cmd, cmdDestroyCQ, destroyCQ{cqHandle: c.handle})
	return err
}

// Poll reads verbs.WC as they are: struct ib_uverbs_wc has that layout.
func (c *cq) Poll(wc []verbs.WC) (int, error) {
	if err := c.Alive("ibv_poll_cq"); err != nil {
		return 0, err
	}
	n, next, end := 0, c.next, c.ring.produced()
	for n < len(wc) && next != end {
		wc[n] = *(*verbs.WC)(c.ring.at(next))
		next = (next + 1) & c.ring.mask
		n++
	}
	if n > 0 {
		c.next = next
		c.ring.withdraw(next)
	}
	return n, nil
}

func (c *cq) Arm() error {
	const op = "ibv_req_notify_cq"
	if err := c.Alive(op); err != nil {
		return err
	}
	if errno := c.bell.ring(); errno != 0 {
		return uobject.Failure(op, c.Name(), errno)
	}
	return nil
}

func (c *cq) Depth() int { return c.ring.capacity() }

func (c *cq) Destroy() error {
	return c.End("ibv_destroy_cq", func() error {
		if err := c.destroy(); err != nil {
			return err
		}
		c.dev.forget(c.id)
		c.bell.close()
		return c.ring.unmap()
	})
}
