package verbstest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

func TestMain(m *testing.M) { Main(m) }

func TestLeaksAreFound(t *testing.T) {
	before := take()
	require.Empty(t, before.leaks(0))

	release := verbs.Track("QP", "QP 0x11")
	require.Contains(t, before.leaks(0), "QP (QP 0x11) created at")
	require.Contains(t, before.leaks(0), "verbstest.TestLeaksAreFound")
	release()

	stop := make(chan struct{})
	go func() { <-stop }()
	require.Contains(t, before.leaks(0), "verbstest.TestLeaksAreFound.func")
	close(stop)

	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	if before.files != nil {
		require.Contains(t, before.leaks(0), os.DevNull)
	}
	require.NoError(t, f.Close())
	require.Empty(t, before.leaks(grace))
}
