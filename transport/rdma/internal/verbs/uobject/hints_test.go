//go:build linux

package uobject

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
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
	require.Equal(t, map[string]string{
		"rxe1": "/dev/infiniband/uverbs0", "rxe0": "/dev/infiniband/uverbs1",
	}, uverbsNodes(class))
	require.Empty(t, UverbsNode("no-such-device"))
}

func TestFailureWithoutErrno(t *testing.T) {
	require.ErrorIs(t, Failure("ibv_alloc_pd", "rxe0", nil), syscall.EIO)
	require.ErrorIs(t, Failure("ibv_alloc_pd", "rxe0", syscall.ENOMEM), syscall.ENOMEM)
}
