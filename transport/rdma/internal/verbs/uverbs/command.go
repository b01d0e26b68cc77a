//go:build linux

package uverbs

import (
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/pool"
	"golang.org/x/sys/unix"
)

// commands runs commands of the control path. Each takes a slot of memory
// outside the Go heap while it runs, which may be for as long as a path needs
// to be resolved (1 s): more at once than there are slots wait.
type commands struct {
	fd    int
	mem   *pool.Arena
	slots chan []byte
}

// Sizes in bytes. The largest command has 120, the largest answer 176.
const (
	slotSize   = 512
	slotAnswer = 256 // where the answer is
)

func newCommands(fd int) (*commands, error) {
	mem, err := pool.NewArena(unix.Getpagesize())
	if err != nil {
		return nil, err
	}
	n := len(mem.Bytes()) / slotSize
	c := &commands{fd: fd, mem: mem, slots: make(chan []byte, n)}
	for i := range n {
		c.slots <- mem.Bytes()[i*slotSize:][:slotSize]
	}
	return c, nil
}

func (c *commands) close() error { return c.mem.Close() }

// none is the answer of a command that has none. Any other command begins with
// the address of its answer.
type none struct{}

// run writes one command, and returns its answer.
func run[Resp, Req any](c *commands, command uint32, req Req) (resp Resp, err error) {
	slot := <-c.slots
	defer func() { c.slots <- slot }()
	clear(slot)
	mem := encode[Resp](slot, command, req)
	n, err := unix.Write(c.fd, mem)
	if err != nil {
		return resp, err
	}
	if n != len(mem) {
		return resp, syscall.EIO
	}
	return *(*Resp)(unsafe.Pointer(&slot[slotAnswer])), nil
}

// encode makes a command in a slot, with the address of its answer there, and
// returns what is to be written.
func encode[Resp, Req any](slot []byte, command uint32, req Req) []byte {
	var resp Resp
	in, out := unsafe.Sizeof(cmdHdr{})+unsafe.Sizeof(req), unsafe.Sizeof(resp)
	if in > slotAnswer || out > slotSize-slotAnswer {
		panic("uverbs: a command is larger than its slot")
	}
	*(*cmdHdr)(unsafe.Pointer(&slot[0])) = cmdHdr{command: command, inWords: uint16(in / 4), outWords: uint16(out / 4)}
	body := unsafe.Pointer(&slot[unsafe.Sizeof(cmdHdr{})])
	*(*Req)(body) = req
	if out > 0 {
		*(*uint64)(body) = uint64(uintptr(unsafe.Pointer(&slot[slotAnswer])))
	}
	return slot[:in]
}

// doorbell is a command that is made once and written again and again, by any
// number of goroutines, since nobody reads its answer. It has a page of its
// own, which its owner closes after the last ring.
type doorbell struct {
	fd   int
	page *pool.Arena
	mem  []byte
}

func newDoorbell(fd int) (doorbell, error) {
	page, err := pool.NewArena(slotSize)
	return doorbell{fd: fd, page: page}, err
}

// mount makes the command.
func mount[Resp, Req any](d *doorbell, command uint32, req Req) {
	d.mem = encode[Resp](d.page.Bytes(), command, req)
}

// ring writes the command without telling the scheduler, which would take the
// processor away from a call of 20 µs: that costs more than the call, and the
// kernel does not sleep in it.
func (d *doorbell) ring() syscall.Errno {
	_, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(d.fd), uintptr(unsafe.Pointer(unsafe.SliceData(d.mem))), uintptr(len(d.mem)))
	return errno
}

func (d *doorbell) close() { _ = d.page.Close() }
