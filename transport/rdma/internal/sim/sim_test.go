package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rpc/verbena/pool"
)

var (
	firstSeed = flag.Uint64("sim.seed", 1, "the first seed")
	seeds     = flag.Int("sim.seeds", 50, "how many seeds from that on")
	tries     = flag.Int("sim.tries", 1, "how often each is played at most, until a violation is found")
	jobs      = flag.Int("sim.jobs", 1, "how many processes share them")
	traces    = flag.Bool("sim.trace", false, "print what happened in each world")
	stop      = flag.Bool("sim.stop", false, "stop at the first world with a violation")
	child     = flag.Bool("sim.child", false, "say what the process that started this one reads")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// One processor: goroutines then run in an order that seldom differs.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// TestWorlds plays the worlds of many seeds.
func TestWorlds(t *testing.T) {
	sum := newTally()
	switch {
	case *jobs > 1:
		share(t, sum)
	default:
		for i := range *seeds {
			if *stop && t.Failed() {
				break
			}
			seed := *firstSeed + uint64(i)
			r := playWatched(t, seed)
			for n := 1; n < *tries && len(r.violations) == 0; n++ {
				r = playWatched(t, seed)
			}
			sum.add(t, r)
			if *traces && len(r.violations) == 0 {
				t.Log(r)
			}
		}
	}
	if *child {
		sum.print()
		return
	}
	t.Log(sum)
}

// stuck is how long a world may take, of real time: some hundred times what
// it does.
const stuck = 2 * time.Minute

func playWatched(t *testing.T, seed uint64) report {
	if *child {
		fmt.Printf("%s%d\n", sayPlaying, seed)
	}
	defer time.AfterFunc(stuck, func() {
		fail(report{seed: seed, violations: []string{fmt.Sprintf("not over after %v of real time:\n%s", stuck, stacks())}})
	}).Stop()
	watch := pool.StartWatch()
	r := play(t, seed)
	if err := watch.Stop(); err != nil {
		r.violations = append(r.violations, err.Error())
	}
	return r
}

// fail reports a world that cannot be left, and ends the process.
func fail(r report) {
	fmt.Fprintln(os.Stderr, r)
	os.Exit(1)
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
