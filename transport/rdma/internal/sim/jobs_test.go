package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// What a child says on lines of its own.
const (
	sayPlaying = "sim: playing seed "
	sayTally   = "sim: tally "
)

// chunk is how many seeds a child plays: enough to make its start cheap.
const chunk = 200

// share has processes play the seeds, for one world uses one processor.
func share(t *testing.T, sum *tally) {
	next, end := *firstSeed, *firstSeed+uint64(*seeds)
	var mu sync.Mutex // guards next and sum
	take := func() (first uint64, n int) {
		mu.Lock()
		defer mu.Unlock()
		first, n = next, int(min(chunk, end-next))
		next += uint64(n)
		return first, n
	}
	var workers sync.WaitGroup
	for range *jobs {
		workers.Go(func() {
			for first, n := take(); n > 0; first, n = take() {
				for n > 0 {
					part, played := spawn(t, first, n)
					first, n = first+uint64(played), n-played
					mu.Lock()
					sum.merge(part)
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
}

// spawn plays seeds in another process. One that dies has played up to the
// world that killed it.
func spawn(t *testing.T, first uint64, n int) (part *tally, played int) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestWorlds$", "-test.timeout=0", "-sim.child",
		"-sim.seed="+strconv.FormatUint(first, 10), "-sim.seeds="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	part = newTally()
	last := first
	var said []string
	for line := range strings.Lines(string(out)) {
		switch {
		case strings.HasPrefix(line, sayPlaying):
			last, _ = strconv.ParseUint(strings.TrimSpace(line[len(sayPlaying):]), 10, 64)
		case strings.HasPrefix(line, sayTally):
			if err := json.Unmarshal([]byte(line[len(sayTally):]), part); err != nil {
				t.Errorf("tally of seeds %d to %d: %v", first, first+uint64(n)-1, err)
			}
		default:
			said = append(said, line)
		}
	}
	switch {
	case part.Worlds == n && err == nil:
	case part.Worlds == n:
		t.Errorf("%s", strings.Join(said, ""))
	default:
		part.Worlds, part.Failed = int(last-first)+1, part.Failed+1
		t.Errorf("seed %d ended the process: %v\n%s\nreplay: make sim SEED=%d", last, err, strings.Join(said, ""), last)
	}
	return part, part.Worlds
}

// tally sums up worlds.
type tally struct {
	Worlds, Failed, Calls int
	Moves, Resent, Again  uint64 // of lanes; frames sent again; frames that came again, dropped
	Outcomes, Faults      map[string]int
}

func newTally() *tally { return &tally{Outcomes: map[string]int{}, Faults: map[string]int{}} }

func (s *tally) add(t *testing.T, r report) {
	if len(r.violations) > 0 {
		s.Failed++
		t.Error(r)
	}
	s.Worlds++
	s.Calls += r.calls
	s.Moves, s.Resent, s.Again = s.Moves+r.moves, s.Resent+r.resent, s.Again+r.duplicates
	for o, n := range r.outcomes {
		s.Outcomes[outcome(o).String()] += n
	}
	for k, n := range r.faults {
		s.Faults[k] += n
	}
}

func (s *tally) merge(o *tally) {
	s.Worlds, s.Failed, s.Calls = s.Worlds+o.Worlds, s.Failed+o.Failed, s.Calls+o.Calls
	s.Moves, s.Resent, s.Again = s.Moves+o.Moves, s.Resent+o.Resent, s.Again+o.Again
	for k, n := range o.Outcomes {
		s.Outcomes[k] += n
	}
	for k, n := range o.Faults {
		s.Faults[k] += n
	}
}

func (s *tally) print() {
	line, _ := json.Marshal(s) // it is made of numbers
	fmt.Printf("%s%s\n", sayTally, line)
}

func (s *tally) String() string {
	var b bytes.Buffer
	faults := 0
	for _, n := range s.Faults {
		faults += n
	}
	fmt.Fprintf(&b, "%d worlds, %d with violations\n", s.Worlds, s.Failed)
	fmt.Fprintf(&b, "%d calls:", s.Calls)
	for _, k := range slices.Sorted(maps.Keys(s.Outcomes)) {
		fmt.Fprintf(&b, " %d %s,", s.Outcomes[k], k)
	}
	fmt.Fprintf(&b, "\n%d moves of lanes, %d frames sent again, %d that came again\n", s.Moves, s.Resent, s.Again)
	fmt.Fprintf(&b, "%d faults:", faults)
	for _, k := range slices.Sorted(maps.Keys(s.Faults)) {
		fmt.Fprintf(&b, " %d %s,", s.Faults[k], k)
	}
	return strings.TrimSuffix(b.String(), ",")
}
