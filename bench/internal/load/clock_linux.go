package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// clock wakes a goroutine at a given time, by a timerfd: an idle Go program
// sleeps in whole milliseconds (epoll_wait(2)), which is longer than most calls
// take. One goroutine uses it.
type clock struct{ timer *os.File }

func newClock() (*clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	return &clock{timer: os.NewFile(uintptr(fd), "timerfd")}, nil
}

// sleepUntil returns at t, at once if it has passed, or with ctx's error once
// it has ended and t has come.
func (c *clock) sleepUntil(ctx context.Context, t time.Time) error {
	if left := time.Until(t); left > 0 {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(left))}
		if err := c.set(&spec); err != nil {
			return err
		}
		var expirations [8]byte
		if _, err := c.timer.Read(expirations[:]); err != nil {
			return err
		}
		if binary.NativeEndian.Uint64(expirations[:]) == 0 {
			return errors.New("the timer did not expire")
		}
	}
	return ctx.Err()
}

func (c *clock) set(spec *unix.ItimerSpec) error {
	raw, err := c.timer.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.TimerfdSettime(int(fd), 0, spec, nil) }); err != nil {
		return err
	}
	return failed
}

func (c *clock) close() { _ = c.timer.Close() }
