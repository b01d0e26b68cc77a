package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Report is what a run has seen.
type Report struct {
	Seed     uint64
	Kernel   string
	Took     time.Duration
	Baseline int           // times that what is held was back where it began
	Overrun  time.Duration // the longest that a call ended after its deadline
	Rows     []*Row
	Faults   []string // violations
}

// Row is a kind of fault.
type Row struct {
	Fault    string
	Survives bool // both processes live, and no call may fail
	Injected int
	Counts
	Recovery time.Duration // the longest from the end of a fault until calls are back on RDMA
	Limit    time.Duration // of Recovery
}

// Add adds one fault to its row.
func (r *Row) Add(c Counts, recovery time.Duration) {
	r.Injected++
	r.Calls += c.Calls
	r.OK += c.OK
	r.Failed += c.Failed
	r.Wrong += c.Wrong
	r.Hung += c.Hung
	r.Twice += c.Twice
	r.Recovery = max(r.Recovery, recovery)
}

// total sums up all rows.
func (r *Report) total() Row {
	sum := Row{Fault: "**all**"}
	for _, row := range r.Rows {
		n := sum.Injected
		sum.Add(row.Counts, row.Recovery)
		sum.Injected = n + row.Injected
	}
	return sum
}

// Markdown writes the table.
func (r *Report) Markdown(w io.Writer) error {
	sum := r.total()
	_, err := fmt.Fprintf(w, "%d faults in %v, seed %d, Linux %s, %d violations; back to the baseline %d times; no call ended more than %v after its deadline\n\n",
		sum.Injected, r.Took.Round(time.Second), r.Seed, r.Kernel, len(r.Faults), r.Baseline, max(0, r.Overrun).Round(time.Millisecond))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(w, "| fault | injected | calls | failed | wrong results | hung calls | executed twice | worst recovery |\n|---|--:|--:|--:|--:|--:|--:|--:|\n"); err != nil {
		return err
	}
	for _, row := range append(r.Rows, &sum) {
		if row.Injected == 0 {
			continue
		}
		_, err := fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %d | %.2f s |\n",
			row.Fault, row.Injected, row.Calls, row.Failed, row.Wrong, row.Hung, row.Twice, row.Recovery.Seconds())
		if err != nil {
			return err
		}
	}
	for _, f := range r.Faults {
		if _, err := fmt.Fprintf(w, "\nviolation: %s\n", f); err != nil {
			return err
		}
	}
	return nil
}

// JSON writes the report for programs. Times are in nanoseconds.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
