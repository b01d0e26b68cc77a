package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/verbena-rpc/verbena/pool"
)

var (
	firstSeed = flag.Uint64("sim.seed", 1, "first seed")
	seeds     = flag.Int("sim.seeds", 50, "how many seeds")
	verbose   = flag.Bool("sim.trace", false, "print the trace of every world")
)

func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(1) // goroutines then run in an order that seldom changes
	os.Exit(m.Run())
}

// TestWorlds runs the worlds of many seeds.
func TestWorlds(t *testing.T) {
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		watch := pool.StartWatch()
		r := play(t, seed)
		if err := watch.Stop(); err != nil {
			r.violations = append(r.violations, err.Error())
		}
		if *verbose {
			fmt.Println(strings.Join(r.trace, "\n"))
		}
		if len(r.violations) > 0 {
			t.Error(r)
		}
	}
}

func (r report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d violations\n", r.seed, len(r.violations))
	for _, v := range r.violations {
		fmt.Fprintf(&b, "  %s\n", v)
	}
	fmt.Fprintf(&b, "what happened:\n  %s\n", strings.Join(r.trace, "\n  "))
	fmt.Fprintf(&b, "replay: make sim SEED=%d\n", r.seed)
	return b.String()
}

// fail reports a world that cannot be left, and ends the process.
func fail(r report) {
	fmt.Fprintln(os.Stderr, r)
	os.Exit(1)
}
