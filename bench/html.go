package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/page"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// reportCommand makes a page of what benchmarks wrote.
func reportCommand(_ context.Context, args []string) error {
	fs := flag.NewFlagSet("bench report", flag.ContinueOnError)
	out := fs.String("o", "report.html", "`file` to write")
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "usage: bench report FILE... [flags]; files are what -json of bench run, connect, failover, scale and of peers run wrote")
		fs.PrintDefaults()
	}
	paths, err := parseFiles(fs, args)
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return errors.New("report needs at least one file that a benchmark has written")
	}
	var files []*file
	for _, path := range paths {
		f, err := readFile(path)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	w, err := os.Create(*out)
	if err != nil {
		return err
	}
	return errors.Join(newPage(files).Write(w), w.Close())
}

func newPage(files []*file) *page.Page {
	p := &page.Page{Title: "Verbena: what the benchmarks showed", Sections: []page.Section{machines(files)}}
	for _, f := range files {
		switch {
		case f.run != nil:
			p.Sections = append(p.Sections, runSection(f))
		case f.peers != nil:
			p.Sections = append(p.Sections, peersSection(f))
		case f.connect != nil:
			p.Sections = append(p.Sections, connectSection(f.connect))
		case f.failover != nil:
			p.Sections = append(p.Sections, failoverSection(f.failover))
		case f.scale != nil:
			p.Sections = append(p.Sections, scaleSection(f.scale))
		}
	}
	return p
}

// machines says where each file comes from.
func machines(files []*file) page.Section {
	t := page.Table{Left: 6, Head: []string{"file", "benchmark", "time", "system", "Go", "settings", "CPUs", "GOMAXPROCS"}}
	for _, f := range files {
		settings := ""
		if f.run != nil {
			settings = "polling: " + f.run.Poll
		}
		t.Rows = append(t.Rows, []string{
			f.name, f.Benchmark, f.Time.Format(time.RFC3339), f.System, f.Go, settings, fmt.Sprint(f.CPUs), fmt.Sprint(f.Procs),
		})
	}
	return page.Section{Title: "Machine and settings", Tables: []page.Table{t}, Text: []string{
		"Figures are medians over interleaved rounds. Ratios within one file mean something on any machine; compare calls per second only between files from the same, otherwise quiet one.",
	}}
}

func runSection(f *file) page.Section {
	s := page.Section{Title: "Echo calls"}
	seen := map[string]bool{}
	for _, r := range f.run.Rows {
		text := "Link " + r.Transport
		if r.Device != "" {
			text += fmt.Sprintf(": %s, path MTU %d", r.Device, r.MTU)
		}
		if r.Reason != "" {
			text += "; not rdma: " + r.Reason
		}
		if !seen[text] {
			seen[text] = true
			s.Text = append(s.Text, text+".")
		}
	}
	all := f.series()
	s.Charts = append(throughput(all), append(sweeps(all), percentiles(all)...)...)
	s.Tables = append([]page.Table{cellTable(all)}, crossingTable(all)...)
	if p := f.run.Perftest; p == nil {
		s.Text = append(s.Text, "perftest was not run: "+f.run.NoPeer+".")
	} else {
		s.Text = append(s.Text, fmt.Sprintf("perftest in the same run, %d B: a round trip is twice the %.1f µs of ib_send_lat; ib_send_bw sends %.0f messages/s.",
			perftestSize, p.SendLat, p.SendRate))
		s.Charts = append(s.Charts, perftestCharts(f.run)...)
	}
	if text := libfabricText(f.run); text != "" {
		s.Text = append(s.Text, text)
	}
	return s
}

// libfabricText is empty for files of versions that did not run libfabric.
func libfabricText(r *report) string {
	if r.Libfabric == nil {
		if r.NoLibfabric == "" {
			return ""
		}
		return "libfabric was not run: " + r.NoLibfabric + "."
	}
	text := fmt.Sprintf("libfabric in the same run, %d B: a round trip is twice the %.1f µs of fi_pingpong, a mean", perftestSize, r.Libfabric.Pingpong)
	if c := r.find("rdma", perftestSize, 1); c != nil {
		text += fmt.Sprintf("; a lone caller's p50 is %.2f of those, its mean %.2f", c.P50/r.Libfabric.roundTrip(), c.mean()/r.Libfabric.roundTrip())
	}
	return text + "."
}

// perftestCharts compare calls with what perftest showed in the same run.
func perftestCharts(r *report) []page.Chart {
	latency := page.Bars{Title: "p50 in round trips of ib_send_lat", Y: "ratio, 1: as fast", Series: []string{"rdma"}, Mark: 1}
	rate := page.Bars{Title: "Messages (two per call) in those of ib_send_bw", Y: "ratio, 1: as many", Series: []string{"rdma"}, Mark: 1}
	for _, c := range r.Rows {
		if c.Size != perftestSize || c.Transport != "rdma" || c.Rate != 0 || r.Perftest.SendLat <= 0 || r.Perftest.SendRate <= 0 {
			continue
		}
		group := fmt.Sprintf("%d callers", c.Callers)
		latency.Groups, latency.Values = append(latency.Groups, group), append(latency.Values, []float64{c.P50 / (2 * r.Perftest.SendLat)})
		rate.Groups, rate.Values = append(rate.Groups, group), append(rate.Values, []float64{2 * c.CallsPerSec / r.Perftest.SendRate})
	}
	if len(rate.Groups) == 0 {
		return nil
	}
	return []page.Chart{latency, rate}
}

