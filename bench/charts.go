package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-rpc/verbena/bench/internal/page"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// grid collects values by group and series, both in the order of their first
// appearance.
type grid struct {
	groups, series []string
	cells          map[[2]string][]float64
}

func newGrid() *grid { return &grid{cells: map[[2]string][]float64{}} }

func (g *grid) add(group, series string, values ...float64) {
	if !slices.Contains(g.groups, group) {
		g.groups = append(g.groups, group)
	}
	if !slices.Contains(g.series, series) {
		g.series = append(g.series, series)
	}
	g.cells[[2]string{group, series}] = values
}

// values has value i of each, 0 where there is none.
func (g *grid) values(i int) [][]float64 {
	var rows [][]float64
	for _, group := range g.groups {
		row := make([]float64, len(g.series))
		for s, name := range g.series {
			if v := g.cells[[2]string{group, name}]; len(v) > i {
				row[s] = v[i]
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// throughput has a chart for each size: calls/s by callers.
func throughput(all []series) (charts []page.Chart) {
	for _, size := range distinct(all, func(s series) int { return s.Size }) {
		g := newGrid()
		for _, s := range all {
			if s.Size == size && s.Rate == 0 {
				g.add(fmt.Sprintf("%d callers", s.Callers), s.name, s.CallsPerSec)
			}
		}
		if len(g.groups) > 0 {
			charts = append(charts, page.Bars{Title: results.FormatSize(size) + ": throughput", Y: "calls/s", Scale: page.Log,
				Groups: g.groups, Series: g.series, Values: g.values(0)})
		}
	}
	return charts
}

// sweeps has a chart for each size and number of callers that were measured at
// several rates: latency against throughput.
func sweeps(all []series) (charts []page.Chart) {
	for _, size := range distinct(all, func(s series) int { return s.Size }) {
		for _, callers := range distinct(all, func(s series) int { return s.Callers }) {
			points := map[string][][2]float64{}
			var names []string
			for _, s := range all {
				if s.Size != size || s.Callers != callers || s.Rate == 0 {
					continue
				}
				for name, v := range map[string]float64{s.name + ", p50": s.P50, s.name + ", p99": s.P99} {
					points[name] = append(points[name], [2]float64{s.CallsPerSec, v})
					names = append(names, name)
				}
			}
			if len(names) == 0 {
				continue
			}
			l := page.Lines{Title: fmt.Sprintf("%s: latency at a given rate, %d callers", results.FormatSize(size), callers),
				X: "calls/s", Y: "µs since a call was due", ScaleY: page.Log}
			slices.Sort(names)
			for _, name := range slices.Compact(names) {
				l.Series = append(l.Series, page.Series{Name: name, Points: points[name]})
			}
			charts = append(charts, l)
		}
	}
	return charts
}

// percentiles has a chart for each size and number of callers: the latencies
// of all rounds.
func percentiles(all []series) (charts []page.Chart) {
	for _, size := range distinct(all, func(s series) int { return s.Size }) {
		for _, callers := range distinct(all, func(s series) int { return s.Callers }) {
			l := page.Lines{Title: fmt.Sprintf("%s: latency, %d callers", results.FormatSize(size), callers),
				X: "percent of the calls", Y: "took at most, µs", ScaleX: page.Nines, ScaleY: page.Log}
			for _, s := range all {
				if s.Size != size || s.Callers != callers || s.Rate != 0 {
					continue
				}
				var points [][2]float64
				for _, p := range s.Latency {
					points = append(points, [2]float64{p.Percent, p.Us})
				}
				l.Series = append(l.Series, page.Series{Name: s.name, Points: points})
			}
			if len(l.Series) > 0 {
				charts = append(charts, l)
			}
		}
	}
	return charts
}

// cellTable has all figures.
func cellTable(all []series) page.Table {
	t := page.Table{Title: "All cells", Left: 1, Head: []string{
		"", "size", "callers", "load", "unsent", "pacer µs", "rounds", "calls/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs client", "server", "objects client", "server",
	}}
	for _, s := range all {
		row := []string{s.name, results.FormatSize(s.Size), fmt.Sprint(s.Callers), rate(s.Rate), unsent(&s.Cell), pacer(&s.Cell), fmt.Sprint(s.Rounds), fmt.Sprintf("%.0f", s.CallsPerSec)}
		for _, v := range []float64{s.P50, s.P99, s.P999, s.ClientCPU, s.ServerCPU, s.ClientObjects, s.ServerObjects} {
			row = append(row, fmt.Sprintf("%.1f", v))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// crossingTable has the cells whose crossings were counted: no table if there
// are none.
func crossingTable(all []series) []page.Table {
	t := page.Table{Title: "Crossings into the provider, per call, and what each carried (over TCP: system calls, and frames)", Left: 1, Head: []string{
		"", "size", "callers", "load", "crossings client", "server", "WR per post client", "server", "WC per poll client", "server",
	}}
	for _, s := range all {
		c, srv := s.ClientLinks, s.ServerLinks
		if c.Total()+srv.Total() == 0 {
			continue
		}
		row := []string{s.name, results.FormatSize(s.Size), fmt.Sprint(s.Callers), rate(s.Rate)}
		for _, v := range []float64{c.Total(), srv.Total(), c.PerPost(), srv.PerPost(), c.PerPoll(), srv.PerPoll()} {
			row = append(row, fmt.Sprintf("%.2f", v))
		}
		t.Rows = append(t.Rows, row)
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return []page.Table{t}
}

// distinct values of field, in ascending order.
func distinct(all []series, field func(series) int) (values []int) {
	for _, s := range all {
		values = append(values, field(s))
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// shortSize is for labels below many bars.
func shortSize(n int) string {
	return strings.NewReplacer(" ", "", "iB", "", "B", "").Replace(results.FormatSize(n))
}
