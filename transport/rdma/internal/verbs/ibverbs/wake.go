//go:build linux && cgo

package ibverbs

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// wakeFD is an eventfd that ends a wait in C. Its owner closes it, after the
// last wait and the last signal.
type wakeFD int

// What one read of a wakeFD takes.
const (
	oneSignal  = unix.EFD_SEMAPHORE
	allSignals = 0
)

func newWakeFD(takes int) (wakeFD, error) {
	fd, err := unix.Eventfd(0, takes|unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	return wakeFD(fd), err
}

// signal cannot fail but for a counter at its maximum, which wakes as well.
func (w wakeFD) signal() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	_, _ = unix.Write(int(w), one)
}

func (w wakeFD) close() { _ = unix.Close(int(w)) }
