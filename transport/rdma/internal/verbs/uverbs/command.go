//go:build linux

package uverbs

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/pool"
)

// Commands are those of the old write() interface, which rxe is driven by,
// brought to the kernel by the ioctl that invokes them. A write() itself works
// only under the credentials that opened the device, compared by address: the
// threads of a process that gave up rights have them at as many addresses, so
// that it would fail on some threads and not on others. Doorbells alone try it.

// slotSize is the memory of one command, in bytes.
const slotSize = 512

// slot is a command with its answer, in memory outside the Go heap. What the
// driver adds to an answer is apart. The largest command has 112 bytes, the
// largest answers 176 and 32.
type slot struct {
	head   ioctlHdr
	attrs  [4]ioctlAttr
	req    [128]byte
	answer [192]byte
	driver [64]byte
}

// none is an answer that a command has not.
type none struct{}

// encode makes a command.
func encode[Resp, Drv, Req any](s *slot, command uint32, req Req) {
	var resp Resp
	var drv Drv
	in, out, more := unsafe.Sizeof(req), unsafe.Sizeof(resp), unsafe.Sizeof(drv)
	if in > unsafe.Sizeof(s.req) || out > unsafe.Sizeof(s.answer) || more > unsafe.Sizeof(s.driver) {
		panic("uverbs: a command is larger than its slot")
	}
	*s = slot{}
	*(*Req)(unsafe.Pointer(&s.req)) = req
	s.add(attrWriteCmd, 8, uint64(command))
	if in <= 8 { // so short, it stands where the address would
		s.add(attrCoreIn, in, *(*uint64)(unsafe.Pointer(&s.req)))
	} else {
		s.add(attrCoreIn, in, address(&s.req))
	}
	if out > 0 {
		s.add(attrCoreOut, out, address(&s.answer))
	}
	if more > 0 {
		s.add(attrUHWOut, more, address(&s.driver))
	}
	s.head.objectID, s.head.methodID, s.head.driverID = objectDevice, methodInvokeWrite, driverRXE
}

func (s *slot) add(id uint16, size uintptr, data uint64) {
	s.attrs[s.head.numAttrs] = ioctlAttr{attrID: id, len: uint16(size), flags: attrMandatory, data: data}
	s.head.numAttrs++
	s.head.length = uint16(unsafe.Sizeof(s.head) + uintptr(s.head.numAttrs)*unsafe.Sizeof(ioctlAttr{}))
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// commands runs commands of the control path. Each takes a slot while it runs,
// which may be for as long as a path needs to be resolved (1 s): more at once
// than there are slots wait.
type commands struct {
	fd    int
	mem   *pool.Arena
	slots chan *slot
}

func newCommands(fd int) (*commands, error) {
	mem, err := pool.NewArena(unix.Getpagesize())
	if err != nil {
		return nil, err
	}
	n := len(mem.Bytes()) / slotSize
	c := &commands{fd: fd, mem: mem, slots: make(chan *slot, n)}
	for i := range n {
		c.slots <- (*slot)(unsafe.Pointer(&mem.Bytes()[i*slotSize]))
	}
	return c, nil
}

func (c *commands) close() { _ = c.mem.Close() }

// run runs one command, and returns its answer.
func run[Resp, Req any](c *commands, command uint32, req Req) (Resp, error) {
	resp, _, err := runDriver[Resp, none](c, command, req)
	return resp, err
}

// runDriver is run, for commands to whose answer the driver adds something.
func runDriver[Resp, Drv, Req any](c *commands, command uint32, req Req) (resp Resp, drv Drv, err error) {
	s := <-c.slots
	defer func() { c.slots <- s }()
	encode[Resp, Drv](s, command, req)
	if err := c.issue(s); err != nil {
		return resp, drv, err
	}
	return *(*Resp)(unsafe.Pointer(&s.answer)), *(*Drv)(unsafe.Pointer(&s.driver)), nil
}

// runWord runs a command without an answer that has one word for the driver,
// so short that it stands where its address would.
func runWord[Req any](c *commands, command uint32, req Req, word uint64) error {
	s := <-c.slots
	defer func() { c.slots <- s }()
	encode[none, none](s, command, req)
	s.add(attrUHWIn, unsafe.Sizeof(word), word)
	return c.issue(s)
}

func (c *commands) issue(s *slot) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), rdmaVerbsIoctl, uintptr(unsafe.Pointer(s))); errno != 0 {
		return errno
	}
	return nil
}

// doorbell is a command that is made once and run again and again, by any
// number of goroutines, since nobody reads its answer. It has a page of its
// own, which its owner closes after the last ring.
//
// It is rung by write(), as libibverbs does: with one caller on rxe a call took
// 5 % less than by the ioctl. Where that is refused, to a thread with other
// credentials, nothing was done yet, and the ioctl rings from then on.
type doorbell struct {
	fd      int
	page    *pool.Arena
	slot    *slot
	written *written
	refused atomic.Bool // write() was
}

// written is a command for write().
type written struct {
	command           uint32
	inWords, outWords uint16 // of 4 bytes
	req               [120]byte
}

func newDoorbell(fd int) (*doorbell, error) {
	page, err := pool.NewArena(slotSize + int(unsafe.Sizeof(written{})))
	if err != nil {
		return nil, err
	}
	mem := page.Bytes()
	return &doorbell{fd: fd, page: page, slot: (*slot)(unsafe.Pointer(&mem[0])), written: (*written)(unsafe.Pointer(&mem[slotSize]))}, nil
}

// hang makes the command of a doorbell. A request with an answer begins with
// the address of that.
func hang[Resp, Req any](d *doorbell, command uint32, req Req) {
	encode[Resp, none](d.slot, command, req)
	var resp Resp
	w := d.written
	*w = written{command: command, inWords: uint16((unsafe.Offsetof(w.req) + unsafe.Sizeof(req)) / 4), outWords: uint16(unsafe.Sizeof(resp) / 4)}
	*(*Req)(unsafe.Pointer(&w.req)) = req
	if w.outWords > 0 {
		*(*uint64)(unsafe.Pointer(&w.req)) = address(&d.slot.answer)
	}
}

// ring runs the command without telling the scheduler, which would take the
// processor away from a call that is longer than 20 µs: that costs more than
// the call, and the kernel does not sleep in it.
func (d *doorbell) ring() syscall.Errno {
	if !d.refused.Load() {
		w := d.written
		_, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(d.fd), uintptr(unsafe.Pointer(w)), uintptr(w.inWords)*4)
		if errno != syscall.EACCES {
			return errno
		}
		d.refused.Store(true)
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(d.fd), rdmaVerbsIoctl, uintptr(unsafe.Pointer(d.slot)))
	return errno
}

func (d *doorbell) close() { _ = d.page.Close() }
