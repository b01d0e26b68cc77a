//go:build linux && cgo

package ibverbs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// case 41: a missing library or symbol is one line that names it.
func TestLoadNamesWhatIsMissing(t *testing.T) {
	for _, c := range []struct{ library, wants string }{
		{"libnonesuch.so.1", "libnonesuch.so.1: cannot open shared object file"},
		{"libc.so.6", "libc.so.6 has no symbol ibv_get_device_list"},
	} {
		err := load(c.library)
		var unavailable *verbs.UnavailableError
		require.ErrorAs(t, err, &unavailable)
		require.Contains(t, unavailable.Reason, c.wants)
		require.NotContains(t, unavailable.Reason, "\n")
	}
}

// case 48: whatever is missing, the list of devices is an answer.
func TestDevicesOrReason(t *testing.T) {
	names, err := Provider().Devices()
	var unavailable *verbs.UnavailableError
	if err != nil {
		require.ErrorAs(t, err, &unavailable)
		require.NotEmpty(t, unavailable.Reason)
		return
	}
	require.NotEmpty(t, names)
	_, err = Provider().Open("nonesuch0")
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, names[0])
}

func TestMemlockHint(t *testing.T) {
	status := filepath.Join(t.TempDir(), "status")
	require.NoError(t, os.WriteFile(status, []byte("Name:\tx\nVmPin:\t      12 kB\nVmHWM:\t 9 kB\n"), 0o600))
	require.EqualValues(t, 12<<10, pinnedBytes(status))
	require.EqualValues(t, -1, pinnedBytes(status+".none"))

	require.Empty(t, memlockHint(syscall.EINVAL, 1))
	require.Contains(t, memlockHint(syscall.ENOMEM, 1), "RLIMIT_MEMLOCK")
}

func TestUverbsNode(t *testing.T) {
	class := t.TempDir()
	for node, device := range map[string]string{"uverbs0": "rxe1\n", "uverbs1": "rxe0\n"} {
		require.NoError(t, os.Mkdir(filepath.Join(class, node), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(class, node, "ibdev"), []byte(device), 0o600))
	}
	require.Equal(t, "/dev/infiniband/uverbs1", uverbsNode(class, "rxe0"))
	require.Empty(t, uverbsNode(class, "rxe2"))
}

func TestFailureWithoutErrno(t *testing.T) {
	require.ErrorIs(t, failure("ibv_alloc_pd", "rxe0", nil), syscall.EIO)
	require.ErrorIs(t, failure("ibv_alloc_pd", "rxe0", syscall.ENOMEM), syscall.ENOMEM)
}