func peersSection(f *file) page.Section {
	s := page.Section{Title: "Beside other RPC libraries, over TCP", Text: []string{
		"One connection between two processes, default options, closed loop. “socket” is the bound: frames on bare sockets, without codec or multiplexing.",
	}}
	all := f.series()
	s.Charts = append(peerRatios(f.peers), append(throughput(all), percentiles(all)...)...)
	kinds := page.Table{Title: "What was measured", Left: 3, Head: []string{"kind", "version", "how"}}
	seen := map[string]bool{}
	for _, r := range f.peers.Rows {
		if !seen[r.Peer] {
			seen[r.Peer] = true
			kinds.Rows = append(kinds.Rows, []string{r.Peer, r.Version, r.Note})
		}
	}
	away := page.Table{Title: "Measured elsewhere, on another machine with two CPUs: the best of all libraries, those included that cannot be had here",
		Left: 1, Head: []string{"library", "size", "callers", "calls/s", "bound", "share of it"}}
	for _, e := range f.peers.Elsewhere {
		away.Rows = append(away.Rows, []string{e.Peer, results.FormatSize(e.Size), fmt.Sprint(e.Callers),
			fmt.Sprintf("%.0f", e.Best), fmt.Sprintf("%.0f", e.Bound), fmt.Sprintf("%.2f", e.Share())})
	}
	missed := page.Table{Title: "Ratios that do not hold", Left: 1, Head: []string{""}}
	for _, m := range f.peers.Missed {
		missed.Rows = append(missed.Rows, []string{m})
	}
	s.Tables = []page.Table{kinds, cellTable(all), away}
	if len(missed.Rows) > 0 {
		s.Tables = append(s.Tables, missed)
	}
	for i := range f.peers.Tries {
		s.Text = append(s.Text, fmt.Sprintf("Cells that missed a ratio in try %d were measured again.", i+1))
	}
	return s
}

// peerRatios shows ours in the best peer and in the bound.
func peerRatios(f *results.PeersFile) []page.Chart {
	best := page.Bars{Title: "Calls/s in those of the best peer", Y: "ratio, 1: as many", Mark: 1}
	bound := page.Bars{Title: "Calls/s in those of bare sockets", Y: "ratio, 1: as many", Mark: 1}
	lowest := page.Bars{Title: "p99 in that of the peer with the lowest", Y: "ratio, less is better", Mark: 1}
	g := newGrid()
	for _, r := range f.Compared {
		g.add(shortSize(r.Size)+"×"+fmt.Sprint(r.Callers), r.Ours, r.ToBest, r.ToBound, r.P99)
	}
	var charts []page.Chart
	for i, b := range []page.Bars{best, bound, lowest} {
		b.Groups, b.Series, b.Values = g.groups, g.series, g.values(i)
		charts = append(charts, b)
	}
	return charts
}

func connectSection(r *connectReport) page.Section {
	b := page.Bars{Title: "Dial to the reply of the first call", Y: "µs, medians", Scale: page.Log, Series: []string{"TCP, HELLO", "prepare", "peer", "RTR, RTS", "READY", "call", "total"}}
	t := page.Table{Left: 1, Head: []string{"QP", "n", "TCP, HELLO", "prepare", "peer", "RTR, RTS", "READY", "call", "total", "min", "p90"}}
	for _, row := range r.Rows {
		values := []float64{row.Hello, row.Prepare, row.Peer, row.Connect, row.Ready, row.Call, row.Total}
		b.Groups, b.Values = append(b.Groups, row.Kind), append(b.Values, values)
		cells := []string{row.Kind, fmt.Sprint(row.N)}
		for _, v := range append(values, row.Min, row.P90) {
			cells = append(cells, fmt.Sprintf("%.0f", v))
		}
		t.Rows = append(t.Rows, cells)
	}
	return page.Section{Title: "The first call", Charts: []page.Chart{b}, Tables: []page.Table{t},
		Text: []string{fmt.Sprintf("The pool is %.1f times faster than everything made on the way, %.1f times faster than QP and rings alone.", r.Gain, r.Pooled)}}
}

func failoverSection(r *failoverReport) page.Section {
	b := page.Bars{Title: "When the link dies that carries calls", Y: "µs, medians", Scale: page.Log, Series: []string{"frames leave again", "p90 of it", "first reply"}}
	t := page.Table{Left: 1, Head: []string{"", "deaths", "frames leave again µs", "p90", "first reply"}}
	for _, row := range r.Rows {
		b.Groups, b.Values = append(b.Groups, row.Kind), append(b.Values, []float64{row.Resumed, row.P90, row.Gap})
		t.Rows = append(t.Rows, []string{row.Kind, fmt.Sprint(row.N), fmt.Sprintf("%.0f", row.Resumed), fmt.Sprintf("%.0f", row.P90), fmt.Sprintf("%.0f", row.Gap)})
	}
	return page.Section{Title: "When a link dies", Charts: []page.Chart{b}, Tables: []page.Table{t},
		Text: []string{fmt.Sprintf("A standby link is %.1f times faster than a cold reconnect.", r.Gain)}}
}
