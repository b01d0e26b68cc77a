package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// compareCommand says in which cells two files of the same benchmark differ.
func compareCommand(_ context.Context, args []string) error {
	fs := flag.NewFlagSet("bench compare", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "usage: bench compare OLD.json NEW.json; files are what -json of bench run or of peers run wrote, with at least 4 rounds")
		fs.PrintDefaults()
	}
	paths, err := parseFiles(fs, args)
	if err != nil {
		return err
	}
	if len(paths) != 2 {
		return fmt.Errorf("compare takes two files, got %d", len(paths))
	}
	old, err := readFile(paths[0])
	if err != nil {
		return err
	}
	now, err := readFile(paths[1])
	if err != nil {
		return err
	}
	return compareFiles(os.Stdout, old, now)
}

// figures that are compared. more says that more is better, rated that only
// cells with a rate have it.
var figures = []struct {
	name  string
	more  bool
	rated bool
	value func(*results.Sample) float64
}{
	{"calls/s", true, false, func(s *results.Sample) float64 { return s.CallsPerSec }},
	{"p50 µs", false, false, func(s *results.Sample) float64 { return s.P50 }},
	{"p99 µs", false, false, func(s *results.Sample) float64 { return s.P99 }},
	{"CPU µs", false, false, (*results.Sample).CPU},
	{"unsent", false, true, func(s *results.Sample) float64 { return float64(s.Unsent) }},
	{"objects", false, false, func(s *results.Sample) float64 { return s.ClientObjects + s.ServerObjects }},
}

func compareFiles(w io.Writer, old, now *file) error {
	if was, is := circumstances(old), circumstances(now); was != is {
		fmt.Fprintf(w, "note: the machines or settings differ: %s; %s\n", was, is)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tsize\tcallers\tload\tfigure\told\tnew\tchange\tverdict\t")
	compared, tooFew := 0, false
	for _, before := range old.series() {
		for _, after := range now.series() {
			if before.name != after.name || before.Size != after.Size || before.Callers != after.Callers || before.Rate != after.Rate {
				continue
			}
			compared++
			for _, f := range figures {
				if f.rated && before.Rate == 0 {
					continue
				}
				d, err := results.Compare(rounds(before, f.value), rounds(after, f.value))
				if err != nil {
					return fmt.Errorf("%s, %s, %d callers: %w", before.name, results.FormatSize(before.Size), before.Callers, err)
				}
				tooFew = tooFew || d.TooFew()
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%.1f\t%.1f\t%s\t%s\t\n", before.name, results.FormatSize(before.Size),
					before.Callers, rate(before.Rate), f.name, d.Old, d.New, change(d), verdict(d, f.more))
			}
		}
	}
	if compared == 0 {
		return fmt.Errorf("%s and %s have no cell in common", old.name, now.name)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nMedians over rounds; ~: no difference beyond noise (Mann-Whitney U test, p < %.2f, which goes by ranks, and so do verdicts). Among many cells, one in %.0f differs by chance.\n",
		results.Alpha, 1/results.Alpha)
	if tooFew {
		fmt.Fprintln(w, "With fewer than 4 rounds on each side no difference can be shown: use -rounds 5 or more.")
	}
	return nil
}

// circumstances are what figures depend on beside the code.
func circumstances(f *file) string {
	text := fmt.Sprintf("%s, %d CPUs, %s, GOMAXPROCS %d", f.System, f.CPUs, f.Go, f.Procs)
	if f.run != nil {
		text += ", polling: " + f.run.Poll
	}
	return text
}

func rounds(s series, value func(*results.Sample) float64) (values []float64) {
	for i := range s.Samples {
		values = append(values, value(&s.Samples[i]))
	}
	return values
}

func change(d results.Difference) string {
	if d.Old == 0 || !d.Clear() {
		return "~"
	}
	return fmt.Sprintf("%+.1f%%", 100*d.Change())
}

func verdict(d results.Difference, more bool) string {
	word := "same"
	switch {
	case !d.Clear():
	case d.Higher == more:
		word = "better"
	default:
		word = "worse"
	}
	return fmt.Sprintf("%s (p=%.3f n=%d+%d)", word, d.P, d.N, d.M)
}
