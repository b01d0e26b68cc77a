// Package load makes calls and times them, in a closed loop or at a given rate.
package load

import (
	"context"
	"runtime/metrics"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Call makes one call. Each caller has one of its own, so that it may reuse its
// messages.
type Call func(ctx context.Context) error

// Options say how calls are made. All are required but Warmup.
type Options struct {
	Callers  int
	Warmup   time.Duration // before what is measured
	Duration time.Duration // measured. Where calls are slow it goes on until as many have returned as there are callers, or ten times as long.
}

// Result is what a measurement showed.
type Result struct {
	Calls    int64   // that ended within the measured time
	AllCalls int64   // with those of the warm-up
	Unsent   int64   // that were due by the end and had not begun (Open)
	PacerP99 float64 // µs that 99 % of them were offered after they were due at most (Open)
	Seconds  float64
	Latency  Histogram
}

// Histogram counts latencies from 1 µs to 100 s at three significant digits:
// finer than the noise of any machine, and about 100 KiB.
type Histogram struct{ h *hdrhistogram.Histogram }

const (
	lowestNs  = 1_000
	highestNs = 100_000_000_000
	digits    = 3
)

// NewHistogram is an empty one.
func NewHistogram() Histogram {
	return Histogram{hdrhistogram.New(lowestNs, highestNs, digits)}
}

// Record counts d, or the nearest latency that the histogram can hold.
func (h Histogram) Record(d time.Duration) {
	_ = h.h.RecordValue(min(max(int64(d), lowestNs), highestNs))
}

// Merge adds what other has counted.
func (h Histogram) Merge(other Histogram) { h.h.Merge(other.h) }

// Count is the number of latencies.
func (h Histogram) Count() int64 { return h.h.TotalCount() }

// Quantile is the latency in µs that q percent do not exceed.
func (h Histogram) Quantile(q float64) float64 { return float64(h.h.ValueAtQuantile(q)) / 1e3 }

// MarshalText encodes h compactly, for another process.
func (h Histogram) MarshalText() ([]byte, error) {
	return h.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
}

// UnmarshalText reads what MarshalText wrote.
func (h *Histogram) UnmarshalText(text []byte) (err error) {
	h.h, err = hdrhistogram.Decode(text)
	return err
}

// Usage is what a process has used since it started.
type Usage struct {
	CPU     time.Duration `json:"cpu_ns"`  // user and system time
	Objects uint64        `json:"objects"` // allocated on the heap; tiny ones that share a block count each
}

// ReadUsage is that of this process.
func ReadUsage() Usage {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/tiny/allocs:objects"}}
	metrics.Read(sample)
	return Usage{CPU: cpuTime(), Objects: sample[0].Value.Uint64() + sample[1].Value.Uint64()}
}

// Sub is what was used since before.
func (u Usage) Sub(before Usage) Usage {
	return Usage{CPU: u.CPU - before.CPU, Objects: u.Objects - before.Objects}
}
