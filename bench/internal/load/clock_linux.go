package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// clock wakes a goroutine at a given time, by a timerfd: an idle Go program
// sleeps in whole milliseconds (epoll_wait(2)), which is longer than most calls
// take. One goroutine uses it. It allocates nothing, for objects are counted.
type clock struct {
	timer       *os.File
	raw         syscall.RawConn
	arm         func(fd uintptr)
	spec        unix.ItimerSpec // to arm it with
	err         error           // of arm
	expirations [8]byte
}

func newClock() (*clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	c := &clock{timer: os.NewFile(uintptr(fd), "timerfd")}
	c.arm = func(fd uintptr) { c.err = unix.TimerfdSettime(int(fd), 0, &c.spec, nil) }
	if c.raw, err = c.timer.SyscallConn(); err != nil {
		return nil, errors.Join(err, c.timer.Close())
	}
	return c, nil
}

// sleepUntil returns at t, at once if it has passed, or with ctx's error once
// it has ended and t has come.
func (c *clock) sleepUntil(ctx context.Context, t time.Time) error {
	if left := time.Until(t); left > 0 {
		c.spec.Value = unix.NsecToTimespec(int64(left))
		if err := c.raw.Control(c.arm); err != nil {
			return err
		}
		if c.err != nil {
			return c.err
		}
		if _, err := c.timer.Read(c.expirations[:]); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (c *clock) close() { _ = c.timer.Close() }
