//go:build linux && cgo

package ibverbs

import (
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
