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
)

// compChannel is a completion channel with a descriptor of its own for Wake.
// The channel's descriptor does not block, since of two waiters that one event
// woke only one gets it.
type compChannel struct {
	object
	ch   *C.struct_vb_comp_channel
	dev  *device
	wake wakeFD
}

func (d *device) CreateCompChannel() (verbs.CompChannel, error) {
	const op = "ibv_create_comp_channel"
	if err := d.alive(op); err != nil {
		return nil, err
	}
	ch, err := C.vb_create_comp_channel(d.ctx)
	if ch == nil {
		return nil, failure(op, d.name, err)
	}
	c := &compChannel{ch: ch, dev: d}
	if err := errnoOf(C.vb_set_nonblock(ch.fd)); err != nil {
		C.vb_destroy_comp_channel(ch)
		return nil, failure("fcntl", "channel of "+d.name, err)
	}
	if c.wake, err = newWakeFD(allSignals); err != nil {
		C.vb_destroy_comp_channel(ch)
		return nil, failure("eventfd", "channel of "+d.name, err)
	}
	c.born("channel", "channel of "+d.name, &d.object)
	return c, nil
}

// Wait is one crossing: the events are taken and acknowledged in C, none is
// ever held by a goroutine that may be late.
func (c *compChannel) Wait(timeout time.Duration) (verbs.WakeReason, error) {
	const op = "ibv_get_cq_event"
	if err := c.alive(op); err != nil {
		return verbs.WakeTimeout, err
	}
	rc := C.vb_wait_cq(c.ch, C.int(c.wake), C.int64_t(timeout))
	switch {
	case rc < 0:
		return verbs.WakeTimeout, failure(op, c.name, syscall.Errno(-rc))
	case rc&C.VB_WAKE_CALL != 0:
		return verbs.WakeCall, nil
	case rc&C.VB_WAKE_EVENT != 0:
		return verbs.WakeEvent, nil
	}
	return verbs.WakeTimeout, nil
}

func (c *compChannel) Wake() {
	if !c.gone.Load() {
		c.wake.signal()
	}
}

func (c *compChannel) Destroy() error {
	return c.destroy("ibv_destroy_comp_channel", func() error {
		if err := errnoOf(C.vb_destroy_comp_channel(c.ch)); err != nil {
			return err
		}
		c.wake.close()
		return nil
	})
}
