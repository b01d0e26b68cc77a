//go:build linux

package uverbs

import (
	"errors"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// noDeadline is a deadline that never comes.
var noDeadline time.Time

func deadlineAfter(timeout time.Duration) time.Time {
	if timeout < 0 {
		return noDeadline
	}
	return time.Now().Add(timeout)
}

// wait blocks its thread until fd is readable or a signal was taken from wake,
// and says which; neither at the deadline. Another thread may take what made
// fd readable: the caller's read must not block.
func wait(fd int, wake uobject.WakeFD, deadline time.Time) (ready, woken bool, err error) {
	fds := [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	var limit *unix.Timespec
	if deadline != noDeadline {
		t := unix.NsecToTimespec(int64(max(0, time.Until(deadline))))
		limit = &t
	}
	_, err = unix.Ppoll(fds[:], limit, nil)
	switch {
	case errors.Is(err, syscall.EINTR):
		return true, false, nil // so that the caller looks, and waits again
	case err != nil:
		return false, false, err
	}
	if fds[1].Revents != 0 {
		var count uint64
		woken = read(int(wake), &count) == nil
	}
	// A signal that another waiter took is no deadline either.
	return fds[0].Revents != 0 || fds[1].Revents != 0, woken, nil
}

// read reads one event, which holds no pointer and stays on the stack.
func read[T any](fd int, event *T) error {
	n, _, errno := unix.Syscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(event)), unsafe.Sizeof(*event))
	switch {
	case errno != 0:
		return errno
	case n != unsafe.Sizeof(*event):
		return syscall.EIO
	}
	return nil
}
