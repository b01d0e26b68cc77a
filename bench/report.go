package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// report is everything a run has found; it is what -json writes.
type report struct {
	results.Header
	Poll     string    `json:"poll"`
	Sums     sumCost   `json:"checksums"`
	Rows     []row     `json:"rows"`
	Perftest *perftest `json:"perftest,omitempty"`
	NoPeer   string    `json:"no_perftest,omitempty"` // why perftest did not run

	Libfabric   *libfabric `json:"libfabric,omitempty"`
	NoLibfabric string     `json:"no_libfabric,omitempty"` // why that did not run
}

func newReport(s settings) *report {
	return &report{Header: results.NewHeader(results.Run), Poll: cmp.Or(s.poll, "adaptive"), Sums: measureSums()}
}

// row is one cell of the table.
type row struct {
	Transport string `json:"transport"` // the link that really carried the calls
	Reason    string `json:"reason,omitempty"`
	Device    string `json:"device,omitempty"`
	MTU       int    `json:"mtu,omitempty"`
	Codec     string `json:"codec"`
	results.Cell
}

// find looks for a cell of a closed loop.
func (r *report) find(transport string, size, callers int) *row {
	for i := range r.Rows {
		c := &r.Rows[i]
		if c.Transport == transport && c.Size == size && c.Callers == callers && c.Rate == 0 {
			return c
		}
	}
	return nil
}

// others lets the programs of others measure once. One that fails is left out
// from then on, and the report says why.
func (r *report) others(ctx context.Context, ends peers) {
	if r.Perftest != nil {
		if err := r.Perftest.round(ctx, ends); err != nil {
			r.Perftest, r.NoPeer = nil, err.Error()
		}
	}
	if r.Libfabric != nil {
		if err := r.Libfabric.round(ctx, ends); err != nil {
			r.Libfabric, r.NoLibfabric = nil, err.Error()
		}
	}
}

// writeTable prints the cells, then what other programs showed and the ratios
// to it.
func (r *report) writeTable(w io.Writer) error {
	slices.SortStableFunc(r.Rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Callers, b.Callers),
			cmp.Compare(a.Rate, b.Rate), cmp.Compare(a.Transport, b.Transport))
	})
	fmt.Fprintf(w, "\nEcho calls (%s), %s, %d CPUs, %s, GOMAXPROCS %d, polling: %s\n\n",
		strings.Join(r.codecs(), ", "), r.System, r.CPUs, r.Go, r.Procs, r.Poll)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "size\tcallers\trate\tunsent\tpacer µs\tlink\tcalls/s\tp50 µs\tp99 µs\tp99.9 µs\tobjects c+s\tCPU µs c+s\tWR/post c+s\tWC/poll c+s\tcrossings c+s\t")
	for _, c := range r.Rows {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f + %.1f\t%.1f + %.1f\t%.1f + %.1f\t%.1f + %.1f\t%.2f + %.2f\t\n",
			results.FormatSize(c.Size), c.Callers, rate(c.Rate), unsent(&c.Cell), pacer(&c.Cell), c.Transport, c.CallsPerSec, c.P50, c.P99, c.P999,
			c.ClientObjects, c.ServerObjects, c.ClientCPU, c.ServerCPU,
			c.ClientLinks.PerPost(), c.ServerLinks.PerPost(), c.ClientLinks.PerPoll(), c.ServerLinks.PerPoll(),
			c.ClientLinks.Total(), c.ServerLinks.Total())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	r.writeLinks(w)
	r.Sums.write(w)
	r.writePerftest(w)
	r.writeLibfabric(w)
	return nil
}

// rate is what a row says of its load.
func rate(callsPerSec int) string {
	if callsPerSec == 0 {
		return "closed"
	}
	return fmt.Sprintf("%d/s", callsPerSec)
}

// unsent is that of all rounds; a closed loop has none.
func unsent(c *results.Cell) string {
	if c.Rate == 0 {
		return "-"
	}
	return fmt.Sprint(c.Unsent)
}

// pacer is how late it was, where there was one.
func pacer(c *results.Cell) string {
	if c.Rate == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", c.PacerP99)
}

func (r *report) codecs() []string {
	var names []string
	for _, c := range r.Rows {
		if !slices.Contains(names, c.Codec) {
			names = append(names, c.Codec)
		}
	}
	return names
}

