package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// workload is what run measures.
type workload struct {
	sizes, callers []int
	kinds          []kind
	rounds         int
	options        load.Options
}

// cellKey is one combination of size and callers.
type cellKey struct{ size, callers int }

func runCommand(ctx context.Context, args []string) error {
	var w workload
	fs := flag.NewFlagSet("peers run", flag.ContinueOnError)
	sizes := fs.String("sizes", "64,4096,65536,1048576", "payload `bytes`, comma separated")
	callers := fs.String("callers", "1,16,256", "`numbers` of concurrent callers, comma separated")
	only := fs.String("only", "", "`kinds` to measure, comma separated; default: all")
	fs.IntVar(&w.rounds, "rounds", 5, "rounds; medians are shown")
	fs.DurationVar(&w.options.Duration, "duration", time.Second, "measured time of a cell and round")
	fs.DurationVar(&w.options.Warmup, "warmup", 200*time.Millisecond, "time before it that does not count")
	jsonPath := fs.String("json", "", "write the report to this `file`")
	check := fs.Bool("check", false, "fail unless the ratios hold that docs/benchmarks.md states")
	tries := fs.Int("tries", 3, "with -check: measure cells that missed a ratio up to this often in all")
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := errors.Join(numbers(&w.sizes, "-sizes", *sizes, 0, 32<<20), numbers(&w.callers, "-callers", *callers, 1, 1<<14), w.choose(*only)); err != nil {
		return err
	}
	if w.rounds < 1 || *tries < 1 || w.options.Duration <= 0 || w.options.Warmup < 0 {
		return fmt.Errorf("-rounds is %d, -tries %d, -duration %v, -warmup %v: expected at least 1, at least 1, more than 0, and at least 0",
			w.rounds, *tries, w.options.Duration, w.options.Warmup)
	}
	f := &results.PeersFile{Header: results.NewHeader(results.Peers), Elsewhere: elsewhere}
	if err := w.measure(ctx, f, w.cells()); err != nil {
		return err
	}
	if *check {
		if err := w.retry(ctx, f, *tries); err != nil {
			return err
		}
	}
	if err := writeTables(os.Stdout, f); err != nil {
		return err
	}
	if *jsonPath != "" {
		if err := results.Write(*jsonPath, f); err != nil {
			return err
		}
	}
	if len(f.Missed) > 0 {
		return fmt.Errorf("%d ratios do not hold, after %d tries:\n  %s", len(f.Missed), *tries, strings.Join(f.Missed, "\n  "))
	}
	return nil
}

// numbers reads comma separated ones between least and most.
func numbers(to *[]int, flag, text string, least, most int) error {
	for _, part := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < least || n > most {
			return fmt.Errorf("%s has %q, expected numbers from %d to %d", flag, part, least, most)
		}
		*to = append(*to, n)
	}
	return nil
}

func (w *workload) choose(only string) error {
	if only == "" {
		w.kinds = kinds
		return nil
	}
	for _, name := range strings.Split(only, ",") {
		k, err := findKind(strings.TrimSpace(name))
		if err != nil {
			return fmt.Errorf("-only: %w", err)
		}
		w.kinds = append(w.kinds, k)
	}
	return nil
}

func (w *workload) cells() (cells []cellKey) {
	for _, size := range w.sizes {
		for _, callers := range w.callers {
			cells = append(cells, cellKey{size, callers})
		}
	}
	return cells
}

// measure puts rows of cells into f, in place of those that are there. In each
// round all kinds measure a cell one after the other, so that a noisy moment
// hits neighbours; each round begins with another kind.
func (w *workload) measure(ctx context.Context, f *results.PeersFile, cells []cellKey) error {
	type series struct {
		samples []results.Sample
		latency load.Histogram
	}
	all := map[cellKey][]series{}
	for _, c := range cells {
		for range w.kinds {
			all[c] = append(all[c], series{latency: load.NewHistogram()})
		}
	}
	for round := range w.rounds {
		for _, c := range cells {
			for i := range w.kinds {
				i = (i + round) % len(w.kinds)
				progress("round %d/%d: %s, %d callers, %s", round+1, w.rounds, results.FormatSize(c.size), c.callers, w.kinds[i].name)
				o := w.options
				o.Callers = c.callers
				sample, latency, err := measure(ctx, w.kinds[i], c.size, o)
				if err != nil {
					return err
				}
				s := &all[c][i]
				s.samples = append(s.samples, sample)
				s.latency.Merge(latency)
			}
		}
	}
	progress("")
	f.Rows = slices.DeleteFunc(f.Rows, func(r results.PeerRow) bool {
		return slices.Contains(cells, cellKey{r.Size, r.Callers})
	})
	for _, c := range cells {
		for i, k := range w.kinds {
			s := all[c][i]
			f.Rows = append(f.Rows, results.PeerRow{
				Peer: k.name, Role: k.role, Version: k.version(), Note: k.note,
				Cell: results.NewCell(c.size, c.callers, 0, s.samples, s.latency),
			})
		}
	}
	f.Compared = f.Ratios()
	return nil
}

// retry measures cells again in which a ratio was missed: all kinds of them,
// all rounds. What it did stands in f.
func (w *workload) retry(ctx context.Context, f *results.PeersFile, tries int) error {
	for try := 1; ; try++ {
		missed, cells := checkRatios(f)
		f.Missed = missed
		if try >= tries || len(cells) == 0 {
			return nil
		}
		f.Tries = append(f.Tries, fmt.Sprintf("try %d of %d missed, and %d cells were measured again: %s", try, tries, len(cells), strings.Join(missed, "; ")))
		if err := w.measure(ctx, f, cells); err != nil {
			return err
		}
	}
}

// progress shows what is being done, on a terminal only; "" wipes it.
func progress(format string, args ...any) {
	if info, err := os.Stderr.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...)
}
