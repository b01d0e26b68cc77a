package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/page"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// scaleReport is what -json of bench scale writes.
type scaleReport struct {
	results.Header
	Callers int        `json:"callers"`
	Size    int        `json:"size_bytes"`
	NoRDMA  string     `json:"no_rdma,omitempty"` // why it was not measured
	Rows    []scaleRow `json:"rows"`
}

// scaleRow is one number of connections. What is held is that of all of them
// together, beyond what a process holds with one that asks.
type scaleRow struct {
	Link        string    `json:"link"` // and how completions are awaited
	Connections int       `json:"connections"`
	Server      load.Held `json:"server"`
	Client      load.Held `json:"client"`
	ServerCPU   float64   `json:"server_cpu_at_rest"` // share of a core
	ClientCPU   float64   `json:"client_cpu_at_rest"`
	CallsPerSec float64   `json:"calls_per_second"`
	P50         float64   `json:"p50_us"`
	P99         float64   `json:"p99_us"`
}

// each is what one connection holds.
func (r *scaleRow) each(of int64) float64 { return float64(of) / float64(r.Connections) }

var scaleHead = []string{"link", "connections", "heap KiB", "stacks KiB", "pinned KiB", "resident KiB", "goroutines", "files",
	"CPU at rest %", "calls/s", "p50 µs", "p99 µs"}

// cells are those of scaleHead; per connection and server + client where a
// process holds something.
func (r *scaleRow) cells() []string {
	pair := func(digits int, unit int64, field func(*load.Held) int64) string {
		return fmt.Sprintf("%.*f + %.*f", digits, r.each(field(&r.Server))/float64(unit), digits, r.each(field(&r.Client))/float64(unit))
	}
	return []string{
		r.Link, fmt.Sprint(r.Connections),
		pair(1, 1<<10, func(h *load.Held) int64 { return h.Heap }),
		pair(1, 1<<10, func(h *load.Held) int64 { return h.Stacks }),
		pair(0, 1<<10, func(h *load.Held) int64 { return h.Pinned }),
		pair(0, 1<<10, func(h *load.Held) int64 { return h.Resident }),
		pair(1, 1, func(h *load.Held) int64 { return h.Goroutines }),
		pair(1, 1, func(h *load.Held) int64 { return h.Files }),
		fmt.Sprintf("%.2f + %.2f", 100*r.ServerCPU, 100*r.ClientCPU),
		fmt.Sprintf("%.0f", r.CallsPerSec), fmt.Sprintf("%.0f", r.P50), fmt.Sprintf("%.0f", r.P99),
	}
}

func (r *scaleReport) title() string {
	return fmt.Sprintf("what each connection holds, server + client; CPU of each process at rest; %d calls of %s under way, spread over all",
		r.Callers, results.FormatSize(r.Size))
}

func (r *scaleReport) write(w io.Writer) error {
	fmt.Fprintf(w, "\nScale: %s, %s, %d CPUs, GOMAXPROCS %d\n\n", r.title(), r.System, r.CPUs, r.Procs)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprint(t, c, "\t")
		}
		fmt.Fprintln(t)
	}
	line(scaleHead)
	for _, row := range r.Rows {
		line(row.cells())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.NoRDMA != "" {
		fmt.Fprintln(w, "\nrdma was not measured:", r.NoRDMA)
	}
	return nil
}

func scaleSection(r *scaleReport) page.Section {
	t := page.Table{Title: r.title(), Left: 1, Head: scaleHead}
	for _, row := range r.Rows {
		t.Rows = append(t.Rows, row.cells())
	}
	s := page.Section{Title: "Many connections", Tables: []page.Table{t}}
	if r.NoRDMA != "" {
		s.Text = []string{"RDMA was not measured: " + r.NoRDMA + "."}
	}
	return s
}
