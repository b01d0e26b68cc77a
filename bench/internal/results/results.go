// Package results has what benchmarks write as JSON, and what reports and
// comparisons read.
package results

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/load"
)

// Benchmarks that write files; each file names its own.
const (
	Run      = "run"
	Connect  = "connect"
	Failover = "failover"
	Scale    = "scale"
	Peers    = "peers"
)

// Header opens every file.
type Header struct {
	Benchmark string    `json:"benchmark"`
	Time      time.Time `json:"time"`
	Go        string    `json:"go"`
	System    string    `json:"system"`
	CPUs      int       `json:"cpus"`
	Procs     int       `json:"procs"` // of each process
}

// NewHeader describes this machine.
func NewHeader(benchmark string) Header {
	return Header{
		Benchmark: benchmark, Time: time.Now().UTC(), Go: runtime.Version(), System: systemName(),
		CPUs: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
	}
}

// Sample is what one round of a cell showed, per call where not said otherwise.
type Sample struct {
	Calls         int64   `json:"calls"`
	CallsPerSec   float64 `json:"calls_per_second"`
	Unsent        int64   `json:"unsent,omitempty"`       // due by -rate, and not begun by the end
	PacerP99      float64 `json:"pacer_p99_us,omitempty"` // that calls were offered late, which is in their latency
	P50           float64 `json:"p50_us"`
	P99           float64 `json:"p99_us"`
	P999          float64 `json:"p999_us"`
	ClientObjects float64 `json:"client_objects_per_call"`
	ServerObjects float64 `json:"server_objects_per_call"`
	ClientCPU     float64 `json:"client_cpu_us_per_call"` // 1 µs is a second per million calls
	ServerCPU     float64 `json:"server_cpu_us_per_call"`

	ClientLinks Crossings `json:"client_links,omitzero"` // not in files of earlier versions
	ServerLinks Crossings `json:"server_links,omitzero"`
}

// Crossings are the ways into the provider of the device, and what they carried,
// per call. Over TCP they are system calls, and carry frames.
type Crossings struct {
	Posts       float64 `json:"posts"`       // that posted work requests, or writes
	Posted      float64 `json:"posted"`      // work requests, receives included, or frames
	Polls       float64 `json:"polls"`       // that brought something, or reads
	Completions float64 `json:"completions"` // or frames read
}

// PerPost is how many work requests a post carried; 0 without posts.
func (c Crossings) PerPost() float64 { return ratio(c.Posted, c.Posts) }

// PerPoll is how many completions a poll brought; 0 without polls.
func (c Crossings) PerPoll() float64 { return ratio(c.Completions, c.Polls) }

// Total is the number of crossings.
func (c Crossings) Total() float64 { return c.Posts + c.Polls }

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// NewSample puts what was measured beside what both processes used meanwhile,
// which is spread over all calls, those of the warm-up included.
func NewSample(r load.Result, client, server load.Usage) Sample {
	calls := float64(max(r.AllCalls, 1))
	return Sample{
		Calls:         r.Calls,
		CallsPerSec:   float64(r.Calls) / r.Seconds,
		Unsent:        r.Unsent,
		PacerP99:      r.PacerP99,
		P50:           r.Latency.Quantile(50),
		P99:           r.Latency.Quantile(99),
		P999:          r.Latency.Quantile(99.9),
		ClientObjects: float64(client.Objects) / calls,
		ServerObjects: float64(server.Objects) / calls,
		ClientCPU:     float64(client.CPU.Nanoseconds()) / 1e3 / calls,
		ServerCPU:     float64(server.CPU.Nanoseconds()) / 1e3 / calls,
	}
}

// CPU is that of both sides, in µs per call.
func (s *Sample) CPU() float64 { return s.ClientCPU + s.ServerCPU }

// Middle is the median of at least one value.
func Middle(values []float64) float64 { return Quantile(values, 0.5) }

// Quantile is the least of at least one value such that a share of q, from 0 to 1,
// does not exceed it; the mean of two where that is true of all between them.
func Quantile(values []float64, q float64) float64 {
	values = slices.Sorted(slices.Values(values))
	whole, part := math.Modf(q * float64(len(values)))
	i := min(int(whole), len(values)-1)
	if part == 0 && i > 0 && q < 1 {
		return (values[i-1] + values[i]) / 2
	}
	return values[i]
}

// Median takes the median of every figure over the rounds of a cell, and the
// sum of the calls.
func Median(samples []Sample) Sample {
	mid := func(field func(*Sample) float64) float64 {
		values := make([]float64, len(samples))
		for i := range samples {
			values[i] = field(&samples[i])
		}
		return Middle(values)
	}
	links := func(of func(*Sample) *Crossings) Crossings {
		return Crossings{
			Posts:       mid(func(s *Sample) float64 { return of(s).Posts }),
			Posted:      mid(func(s *Sample) float64 { return of(s).Posted }),
			Polls:       mid(func(s *Sample) float64 { return of(s).Polls }),
			Completions: mid(func(s *Sample) float64 { return of(s).Completions }),
		}
	}
	m := Sample{
		CallsPerSec:   mid(func(s *Sample) float64 { return s.CallsPerSec }),
		PacerP99:      mid(func(s *Sample) float64 { return s.PacerP99 }),
		P50:           mid(func(s *Sample) float64 { return s.P50 }),
		P99:           mid(func(s *Sample) float64 { return s.P99 }),
		P999:          mid(func(s *Sample) float64 { return s.P999 }),
		ClientObjects: mid(func(s *Sample) float64 { return s.ClientObjects }),
		ServerObjects: mid(func(s *Sample) float64 { return s.ServerObjects }),
		ClientCPU:     mid(func(s *Sample) float64 { return s.ClientCPU }),
		ServerCPU:     mid(func(s *Sample) float64 { return s.ServerCPU }),
		ClientLinks:   links(func(s *Sample) *Crossings { return &s.ClientLinks }),
		ServerLinks:   links(func(s *Sample) *Crossings { return &s.ServerLinks }),
	}
	for _, s := range samples {
		m.Calls += s.Calls
		m.Unsent += s.Unsent
	}
	return m
}

// Cell is what all rounds showed of one combination of size, callers and rate:
// medians, the rounds themselves, and the latencies of all rounds together.
type Cell struct {
	Size    int      `json:"size_bytes"`
	Callers int      `json:"callers"`
	Rate    int      `json:"rate,omitempty"` // calls/s that were due; 0: a closed loop
	Rounds  int      `json:"rounds"`
	Sample           // medians
	Samples []Sample `json:"samples"`
	Latency []Point  `json:"latency"`
}

// NewCell needs at least one sample.
func NewCell(size, callers, rate int, samples []Sample, latency load.Histogram) Cell {
	c := Cell{Size: size, Callers: callers, Rate: rate, Rounds: len(samples), Sample: Median(samples), Samples: samples}
	for _, percent := range []float64{0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 99.95, 99.99, 100} {
		c.Latency = append(c.Latency, Point{percent, latency.Quantile(percent)})
	}
	return c
}

// Point of a latency distribution.
type Point struct {
	Percent float64 `json:"percent"` // of the calls …
	Us      float64 `json:"us"`      // … took at most this long
}

// Write writes v, which has a Header, as JSON to the file at path.
func Write(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// FormatSize names a number of bytes, for tables.
func FormatSize(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
