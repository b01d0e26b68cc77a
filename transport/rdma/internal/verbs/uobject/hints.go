//go:build linux

package uobject

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// OpenFailure explains a device that cannot be opened by its character device.
// libibverbs searches on when it may not open that, and ends with ENOENT.
func OpenFailure(device string, err error) *verbs.Error {
	const op = "ibv_open_device"
	node, _ := UverbsNode(device)
	if node == "" {
		return Failure(op, device, err, "sysfs names no uverbs device for it")
	}
	var st unix.Stat_t
	if statErr := unix.Stat(node, &st); statErr != nil {
		return Failure(op, device, err, fmt.Sprintf("%s: %v; a container needs the device passed in", node, statErr))
	}
	if unix.Faccessat(unix.AT_FDCWD, node, unix.R_OK|unix.W_OK, unix.AT_EACCESS) == nil {
		return Failure(op, device, err)
	}
	return Failure(op, device, syscall.EACCES, fmt.Sprintf("%s has mode %#o, uid %d, gid %d; this process is uid %d, gid %d",
		node, st.Mode&0o777, st.Uid, st.Gid, os.Geteuid(), os.Getegid()))
}

// UverbsNode finds the character device of an RDMA device, "" if there is none.
func UverbsNode(device string) (string, error) {
	nodes, err := uverbsNodes(classDir)
	if node := nodes[device]; node != "" {
		return node, nil
	}
	return "", err
}

// Devices lists the RDMA devices that have a character device, sorted. An error
// says that there may be others.
func Devices() ([]string, error) {
	nodes, err := uverbsNodes(classDir)
	return slices.Sorted(maps.Keys(nodes)), err
}

const classDir = "/sys/class/infiniband_verbs"

// uverbsNodes are the character devices by the names of their RDMA devices. It is
// called each second by processes that do nothing else: package os would enter each
// file of sysfs in the netpoller, and wake threads for it.
func uverbsNodes(class string) (map[string]string, error) {
	nodes := map[string]string{}
	dir, err := unix.Open(class, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nodes, unlessGone(err)
	}
	defer unix.Close(dir) //nolint:errcheck // it was read only
	list := make([]byte, 4<<10)
	for {
		n, err := unix.ReadDirent(dir, list)
		if err != nil || n == 0 {
			return nodes, unlessGone(err)
		}
		_, _, entries := unix.ParseDirent(list[:n], -1, nil)
		for _, node := range entries {
			if !strings.HasPrefix(node, "uverbs") {
				continue
			}
			device, err := readLine(dir, node+"/ibdev")
			if err = unlessGone(err); err != nil {
				return nodes, err
			}
			if device != "" {
				nodes[device] = filepath.Join("/dev/infiniband", node)
			}
		}
	}
}

// readLine is the one short line of a file below dir.
func readLine(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd) //nolint:errcheck // it was read only
	var line [256]byte   // IB_DEVICE_NAME_MAX is 64
	n, err := unix.Read(fd, line[:])
	return strings.TrimSpace(string(line[:max(0, n)])), err
}

// unlessGone is nil for what files of sysfs fail with that are not there, or whose
// device has just gone.
func unlessGone(err error) error {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return err
}

// MemlockHint explains ENOMEM where memory of need bytes was to be pinned (0:
// an amount that is the driver's). The kernel holds RLIMIT_MEMLOCK against all
// that the process has pinned, unless it has CAP_IPC_LOCK.
func MemlockHint(err error, need int) string {
	var limit unix.Rlimit
	if !errors.Is(err, syscall.ENOMEM) || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil {
		return ""
	}
	if limit.Cur == unix.RLIM_INFINITY {
		return "RLIMIT_MEMLOCK is unlimited: memory or the device's resources are exhausted"
	}
	s := fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes", limit.Cur)
	if pinned := pinnedBytes("/proc/self/status"); pinned >= 0 {
		s += fmt.Sprintf(", pinned already are %d", pinned)
	}
	if need > 0 {
		page := os.Getpagesize()
		s += fmt.Sprintf(", this needs %d", (need+page-1)/page*page)
	}
	return s + "; raise it with ulimit -l or systemd's LimitMEMLOCK"
}