// writeLinks says once for each transport what carried the calls and why.
func (r *report) writeLinks(w io.Writer) {
	seen := map[string]bool{}
	fmt.Fprintln(w)
	for _, c := range r.Rows {
		line := "link " + c.Transport
		if c.Device != "" {
			line += fmt.Sprintf(": %s, path MTU %d", c.Device, c.MTU)
		}
		if c.Reason != "" {
			line += ": not rdma: " + c.Reason
		}
		if !seen[line] {
			seen[line] = true
			fmt.Fprintln(w, line)
		}
	}
}

func (r *report) writePerftest(w io.Writer) {
	if r.Perftest == nil {
		fmt.Fprintf(w, "perftest: not run: %s\n", cmp.Or(r.NoPeer, "no reason known"))
		return
	}
	p := r.Perftest
	fmt.Fprintf(w, "perftest in the same run (%d B): ib_send_lat %.1f µs (a round trip is %.1f), ib_send_bw %.0f messages/s\n",
		perftestSize, p.SendLat, 2*p.SendLat, p.SendRate)
	for _, c := range r.Rows {
		if c.Size != perftestSize || c.Transport != "rdma" || c.Rate != 0 {
			continue
		}
		fmt.Fprintf(w, "  %3d callers: p50 is %.2f round trips of ib_send_lat; %.2f of ib_send_bw's messages (a call is two)\n",
			c.Callers, c.P50/(2*p.SendLat), 2*c.CallsPerSec/p.SendRate)
	}
}

func (r *report) writeLibfabric(w io.Writer) {
	if r.Libfabric == nil {
		fmt.Fprintf(w, "libfabric: not run: %s\n", cmp.Or(r.NoLibfabric, "no reason known"))
		return
	}
	fmt.Fprintf(w, "libfabric in the same run (%d B): fi_pingpong %.1f µs per transfer (a round trip is %.1f), a mean\n",
		perftestSize, r.Libfabric.Pingpong, r.Libfabric.roundTrip())
	if c := r.find("rdma", perftestSize, 1); c != nil {
		fmt.Fprintf(w, "    1 caller: p50 is %.2f round trips of fi_pingpong; its mean, %.1f µs, is %.2f of them\n",
			c.P50/r.Libfabric.roundTrip(), c.mean(), c.mean()/r.Libfabric.roundTrip())
	}
}

// mean time of a call in µs, of a lone caller in a closed loop.
func (c *row) mean() float64 { return 1e6 / c.CallsPerSec }

// Floors that -check holds, in the same run: see docs/benchmarks.md.
const (
	maxLatencyRatio = 3.0 // p50 of one caller in round trips of ib_send_lat
	minRateRatio    = 0.5 // messages/s of 64 callers in those of ib_send_bw
	maxObjects      = 4.0 // heap objects per call and side
)

// check names each floor that the run did not reach.
func (r *report) check() []string {
	if r.Perftest == nil {
		return []string{"perftest did not run: " + r.NoPeer}
	}
	var short []string
	if c := r.find("rdma", perftestSize, 1); c == nil {
		short = append(short, "no cell of one caller over rdma")
	} else if ratio := c.P50 / (2 * r.Perftest.SendLat); ratio > maxLatencyRatio {
		short = append(short, fmt.Sprintf("p50 of one caller is %.2f round trips of ib_send_lat, at most %.1f expected", ratio, maxLatencyRatio))
	}
	if c := r.find("rdma", perftestSize, 64); c == nil {
		short = append(short, "no cell of 64 callers over rdma")
	} else if ratio := 2 * c.CallsPerSec / r.Perftest.SendRate; ratio < minRateRatio {
		short = append(short, fmt.Sprintf("64 callers send %.2f of ib_send_bw's messages, at least %.1f expected", ratio, minRateRatio))
	}
	for _, c := range r.Rows {
		if c.Size == perftestSize && c.Rate == 0 && (c.ClientObjects > maxObjects || c.ServerObjects > maxObjects) {
			short = append(short, fmt.Sprintf("%s with %d callers allocates %.1f + %.1f objects per call, at most %.0f on each side expected",
				c.Transport, c.Callers, c.ClientObjects, c.ServerObjects, maxObjects))
		}
	}
	return short
}
