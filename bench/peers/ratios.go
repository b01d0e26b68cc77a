package main

import (
	"fmt"
	"math"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// elsewhere has what was measured on another machine with two CPUs, alike,
// before the module proxy refused arpc, gorpc, kitex and rpcx: one connection,
// two processes, medians of interleaved rounds.
var elsewhere = []results.ElsewhereCell{
	{Size: 64, Callers: 1, Bound: 25_700, Best: 9_500, Peer: "arpc"},
	{Size: 64, Callers: 16, Bound: 141_000, Best: 59_200, Peer: "gorpc"},
	{Size: 64, Callers: 256, Bound: 609_000, Best: 109_000, Peer: "gorpc"},
	{Size: 4 << 10, Callers: 1, Bound: 26_400, Best: 8_900, Peer: "best of all"},
	{Size: 4 << 10, Callers: 16, Bound: 97_100, Best: 24_200, Peer: "best of all"},
	{Size: 4 << 10, Callers: 256, Bound: 182_000, Best: 40_100, Peer: "best of all"},
	{Size: 64 << 10, Callers: 1, Bound: 14_100, Best: 2_450, Peer: "best of all"},
	{Size: 64 << 10, Callers: 16, Bound: 15_100, Best: 5_020, Peer: "best of all"},
	{Size: 64 << 10, Callers: 256, Bound: 13_400, Best: 7_850, Peer: "best of all"},
	{Size: 1 << 20, Callers: 1, Bound: 1_850, Best: 335, Peer: "best of all"},
	{Size: 1 << 20, Callers: 16, Bound: 1_600, Best: 660, Peer: "best of all"},
	{Size: 1 << 20, Callers: 256, Bound: 1_400, Best: 722, Peer: "best of all"},
}

// Ratios that -check holds, in the same run: see docs/benchmarks.md.
const (
	clearLead      = 1.5         // calls/s to the best peer …
	clearLeadCells = 10.0 / 12.0 // … in this share of the cells
	cpuOfGRPC      = 0.25        // CPU per call, both sides
	rawLone        = 0.85        // of the bound, one caller
	rawSmall       = 0.5         // 64 B and 4 KiB, more callers
	rawLarge       = 0.85        // 64 KiB and more, more callers
	protoWhereHigh = 0.6         // protobuf, whose decoding copies, where raw has 0.85
	smallest       = 64          // bytes of the cells without allocations
	protoObjects   = 2.1         // per call and side: what protobuf's decoding makes, and a tenth for the rest of the process
	rawObjects     = 0.1
)

// checkRatios names each ratio that does not hold, and the cells to measure again.
func checkRatios(f *results.PeersFile) (missed []string, again []cellKey) {
	var measured, clear int
	var near []cellKey // nothing missed, but not clearly ahead
	for _, e := range elsewhere {
		c := newCellCheck(f, e)
		if c == nil {
			continue
		}
		measured++
		c.peers(e)
		c.bound()
		c.objects()
		isClear := c.protoRatios.ToBest >= clearLead
		if isClear {
			clear++
		}
		switch key := (cellKey{e.Size, e.Callers}); {
		case len(c.missed) > 0:
			missed, again = append(missed, c.missed...), append(again, key)
		case !isClear:
			near = append(near, key)
		}
	}
	if measured == 0 {
		return []string{fmt.Sprintf("no cell of the table has all of %s, %s, %s, %s", nameBound, nameProto, nameRaw, nameGRPC)}, nil
	}
	if float64(clear) < clearLeadCells*float64(measured) {
		missed = append(missed, fmt.Sprintf("%d of %d cells have %.1f times the calls/s of the best peer, expected %.0f",
			clear, measured, clearLead, math.Ceil(clearLeadCells*float64(measured))))
		again = append(again, near...)
	}
	return missed, again
}

// cellCheck collects what one cell missed.
type cellCheck struct {
	proto, raw, grpc       *results.PeerRow
	protoRatios, rawRatios results.PeerRatios
	missed                 []string
}

// newCellCheck is nil where the cell was not measured.
func newCellCheck(f *results.PeersFile, e results.ElsewhereCell) *cellCheck {
	c := &cellCheck{
		proto: f.Find(nameProto, e.Size, e.Callers),
		raw:   f.Find(nameRaw, e.Size, e.Callers),
		grpc:  f.Find(nameGRPC, e.Size, e.Callers),
	}
	if c.proto == nil || c.raw == nil || c.grpc == nil || f.Find(nameBound, e.Size, e.Callers) == nil {
		return nil
	}
	for _, r := range f.Compared {
		if r.Size == e.Size && r.Callers == e.Callers {
			switch r.Ours {
			case nameProto:
				c.protoRatios = r
			case nameRaw:
				c.rawRatios = r
			}
		}
	}
	return c
}

func (c *cellCheck) miss(format string, args ...any) {
	cell := fmt.Sprintf("%s, %d callers: ", results.FormatSize(c.proto.Size), c.proto.Callers)
	c.missed = append(c.missed, cell+fmt.Sprintf(format, args...))
}

// peers holds protobuf stubs against other libraries.
func (c *cellCheck) peers(e results.ElsewhereCell) {
	r := c.protoRatios
	if r.ToBest <= 1 {
		c.miss("%.2f of the calls/s of %s, expected more than 1", r.ToBest, r.Best)
	}
	if r.ToBound <= e.Share() {
		c.miss("%.2f of the bound, expected more than the %.2f that %s had elsewhere", r.ToBound, e.Share(), e.Peer)
	}
	if r.P99 > 1 {
		c.miss("p99 is %.2f of the lowest of a peer, expected at most 1", r.P99)
	}
	if cpu := c.proto.CPU() / c.grpc.CPU(); cpu > cpuOfGRPC {
		c.miss("CPU per call is %.2f of grpc's, expected at most %.2f", cpu, cpuOfGRPC)
	}
}

// bound holds both codecs against what the sockets allow.
func (c *cellCheck) bound() {
	raw := rawLarge
	switch {
	case c.raw.Callers == 1:
		raw = rawLone
	case c.raw.Size < 64<<10:
		raw = rawSmall
	}
	if c.rawRatios.ToBound < raw {
		c.miss("the raw codec has %.2f of the bound, expected %.2f", c.rawRatios.ToBound, raw)
	}
	if raw > protoWhereHigh && c.protoRatios.ToBound < protoWhereHigh {
		c.miss("protobuf has %.2f of the bound, expected %.2f", c.protoRatios.ToBound, protoWhereHigh)
	}
}

// objects holds the framework to no allocations.
func (c *cellCheck) objects() {
	if c.proto.Size != smallest {
		return
	}
	for _, side := range []struct {
		row  *results.PeerRow
		most float64
	}{{c.proto, protoObjects}, {c.raw, rawObjects}} {
		if most := max(side.row.ClientObjects, side.row.ServerObjects); most > side.most {
			c.miss("%s allocates %.2f objects per call on one side, expected at most %.1f", side.row.Peer, most, side.most)
		}
	}
}
