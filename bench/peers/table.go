package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// writeTables prints every cell, then what the cells show of ours.
func writeTables(w io.Writer, f *results.PeersFile) error {
	fmt.Fprintf(w, "\nEcho calls over TCP (loopback), %s, %d CPUs, %s, GOMAXPROCS %d, one connection, closed loop, medians of %d rounds\n\n",
		f.System, f.CPUs, f.Go, f.Procs, f.Rows[0].Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "size\tcallers\tkind\tcalls/s\tp50 µs\tp99 µs\tCPU s/M calls c+s\tobjects c+s\tof best peer\tof the bound\t")
	for _, c := range f.Rows {
		fmt.Fprintf(t, "%s\t%d\t%s\t%.0f\t%.1f\t%.1f\t%.1f + %.1f\t%.1f + %.1f\t%s\t%s\t\n",
			results.FormatSize(c.Size), c.Callers, c.Peer, c.CallsPerSec, c.P50, c.P99, c.ClientCPU, c.ServerCPU,
			c.ClientObjects, c.ServerObjects, ratio(c.CallsPerSec, best(f, c)), ratio(c.CallsPerSec, callsPerSec(f.Find(nameBound, c.Size, c.Callers))))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	writeKinds(w, f)
	if len(f.Compared) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\nOurs, in ratios of this run; elsewhere: the best library measured on another machine with two CPUs, to the bound there\n\n")
	fmt.Fprintln(t, "size\tcallers\tours\tbest peer\tcalls/s to it\tp99 to the lowest\tto the bound\telsewhere\t")
	for _, r := range f.Compared {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			results.FormatSize(r.Size), r.Callers, r.Ours, cmp.Or(r.Best, "-"), ratio(r.ToBest, 1), ratio(r.P99, 1), ratio(r.ToBound, 1), elsewhereShare(r.Size, r.Callers))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, try := range f.Tries {
		fmt.Fprintln(w, "\n"+try)
	}
	return nil
}

// writeKinds says once what each kind is.
func writeKinds(w io.Writer, f *results.PeersFile) {
	fmt.Fprintln(w)
	seen := map[string]bool{}
	for _, r := range f.Rows {
		if !seen[r.Peer] {
			seen[r.Peer] = true
			fmt.Fprintf(w, "%s %s: %s\n", r.Peer, r.Version, r.Note)
		}
	}
}

// best is the most calls/s that a peer made in the cell of c.
func best(f *results.PeersFile, c results.PeerRow) (most float64) {
	for _, r := range f.Rows {
		if r.Role == results.RolePeer && r.Size == c.Size && r.Callers == c.Callers {
			most = max(most, r.CallsPerSec)
		}
	}
	return most
}

func callsPerSec(r *results.PeerRow) float64 {
	if r == nil {
		return 0
	}
	return r.CallsPerSec
}

// ratio of a to b, "-" where one was not measured.
func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", a/b)
}

func elsewhereShare(size, callers int) string {
	for _, e := range elsewhere {
		if e.Size == size && e.Callers == callers {
			return fmt.Sprintf("%.2f %s", e.Share(), e.Peer)
		}
	}
	return "-"
}
