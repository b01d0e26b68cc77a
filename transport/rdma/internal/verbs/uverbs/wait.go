//go:build linux

package uverbs

import (
	"errors"
	"syscall"
	"time"

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
	if _, err := unix.Ppoll(fds[:], limit, nil); err != nil {
		// Interrupted: as if fd were ready, so that the caller looks and waits again.
		return true, false, ignore(err, syscall.EINTR)
	}
	if fds[1].Revents != 0 {
		var count [8]byte
		n, err := unix.Read(int(wake), count[:])
		woken = err == nil && n == len(count)
	}
	// A signal that another waiter took is no deadline either.
	return fds[0].Revents != 0 || fds[1].Revents != 0, woken, nil
}

func ignore(err error, which syscall.Errno) error {
	if errors.Is(err, which) {
		return nil
	}
	return err
}
