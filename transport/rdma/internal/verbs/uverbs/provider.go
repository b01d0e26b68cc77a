//go:build linux

package uverbs

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

type provider struct{}

// Provider returns the provider.
func Provider() verbs.Provider { return provider{} }

func (provider) Name() string { return "uverbs" }

// Devices lists the RDMA devices that the kernel has, whatever their driver:
// that is found out by Open.
func (provider) Devices() ([]string, error) {
	names, err := uobject.Devices()
	if err != nil {
		return nil, uobject.Failure("list", "the RDMA devices", err)
	}
	if len(names) == 0 {
		return nil, &verbs.UnavailableError{Reason: "the kernel has no RDMA device", NoDevice: true}
	}
	return names, nil
}

func (provider) Open(name string) (verbs.Device, error) {
	fd, err := openNode(name)
	if err != nil {
		return nil, err
	}
	d, err := newDevice(name, fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return d, nil
}

// openNode opens the character device of an RDMA device, if rxe is its driver.
func openNode(name string) (fd int, err error) {
	const op = "ibv_open_device"
	node, err := uobject.UverbsNode(name)
	switch {
	case err != nil:
		return -1, uobject.Failure(op, name, err, "to find its character device")
	case node == "":
		names, _ := uobject.Devices()
		return -1, uobject.Failure(op, name, syscall.ENODEV, fmt.Sprintf("the devices are %q", names))
	}
	fd, err = unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, uobject.OpenFailure(name, err)
	}
	if !isRXE(fd) {
		_ = unix.Close(fd)
		return -1, uobject.Failure(op, name, syscall.EOPNOTSUPP, "its driver is not rdma_rxe, whose rings alone are known")
	}
	return fd, nil
}

// isRXE asks the kernel, since a device may have any name: it looks for the
// method of an ioctl only when the driver is the one that the caller named.
func isRXE(fd int) bool {
	const noSuchMethod = 0xfff
	h := ioctlHdr{length: uint16(unsafe.Sizeof(ioctlHdr{})), objectID: objectDevice, methodID: noSuchMethod, driverID: driverRXE}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), rdmaVerbsIoctl, uintptr(unsafe.Pointer(&h)))
	return errno == unix.EPROTONOSUPPORT
}
