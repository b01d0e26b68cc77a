package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

func TestCompareTellsNoiseFromChange(t *testing.T) {
	run := func(callsPerSec float64, rounds int) *file {
		c := someCell(64, 16, 0, callsPerSec)
		c.Samples = c.Samples[:rounds]
		return &file{name: "run.json", run: &report{Rows: []row{{Transport: "tcp", Codec: "proto", Cell: c}}}}
	}
	for want, files := range map[string][2]*file{
		"+10.0%  better (p=0.008 n=5+5)": {run(9_998, 5), run(10_998, 5)},
		"-9.1%  worse (p=0.008 n=5+5)":   {run(10_998, 5), run(9_998, 5)},
		"~  same (p=1.000 n=5+5)":        {run(9_998, 5), run(9_998, 5)},
		"use -rounds 5 or more":          {run(9_998, 3), run(10_998, 3)},
	} {
		var b bytes.Buffer
		require.NoError(t, compareFiles(&b, files[0], files[1]))
		require.Contains(t, b.String(), want)
	}
	other := run(1, 5)
	other.run.Rows[0].Size = 128
	require.ErrorContains(t, compareFiles(&bytes.Buffer{}, run(1, 5), other), "no cell in common")
	require.ErrorContains(t, compareFiles(&bytes.Buffer{}, run(1, 0), run(1, 5)), "0 and 5 rounds")
	noisy := run(9_998, 5)
	noisy.run.Rows[0].Samples = append([]results.Sample(nil), noisy.run.Rows[0].Samples...)
	noisy.run.Rows[0].Samples[0].CallsPerSec = 20_000
	var b bytes.Buffer
	require.NoError(t, compareFiles(&b, run(9_998, 5), noisy))
	require.NotContains(t, b.String(), "better (", "one stray round is no change")
}

// Other settings than the old file's are said, whichever they are.
func TestCompareNotesOtherCircumstances(t *testing.T) {
	run := func(change func(*file)) *file {
		header := results.Header{Go: "go1.26", System: "linux", CPUs: 2, Procs: 1}
		f := &file{Header: header, run: &report{Poll: "busy", Rows: []row{{Transport: "tcp", Codec: "proto", Cell: someCell(64, 16, 0, 1)}}}}
		change(f)
		return f
	}
	same := func(*file) {}
	var b bytes.Buffer
	require.NoError(t, compareFiles(&b, run(same), run(same)))
	require.NotContains(t, b.String(), "note:")
	for want, change := range map[string]func(*file){
		"polling: busy; linux, 2 CPUs, go1.26, GOMAXPROCS 1, polling: events": func(f *file) { f.run.Poll = "events" },
		"linux, 2 CPUs, go1.27, GOMAXPROCS 1, polling: busy":                  func(f *file) { f.Go = "go1.27" },
		"linux, 2 CPUs, go1.26, GOMAXPROCS 2, polling: busy":                  func(f *file) { f.Procs = 2 },
		"linux, 4 CPUs, go1.26, GOMAXPROCS 1, polling: busy":                  func(f *file) { f.CPUs = 4 },
		"plan9, 2 CPUs, go1.26, GOMAXPROCS 1, polling: busy":                  func(f *file) { f.System = "plan9" },
	} {
		b.Reset()
		require.NoError(t, compareFiles(&b, run(same), run(change)))
		require.Contains(t, b.String(), "note: the machines or settings differ: linux, 2 CPUs, go1.26, GOMAXPROCS 1, polling: busy; ")
		require.Contains(t, b.String(), want)
	}
}

// With equal medians the ranks still say what is better.
func TestCompareWithEqualMedians(t *testing.T) {
	run := func(callsPerSec ...float64) *file {
		c := someCell(64, 16, 0, 1)
		c.Samples = nil
		for _, v := range callsPerSec {
			c.Samples = append(c.Samples, results.Sample{CallsPerSec: v})
		}
		return &file{name: "run.json", run: &report{Rows: []row{{Transport: "tcp", Codec: "proto", Cell: c}}}}
	}
	low, high := run(1, 1, 1, 5, 5, 5, 5), run(5, 5, 5, 5, 9, 9, 9)
	var b bytes.Buffer
	require.NoError(t, compareFiles(&b, low, high))
	require.Contains(t, b.String(), "+0.0%  better (")
	b.Reset()
	require.NoError(t, compareFiles(&b, high, low))
	require.Contains(t, b.String(), "+0.0%  worse (")
}

// What was due and not sent, and how late the pacer was, are shown at a given rate.
func TestUnsentAndPacerAreShown(t *testing.T) {
	r := &report{Rows: []row{{Transport: "tcp", Codec: "proto", Cell: someCell(64, 16, 2000, 1)}}}
	var b bytes.Buffer
	require.NoError(t, r.writeTable(&b))
	require.Regexp(t, `rate +unsent +pacer µs +link`, b.String())
	require.Regexp(t, `2000/s +10000 +250\.0 +tcp`, b.String(), "the sum of five rounds")
	compared := func() string {
		b.Reset()
		f := &file{run: r}
		require.NoError(t, compareFiles(&b, f, f))
		return b.String()
	}
	require.Regexp(t, `2000/s +unsent +2000\.0 +2000\.0 `, compared())

	r.Rows[0].Cell = someCell(64, 16, 0, 1)
	require.NotContains(t, compared(), "unsent")
	b.Reset()
	require.NoError(t, r.writeTable(&b))
	require.Regexp(t, `closed +- +- +tcp`, b.String())
}

// Files that were written before links were counted and libfabric ran.
func TestFilesOfEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	old, page := filepath.Join(dir, "old.json"), filepath.Join(dir, "report.html")
	require.NoError(t, os.WriteFile(old, []byte(`{"benchmark": "run", "poll": "busy", "perftest": {"send_lat_us": 20, "send_messages_per_sec": 30000},
		"rows": [{"transport": "rdma", "codec": "proto", "size_bytes": 64, "callers": 1, "rounds": 1, "calls_per_second": 8000, "p50_us": 120,
		"client_batches_per_call": 3, "samples": [{"calls_per_second": 8000, "p50_us": 120, "client_batches_per_call": 3}], "latency": []}]}`), 0o600))
	require.NoError(t, dispatch(t.Context(), []string{"report", old, "-o", page}))
	b, err := os.ReadFile(page)
	require.NoError(t, err)
	require.NotContains(t, string(b), "libfabric")
	require.NotContains(t, string(b), "per post")
	require.NoError(t, dispatch(t.Context(), []string{"compare", old, writeSamples(t)[0]}))
}

func TestCompareReadsFiles(t *testing.T) {
	paths := writeSamples(t)
	require.NoError(t, dispatch(t.Context(), []string{"compare", paths[0], paths[0]}))
	require.ErrorContains(t, dispatch(t.Context(), []string{"compare", paths[0]}), "takes two files, got 1")
	require.ErrorContains(t, dispatch(t.Context(), []string{"compare", paths[0], paths[2]}), "no cell in common")
}
