//go:build linux

package rxetest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

const (
	unprivileged = "VERBENA_TEST_UNPRIVILEGED"
	nobody       = 65534
	memlock      = 1 << 20
)

// Unprivileged tests what a process without privileges is refused (cases 48
// and 50). Root is refused nothing, so the test starts itself again, by the
// name TestUnprivileged, and gives its rights up; it alters a device node,
// which it does in the VM only.
func Unprivileged(t *testing.T, p verbs.Provider) {
	Require(t, p)
	if os.Getenv("VERBENA_VM") != "1" {
		t.Skip("alters /dev/infiniband, so runs in the VM only")
	}
	if os.Getenv(unprivileged) == "1" {
		testUnprivileged(t, p)
		return
	}
	node := uobject.UverbsNode("rxe1")
	require.NotEmpty(t, node)
	info, err := os.Stat(node)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(node, 0o600))
	defer func() { require.NoError(t, os.Chmod(node, info.Mode().Perm())) }()

	child := exec.Command(os.Args[0], "-test.run=^TestUnprivileged$", "-test.v")
	child.Env = append(os.Environ(), unprivileged+"=1")
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestUnprivileged")
}

func testUnprivileged(t *testing.T, p verbs.Provider) {
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: memlock, Max: memlock}))
	require.NoError(t, syscall.Setgid(nobody))
	require.NoError(t, syscall.Setuid(nobody))

	_, err := p.Open("rxe1")
	require.ErrorIs(t, err, syscall.EACCES)
	require.ErrorContains(t, err, "has mode 0600, uid 0, gid 0; this process is uid 65534")

	dev, err := p.Open("rxe0")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Dealloc()) }()
	mem, err := unix.Mmap(-1, 0, 2*memlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()

	half, err := pd.RegisterMR(mem[:memlock/2], verbs.AccessLocalWrite)
	require.NoError(t, err)
	_, err = pd.RegisterMR(mem, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, syscall.ENOMEM)
	for _, want := range []string{
		"RLIMIT_MEMLOCK is 1048576 bytes", "pinned already are 524288", "this needs 2097152",
	} {
		require.True(t, strings.Contains(err.Error(), want), "%v: %s", err, want)
	}
	require.NoError(t, half.Deregister())
}
