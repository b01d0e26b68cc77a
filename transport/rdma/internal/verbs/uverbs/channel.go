//go:build linux

package uverbs

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// compChannel is a completion channel with a descriptor of its own for Wake.
// The channel's descriptor does not block, since of two waiters that one event
// woke only one gets it.
type compChannel struct {
	uobject.Object
	fd   int
	dev  *device
	wake uobject.WakeFD
}

func (d *device) CreateCompChannel() (verbs.CompChannel, error) {
	const op = "ibv_create_comp_channel"
	if err := d.Alive(op); err != nil {
		return nil, err
	}
	resp, err := run[createCompChannelResp](d.cmd, cmdCreateCompChannel, createCompChannel{})
	if err != nil {
		return nil, uobject.Failure(op, d.Name(), err)
	}
	c := &compChannel{fd: int(resp.fd), dev: d}
	if err := unix.SetNonblock(c.fd, true); err != nil {
		_ = unix.Close(c.fd)
		return nil, uobject.Failure("fcntl", "channel of "+d.Name(), err)
	}
	if c.wake, err = uobject.NewWakeFD(uobject.AllSignals); err != nil {
		_ = unix.Close(c.fd)
		return nil, uobject.Failure("eventfd", "channel of "+d.Name(), err)
	}
	c.Born("channel", "channel of "+d.Name(), &d.Object)
	return c, nil
}

func (c *compChannel) Wait(timeout time.Duration) (verbs.WakeReason, error) {
	const op = "ibv_get_cq_event"
	if err := c.Alive(op); err != nil {
		return verbs.WakeTimeout, err
	}
	deadline := deadlineAfter(timeout)
	for {
		ready, woken, err := wait(c.fd, c.wake, deadline)
		events := false
		if err == nil && ready {
			events, err = c.take()
		}
		switch {
		case err != nil:
			return verbs.WakeTimeout, uobject.Failure(op, c.Name(), err)
		case woken:
			return verbs.WakeCall, nil
		case events:
			return verbs.WakeEvent, nil
		case !ready:
			return verbs.WakeTimeout, nil
		}
	}
}

// take reads all events. They need no acknowledgement: the kernel forgets the
// events of a CQ with the CQ.
func (c *compChannel) take() (some bool, err error) {
	var raw compEventDesc
	for {
		switch err := read(c.fd, &raw); {
		case err == nil:
			some = true
		case errors.Is(err, syscall.EAGAIN):
			return some, nil
		case !errors.Is(err, syscall.EINTR):
			return some, err
		}
	}
}

func (c *compChannel) Wake() {
	if !c.Gone() {
		c.wake.Signal()
	}
}

func (c *compChannel) Destroy() error {
	return c.End("ibv_destroy_comp_channel", func() error {
		c.wake.Close()
		return unix.Close(c.fd)
	})
}
