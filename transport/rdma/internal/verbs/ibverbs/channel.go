//go:build linux && cgo

package ibverbs

/*
#cgo nocallback vb_wait_cq
#include "shim.h"
*/
import "C"

import (
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// compChannel is a completion channel with a descriptor of its own for Wake.
// The channel's descriptor does not block, since of two waiters that one event
// woke only one gets it.
type compChannel struct {
	uobject.Object
	ch   *C.struct_vb_comp_channel
	dev  *device
	wake uobject.WakeFD
}

func (d *device) CreateCompChannel() (verbs.CompChannel, error) {
	const op = "ibv_create_comp_channel"
	if err := d.Alive(op); err != nil {
		return nil, err
	}
	ch, err := C.vb_create_comp_channel(d.ctx)
	if ch == nil {
		return nil, uobject.Failure(op, d.Name(), err)
	}
	c := &compChannel{ch: ch, dev: d}
	if err := errnoOf(C.vb_set_nonblock(ch.fd)); err != nil {
		C.vb_destroy_comp_channel(ch)
		return nil, uobject.Failure("fcntl", "channel of "+d.Name(), err)
	}
	if c.wake, err = uobject.NewWakeFD(uobject.AllSignals); err != nil {
		C.vb_destroy_comp_channel(ch)
		return nil, uobject.Failure("eventfd", "channel of "+d.Name(), err)
	}
	c.Born("channel", "channel of "+d.Name(), &d.Object)
	return c, nil
}

// Wait is one crossing: the events are taken and acknowledged in C, none is
// ever held by a goroutine that may be late.
func (c *compChannel) Wait(timeout time.Duration) (verbs.WakeReason, error) {
	const op = "ibv_get_cq_event"
	if err := c.Alive(op); err != nil {
		return verbs.WakeTimeout, err
	}
	rc := C.vb_wait_cq(c.ch, C.int(c.wake), C.int64_t(timeout))
	switch {
	case rc < 0:
		return verbs.WakeTimeout, uobject.Failure(op, c.Name(), syscall.Errno(-rc))
	case rc&C.VB_WAKE_CALL != 0:
		return verbs.WakeCall, nil
	case rc&C.VB_WAKE_EVENT != 0:
		return verbs.WakeEvent, nil
	}
	return verbs.WakeTimeout, nil
}

func (c *compChannel) Wake() {
	if !c.Gone() {
		c.wake.Signal()
	}
}

func (c *compChannel) Destroy() error {
	return c.End("ibv_destroy_comp_channel", func() error {
		if err := errnoOf(C.vb_destroy_comp_channel(c.ch)); err != nil {
			return err
		}
		c.wake.Close()
		return nil
	})
}
