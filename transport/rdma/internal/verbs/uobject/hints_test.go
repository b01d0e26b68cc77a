//go:build linux

package uobject

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMemlockHint(t *testing.T) {
	status := filepath.Join(t.TempDir(), "status")
	require.NoError(t, os.WriteFile(status, []byte("Name:\tx\nVmPin:\t      12 kB\nVmHWM:\t 9 kB\n"), 0o600))
	require.EqualValues(t, 12<<10, pinnedBytes(status))
	require.EqualValues(t, -1, pinnedBytes(status+".none"))

	require.Empty(t, MemlockHint(syscall.EINVAL, 1))
	require.Contains(t, MemlockHint(syscall.ENOMEM, 1), "RLIMIT_MEMLOCK")
}

func TestUverbsNodes(t *testing.T) {
	class := t.TempDir()
	for node, device := range map[string]string{"uverbs0": "rxe1\n", "uverbs1": "rxe0\n"} {
		require.NoError(t, os.Mkdir(filepath.Join(class, node), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(class, node, "ibdev"), []byte(device), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(class, "abi_version"), []byte("6\n"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(class, "uverbs2"), 0o700)) // about to go
	nodes, err := uverbsNodes(class)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"rxe1": "/dev/infiniband/uverbs0", "rxe0": "/dev/infiniband/uverbs1",
	}, nodes)
	node, err := UverbsNode("no-such-device")
	require.NoError(t, err)
	require.Empty(t, node)
	nodes, err = uverbsNodes(filepath.Join(class, "none"))
	require.NoError(t, err)
	require.Empty(t, nodes)
}

// A process that may open no file any more has not lost its devices.
func TestUverbsNodesWithoutDescriptors(t *testing.T) {
	class := t.TempDir()
	var limit, none unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none.Max = limit.Max
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	_, err := uverbsNodes(class)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, syscall.EMFILE)
}

func TestFailureWithoutErrno(t *testing.T) {
	require.ErrorIs(t, Failure("ibv_alloc_pd", "rxe0", nil), syscall.EIO)
	require.ErrorIs(t, Failure("ibv_alloc_pd", "rxe0", syscall.ENOMEM), syscall.ENOMEM)
}
