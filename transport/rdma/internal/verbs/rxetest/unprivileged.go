//go:build linux

package rxetest

import (
	"os"
	"os/exec"
	"runtime"
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
	node, err := uobject.UverbsNode("rxe1")
	require.NoError(t, err)
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

// OtherCredentials tests that a thread whose credentials are not those that opened
// the device posts and arms as others do: a write() to the device is refused there.
func OtherCredentials(t *testing.T, p verbs.Provider) {
	c := connect(t, p, p)
	_, err := c.qb.PostRecv(c.b.recvs(3, 64))
	require.NoError(t, err)
	use := func(id uint64) {
		_, err := c.qa.PostSend([]verbs.SendWR{c.a.send(id, 0, 64, verbs.SendSignaled)})
		require.NoError(t, err)
		require.EqualValues(t, id, c.a.poll(1)[0].ID)
		require.NoError(t, c.a.cq.Arm())
	}
	use(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with the goroutine
		_, err := unix.SetfsuidRetUid(nobody)
		require.NoError(t, err)
		use(1)
	}()
	<-done
	use(2)
	require.Len(t, c.b.poll(3), 3)
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
