package pool_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
)

// case 83: a child that is a copy of the process has no part in the arena
// ("dc" in /proc/PID/smaps), so that none of its pages is copied on write.
func TestArenaStaysWithTheProcess(t *testing.T) {
	a, err := pool.NewArena(1 << 20)
	require.NoError(t, err)
	defer a.Close()
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, mapping, ok := strings.Cut(string(smaps), fmt.Sprintf("%x-", uintptr(unsafe.Pointer(&a.Bytes()[0]))))
	require.True(t, ok, "the arena is a mapping of its own")
	_, flags, _ := strings.Cut(mapping, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	require.Contains(t, strings.Fields(flags), "dc")
}
