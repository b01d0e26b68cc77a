package main

import (
	"fmt"
	"io"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// sumCost is what checksums cost on this machine, on either side of a frame.
type sumCost struct {
	Header  float64 `json:"header_ns"`          // XXH64 of a header, always there
	Payload float64 `json:"payload_ns_per_kib"` // XXH64 of a payload, with -payload-sum
}

// measureSums takes the fastest of several short runs: what is added by others
// on the machine only makes it slower.
func measureSums() sumCost {
	header, payload := make([]byte, wire.HeaderSize-wire.SumSize), make([]byte, 64<<10)
	return sumCost{
		Header:  fastest(1000, func() { wire.PayloadSum(header) }),
		Payload: fastest(20, func() { wire.PayloadSum(payload) }) / float64(len(payload)>>10),
	}
}

// fastest is the time of one call of fn in ns.
func fastest(calls int, fn func()) float64 {
	best := time.Duration(1<<63 - 1)
	for range 9 {
		start := time.Now()
		for range calls {
			fn()
		}
		best = min(best, time.Since(start))
	}
	return float64(best) / float64(calls)
}

func (c sumCost) write(w io.Writer) {
	fmt.Fprintf(w, "checksums here, per frame and side: header %.0f ns (always), payload %.0f ns per KiB (with -payload-sum)\n", c.Header, c.Payload)
}
