//go:build linux

package uverbs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// device is an open device context: the descriptor that commands are written
// to, and the one that asynchronous events are read from. Both are closed by
// Close, after every object of the device.
//
// CQs, SRQs and QPs are known to the kernel by a number, which it hands back with an
// event: one that comes late finds nothing under it.
type device struct {
	uobject.Object
	fd      int
	cmd     *commands
	asyncFD int
	wake    uobject.WakeFD // of Interrupt

	mu      sync.Mutex
	sources map[uint64]any // *cq, *srq or *qp
	next    uint64
}

func newDevice(name string, fd int) (_ *device, err error) {
	d := &device{fd: fd, asyncFD: -1, wake: -1, sources: map[uint64]any{}}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	if d.cmd, err = newCommands(fd); err != nil {
		return nil, uobject.Failure("mmap", name, err)
	}
	resp, err := run[getContextResp](d.cmd, cmdGetContext, getContext{})
	if err != nil {
		return nil, uobject.Failure("ibv_open_device", name, err)
	}
	d.asyncFD = int(resp.asyncFD)
	if err := unix.SetNonblock(d.asyncFD, true); err != nil {
		return nil, uobject.Failure("fcntl", name+"'s event descriptor", err)
	}
	// One Interrupt, one ErrInterrupted: a counter taken one by one.
	if d.wake, err = uobject.NewWakeFD(uobject.OneSignal); err != nil {
		return nil, uobject.Failure("eventfd", name, err)
	}
	d.Born("device", name)
	return d, nil
}

// release gives back what the device has, but for fd.
func (d *device) release() {
	if d.wake >= 0 {
		d.wake.Close()
	}
	if d.asyncFD >= 0 {
		_ = unix.Close(d.asyncFD)
	}
	if d.cmd != nil {
		d.cmd.close()
	}
}

func (d *device) Query() (verbs.DeviceAttr, error) {
	const op = "ibv_query_device"
	if err := d.Alive(op); err != nil {
		return verbs.DeviceAttr{}, err
	}
	a, err := run[queryDeviceResp](d.cmd, cmdQueryDevice, queryDevice{})
	if err != nil {
		return verbs.DeviceAttr{}, uobject.Failure(op, d.Name(), err)
	}
	return verbs.DeviceAttr{
		FirmwareVersion:   fmt.Sprintf("%d.%d.%d", a.fwVer>>32&0xffff, a.fwVer>>16&0xffff, a.fwVer&0xffff),
		VendorID:          a.vendorID,
		VendorPartID:      a.vendorPartID,
		Ports:             a.physPortCnt,
		MaxQP:             int(a.maxQP),
		MaxQPWR:           int(a.maxQPWR),
		MaxSGE:            int(a.maxSGE),
		MaxCQ:             int(a.maxCQ),
		MaxCQE:            int(a.maxCQE),
		MaxMR:             int(a.maxMR),
		MaxPD:             int(a.maxPD),
		MaxQPRdAtomic:     int(a.maxQPRdAtom),
		MaxQPInitRdAtomic: int(a.maxQPInitRdAtom),
		MaxSRQ:            int(a.maxSRQ),
		MaxSRQWR:          int(a.maxSRQWR),
		MaxSRQSGE:         int(a.maxSRQSGE),
	}, nil
}

func (d *device) QueryPort(port uint8) (verbs.PortAttr, error) {
	const op = "ibv_query_port"
	if err := d.Alive(op); err != nil {
		return verbs.PortAttr{}, err
	}
	a, err := run[queryPortResp](d.cmd, cmdQueryPort, queryPort{portNum: port})
	if err != nil {
		return verbs.PortAttr{}, uobject.Failure(op, uobject.PortName(d.Name(), port), err)
	}
	return verbs.PortAttr{
		State:     verbs.PortState(a.state),
		MaxMTU:    verbs.MTU(a.maxMTU),
		ActiveMTU: verbs.MTU(a.activeMTU),
		GIDTable:  int(a.gidTblLen),
		PKeyTable: int(a.pkeyTblLen),
		LID:       a.lid,
		LinkLayer: verbs.LinkLayer(a.linkLayer),
	}, nil
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

func (d *device) AsyncEvent() (verbs.AsyncEvent, error) {
	const op = "ibv_get_async_event"
	if err := d.Alive(op); err != nil {
		return verbs.AsyncEvent{}, err
	}
	for {
		_, woken, err := wait(d.asyncFD, d.wake, noDeadline)
		if err != nil {
			return verbs.AsyncEvent{}, uobject.Failure(op, d.Name(), err)
		}
		if woken {
			return verbs.AsyncEvent{}, verbs.ErrInterrupted
		}
		var raw asyncEventDesc
		switch err := read(d.asyncFD, &raw); {
		case err == nil:
			return d.event(raw), nil
		case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR):
			return verbs.AsyncEvent{}, uobject.Failure(op, d.Name(), err)
		}
	}
}

func (d *device) event(raw asyncEventDesc) verbs.AsyncEvent {
	e := verbs.AsyncEvent{Type: verbs.EventType(raw.eventType)}
	switch e.Type {
	case verbs.EventPortActive, verbs.EventPortErr, verbs.EventLIDChange, verbs.EventPKeyChange,
		verbs.EventSMChange, verbs.EventClientReregister, verbs.EventGIDChange:
		e.Port = uint8(raw.element)
		return e
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch source := d.sources[raw.element].(type) {
	case *cq:
		e.CQ = source
	case *srq:
		e.SRQ = source
	case *qp:
		e.QPNum = source.num
	}
	return e
}

func (d *device) Interrupt() {
	if !d.Gone() {
		d.wake.Signal()
	}
}

func (d *device) Close() error {
	return d.End("ibv_close_device", func() error {
		d.release()
		return unix.Close(d.fd)
	})
}