// pinnedBytes reads what the process has pinned, -1 if unknown.
func pinnedBytes(status string) int64 {
	f, err := os.Open(status)
	if err != nil {
		return -1
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(lines.Text(), "VmPin: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return -1
}

// DepthHint and CapsHint name the limit of a device that a request went beyond.
func DepthHint(dev verbs.Device, depth int) string {
	attr, err := dev.Query()
	if err != nil {
		return ""
	}
	return above("depth", depth, attr.MaxCQE)
}

// CapsHint is described at DepthHint.
func CapsHint(dev verbs.Device, caps verbs.QPCaps) string {
	attr, err := dev.Query()
	if err != nil {
		return ""
	}
	return cmp.Or(
		above("MaxSendWR", caps.MaxSendWR, attr.MaxQPWR),
		above("MaxRecvWR", caps.MaxRecvWR, attr.MaxQPWR),
		above("MaxSendSGE", caps.MaxSendSGE, attr.MaxSGE),
		above("MaxRecvSGE", caps.MaxRecvSGE, attr.MaxSGE),
	)
}

// SRQCapsHint is described at DepthHint.
func SRQCapsHint(dev verbs.Device, caps verbs.SRQCaps) string {
	attr, err := dev.Query()
	switch {
	case err != nil:
		return ""
	case attr.MaxSRQ == 0:
		return "the device has no shared receive queues"
	}
	return cmp.Or(above("MaxWR", caps.MaxWR, attr.MaxSRQWR), above("MaxSGE", caps.MaxSGE, attr.MaxSRQSGE))
}

func above(name string, n, limit int) string {
	if n <= limit {
		return ""
	}
	return fmt.Sprintf("%s %d is above the device's limit of %d", name, n, limit)
}

// PathHint explains the errnos of a path that say less than the kernel knows.
func PathHint(err error) string {
	switch {
	case errors.Is(err, syscall.ETIMEDOUT):
		return "the destination GID could not be resolved to a link address"
	case errors.Is(err, syscall.ENODATA):
		return "the GID table has no entry at SGIDIndex"
	}
	return ""
}

// PostHint explains a work request that was not taken.
func PostHint(errno syscall.Errno, queue string) string {
	switch errno {
	case syscall.ENOMEM:
		return "the " + queue + " queue is full"
	case syscall.EINVAL:
		return "the QP is in a state that takes none, or an opcode, flag or length does not fit the QP"
	}
	return ""
}

// PortName is what errors call a port.
func PortName(device string, port uint8) string { return fmt.Sprintf("%s, port %d", device, port) }

// InterfaceName is the network interface of an index, "" if there is none.
func InterfaceName(index int) string {
	if index == 0 {
		return ""
	}
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return ""
}

// CheckSizes refuses sizes of queues that would wrap around in 32 bits.
func CheckSizes(caps verbs.QPCaps) error {
	return checkSizes(caps.MaxSendWR, caps.MaxRecvWR, caps.MaxSendSGE, caps.MaxRecvSGE, caps.MaxInlineData)
}

func checkSizes(sizes ...int) error {
	for _, n := range sizes {
		if n < 0 || n > math.MaxInt32 {
			return fmt.Errorf("a size of %d is none", n)
		}
	}
	return nil
}

// CheckSRQ refuses sizes that are none, and a queue of nothing.
func CheckSRQ(caps verbs.SRQCaps) error {
	if caps.MaxWR == 0 {
		return errors.New("MaxWR must be at least 1")
	}
	return checkSizes(caps.MaxWR, caps.MaxSGE)
}

// LimitHint says why a queue of size receives cannot be armed with limit, "" if
// it can.
func LimitHint(limit, size int) string {
	if limit < 0 || limit > size {
		return fmt.Sprintf("a limit of %d, the queue has room for %d receives", limit, size)
	}
	return ""
}

// SharedHint is why a QP with a shared receive queue takes no receive.
const SharedHint = "the QP receives from its SRQ: post there"
