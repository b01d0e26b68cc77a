//go:build linux

package uobject

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// WakeFD is an eventfd that ends a wait for another descriptor. Its owner
// closes it, after the last wait and the last signal.
type WakeFD int

// What one read of a WakeFD takes.
const (
	OneSignal  = unix.EFD_SEMAPHORE
	AllSignals = 0
)

// NewWakeFD makes one that does not block.
func NewWakeFD(takes int) (WakeFD, error) {
	fd, err := unix.Eventfd(0, takes|unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	return WakeFD(fd), err
}

// Signal cannot fail but for a counter at its maximum, which wakes as well.
func (w WakeFD) Signal() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	_, _ = unix.Write(int(w), one)
}

// Close closes the descriptor.
func (w WakeFD) Close() { _ = unix.Close(int(w)) }
