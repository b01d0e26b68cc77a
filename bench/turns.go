package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// turns is a benchmark that does something in several ways, in turn, and
// compares the medians.
type turns struct {
	name   string
	does   string // "connections of each kind"
	rounds int    // default
	pause  time.Duration
	floor  float64 // of the gain, for -check
	start  func(ctx context.Context, s settings, ends peers) ([]contender, error)
	report func([]contender) gainReport
}

// contender is one way to do it.
type contender interface {
	title() string
	turn(ctx context.Context) error
	stop()
}

// gainReport is what -json writes.
type gainReport interface {
	write(w io.Writer) error
	gain() float64 // of the best way over the worst
}

func (b *turns) run(ctx context.Context, args []string) error {
	var s settings
	fs := flag.NewFlagSet("bench "+b.name, flag.ContinueOnError)
	rounds := fs.Int("rounds", b.rounds, b.does+", in turn; medians are shown")
	pause := fs.Duration("pause", b.pause, "between two: links drain, others are made ready")
	jsonPath := fs.String("json", "", "write the report to this `file`")
	check := fs.Bool("check", false, fmt.Sprintf("fail unless what is prepared is at least %.0f times faster than what is made on the way", b.floor))
	s.register(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	if *rounds < 1 || *pause < 0 {
		return fmt.Errorf("-rounds is %d and -pause %v, expected at least 1 and 0", *rounds, *pause)
	}
	s.procs = cmp.Or(s.procs, max(1, runtime.NumCPU()/2))
	runtime.GOMAXPROCS(s.procs)
	ends, err := findPeers()
	if err != nil {
		return err
	}
	ways, err := b.start(ctx, s, ends)
	defer func() {
		for _, w := range ways {
			w.stop()
		}
	}()
	if err != nil {
		return err
	}
	for round := range *rounds {
		progress("round %d/%d", round+1, *rounds)
		for _, w := range ways {
			if err := w.turn(ctx); err != nil {
				return fmt.Errorf("%s: %w", w.title(), err)
			}
			time.Sleep(*pause)
		}
	}
	progress("")
	r := b.report(ways)
	if err := r.write(os.Stdout); err != nil {
		return err
	}
	if *jsonPath != "" {
		if err := results.Write(*jsonPath, r); err != nil {
			return err
		}
	}
	if *check && r.gain() < b.floor {
		return fmt.Errorf("below the floor: %.1f times faster, at least %.1f expected", r.gain(), b.floor)
	}
	return nil
}
