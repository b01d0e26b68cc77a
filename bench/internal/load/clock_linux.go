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

// clock wakes a goroutine at a given time, by a timerfd and by a timer of Go,
// whichever is first. An idle program sleeps in whole milliseconds (epoll_wait(2)),
// which is longer than most calls take: there the timerfd wakes it. Where
// something is always runnable, as a poller that spins, the netpoller is looked at
// every 10 ms, but timers are with every goroutine that is scheduled. A blocking
// read would do for both, and keep the processor from all others meanwhile, until
// sysmon sees it. One goroutine uses it. It allocates nothing, for objects are counted.
type clock struct {
	timer       *os.File
	raw         syscall.RawConn
	arm         func(fd uintptr)
	expired     func(fd uintptr) bool
	spec        unix.ItimerSpec // to arm it with
	err         error           // of arm or expired
	expirations [8]byte
}

func newClock() (*clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	c := &clock{timer: os.NewFile(uintptr(fd), "timerfd")}
	c.arm = func(fd uintptr) { c.err = unix.TimerfdSettime(int(fd), 0, &c.spec, nil) }
	c.expired = func(fd uintptr) bool {
		_, c.err = unix.Read(int(fd), c.expirations[:])
		return c.err != unix.EAGAIN
	}
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
		if err := c.timer.SetReadDeadline(t); err != nil {
			return err
		}
		switch err := c.raw.Read(c.expired); {
		case errors.Is(err, os.ErrDeadlineExceeded): // by the timer of Go
		case err != nil:
			return err
		case c.err != nil:
			return c.err
		}
	}
	return ctx.Err()
}

func (c *clock) close() { _ = c.timer.Close() }
