package pool

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestReserveInHugePages: the mapping with the reserve has the flag that asks for them.
func TestReserveInHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("a kernel without huge pages")
	}
	var r reserve
	middle := uint64(uintptr(unsafe.Pointer(&r.get(minReserved).buf[:1][0]))) + reserveSize/2
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	within := false
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			within = from <= middle && middle < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && within {
			require.Contains(t, strings.Fields(flags), "hg")
			return
		}
	}
	t.Fatal("the reserve is in no mapping")
}
