//go:build linux

package faults

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var (
	count = flag.Int("faults", 0, "`number` of faults to inject; 0: one of each kind")
	seed  = flag.Uint64("seed", 0, "`seed` of their order and lengths; 0: from the clock")
	only  = flag.String("only", "", "inject only kinds whose name matches this `regexp`")
	owned = flag.Int("dedicated", 0, "`number` of links of a device with slots of their own; -1: none; 0: the default")
	out   = flag.String("out", "", "write faults.md and faults.json into this `directory`")
)

// Baselines are looked at after so many faults, and at the end.
const baselineEvery = 25

// seenTime is how long a fault may take to show its effect, under load.
const seenTime = 10 * time.Second

// Calls go on under faults of every kind: each ends in time, with its own bytes
// or an honest error, none runs twice, none fails while both processes live,
// they come back to RDMA, and nothing is left held.
func TestFaults(t *testing.T) {
	if os.Getenv("VERBENA_VM") == "" {
		t.Skip("skipped: it breaks devices and interfaces, and so runs in the test VM alone")
	}
	if *owned != 0 {
		t.Setenv(dedicatedVar, strconv.Itoa(*owned))
	}
	name, err := regexp.Compile(*only)
	require.NoError(t, err)
	wanted := slices.DeleteFunc(allFaults(), func(f fault) bool { return !name.MatchString(f.name) })
	require.NotEmpty(t, wanted, "no fault matches %q", *only)
	s := &suite{random: *seed}
	if s.random == 0 {
		s.random = uint64(time.Now().UnixNano())
	}
	fmt.Printf("seed %d\n", s.random)
	s.rng = rand.New(rand.NewPCG(s.random, 0))
	s.world, err = newWorld(t.TempDir())
	require.NoError(t, err)
	began := time.Now()
	s.run(wanted)
	report := s.report(time.Since(began))
	require.NoError(t, report.Markdown(os.Stdout))
	require.NoError(t, write(*out, report))
	require.Empty(t, report.Faults)
}

// suite is a run.
type suite struct {
	*world
	random    uint64
	rng       *rand.Rand
	first     holding // what was held before the first fault
	baselines int
	counted   Counts // up to now, by fault
	rows      []*Row
	faults    []string
}

func (s *suite) run(all []fault) {
	rows := map[string]*Row{}
	for _, f := range all {
		rows[f.name] = &Row{Fault: f.name, Survives: f.survives, Limit: f.limit}
		s.rows = append(s.rows, rows[f.name])
	}
	n := *count
	if n == 0 {
		n = len(all)
	}
	var err error
	if s.first, err = s.baseline(); err != nil {
		s.violation("before the first fault", err)
		return
	}
	for i := range n {
		if i%len(all) == 0 {
			s.rng.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		}
		f := all[i%len(all)]
		where := fmt.Sprintf("fault %d, %s", i+1, f.name)
		s.violation(where, s.strike(f, rows[f.name]))
		if (i+1)%baselineEvery == 0 || i+1 == n {
			s.lookAtBaseline("after " + where)
		}
	}
	s.violation("at the end", s.close())
}

// strike injects a fault and waits until all is well again, and all that began
// before has ended. The error is what was not as promised.
func (s *suite) strike(f fault, row *Row) error {
	time.Sleep(50*time.Millisecond + s.upTo(250*time.Millisecond))
	if err := errors.Join(s.endHung(), s.calm()); err != nil {
		return err
	}
	began, ran := time.Now(), s.clock.now()
	fault := s.play(f)
	lasted, ended := time.Since(began), s.clock.now()
	recovery, err := s.recovered(ended, f.limit)
	if err == nil {
		err = errors.Join(s.caughtUp(s.clock.now()), s.take())
	}
	counts := s.sinceLast()
	row.Add(counts, recovery)
	if f.survives && counts.Failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d calls failed although both processes live", counts.Failed, counts.Calls))
	}
	fmt.Printf("%-40s %5d calls %3d failed, %4.1f s, back after %.2f s\n", f.name, counts.Calls, counts.Failed, lasted.Seconds(), recovery.Seconds())
	if stood := time.Since(began) - (s.clock.now() - ran); stood > time.Second {
		fmt.Printf("  the VM stood still for %.1f s meanwhile\n", stood.Seconds())
	}
	return errors.Join(fault, err)
}

// calm says that no call has failed since the last fault.
func (s *suite) calm() error {
	if err := s.take(); err != nil {
		return err
	}
	if counts := s.sinceLast(); counts.Failed > 0 {
		return fmt.Errorf("before it, %d of %d calls failed for no fault", counts.Failed, counts.Calls)
	}
	return nil
}

// sinceLast is what was counted since it was last asked.
func (s *suite) sinceLast() Counts {
	counts := s.ledger.Minus(s.counted)
	s.counted = s.ledger.Counts
	return counts
}

// play has a fault begin, last and end.
func (s *suite) play(f fault) error {
	hold := f.hold/4 + s.upTo(f.hold*3/4)
	inj, err := f.inject(s.world)
	if err != nil {
		if inj.end != nil {
			err = errors.Join(err, inj.end())
		}
		return fmt.Errorf("inject: %w", err)
	}
	time.Sleep(hold)
	seen := inj.seen()
	for deadline := time.Now().Add(seenTime); !seen && time.Now().Before(deadline); seen = inj.seen() {
		time.Sleep(20 * time.Millisecond)
	}
	err = inj.end()
	if !seen {
		now, _ := s.client.ask(tell)
		err = errors.Join(fmt.Errorf("the fault took no effect within %v: %+v", seenTime, now), err)
	}
	return err
}

func (s *suite) upTo(most time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(most)))
}

func (s *suite) lookAtBaseline(where string) {
	if err := s.requireBaseline(s.first); err != nil {
		s.violation(where, errors.Join(err, s.renew()))
		return
	}
	s.baselines++
}

// violation notes what went wrong; err may be nil.
func (s *suite) violation(where string, err error) {
	if err != nil {
		s.faults = append(s.faults, fmt.Sprintf("%s: %v", where, err))
		fmt.Println("VIOLATION", s.faults[len(s.faults)-1])
	}
}

func (s *suite) report(took time.Duration) *Report {
	return &Report{
		Seed: s.random, Kernel: kernel(), Took: took, Baseline: s.baselines, Overrun: s.ledger.Overrun,
		Rows: s.rows, Faults: append(s.faults, s.ledger.Faults...),
	}
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(u.Release[:])
}

// write leaves the report in a directory, if there is to be one.
func write(dir string, r *Report) error {
	if dir == "" {
		return nil
	}
	for name, to := range map[string]func(*os.File) error{
		"faults.md":   func(f *os.File) error { return r.Markdown(f) },
		"faults.json": func(f *os.File) error { return r.JSON(f) },
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(to(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
