package sim

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMutations builds the simulation with a guarantee switched off, and
// requires that it finds a violation: it shows that the simulation can fail.
func TestMutations(t *testing.T) {
	if testing.Short() || *child {
		t.Skip("it builds the package again for each mutation")
	}
	const within = 1000 // seeds
	for _, m := range []string{"drain", "epoch", "duplicates"} {
		t.Run(m, func(t *testing.T) {
			binary := filepath.Join(t.TempDir(), "sim.test")
			out, err := exec.Command("go", "test", "-c", "-tags", "verbena_mutate_"+m, "-o", binary, ".").CombinedOutput()
			require.NoError(t, err, "%s", out)
			out, err = exec.Command(binary, "-test.run=^TestWorlds$", "-test.timeout=0", "-sim.stop", "-sim.child",
				"-sim.seeds="+strconv.Itoa(within)).CombinedOutput()
			require.Error(t, err, "%d worlds and not one violation", within)
			require.Contains(t, string(out), "violations", "it ended otherwise")
		})
	}
}
