package main

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// settings are the flags that server, client and run share. Zero values leave
// the choice to the library.
type settings struct {
	transport string // "auto", "rdma", "tcp"
	device    string
	provider  string // "auto", "libibverbs", "uverbs"
	port      int
	gidIndex  int
	mtu       int
	poll      string
	sqDepth   int
	rqDepth   int
	slot      int
	dedicated int
	sum       bool
	pool      string // "warm", "none", "cold"
	procs     int
	profile   string
}

func (s *settings) register(fs *flag.FlagSet) {
	fs.StringVar(&s.transport, "transport", "auto", "`kind` of link: auto (rdma, or tcp with the reason), rdma (or fail), tcp")
	fs.StringVar(&s.device, "device", "", "RDMA device; default: the one that has the connection's local address")
	fs.StringVar(&s.provider, "provider", "auto", "what drives the device: libibverbs (any device), uverbs (the kernel itself, rdma_rxe alone), or auto (whichever suits the device)")
	fs.IntVar(&s.port, "port", 0, "port of the device; default: the one that has the address")
	fs.IntVar(&s.gidIndex, "gid-index", -1, "GID index; default: RoCE v2 of the connection's local address")
	fs.IntVar(&s.mtu, "mtu", 0, "largest path MTU in bytes: 256 to 4096; default: the smaller of both sides")
	fs.StringVar(&s.poll, "poll", "", "completion polling: busy, events, or a spin `duration` before sleeping; default: the library's")
	fs.IntVar(&s.sqDepth, "sq-depth", 0, "send queue slots; default: the library's")
	fs.IntVar(&s.rqDepth, "rq-depth", 0, "receive queue slots; default: the library's")
	fs.IntVar(&s.slot, "slot", 0, "bytes of a slot; default: the library's")
	fs.IntVar(&s.dedicated, "dedicated", 0, "QPs of a device with slots of their own, the others share theirs; -1: none; default: the library's")
	fs.BoolVar(&s.sum, "payload-sum", false, "checksum payloads as well as headers")
	fs.StringVar(&s.pool, "pool", "warm", "QPs: warm (from the pool), none (made with their rings for each link), cold (device, CQ, QP and rings for each link)")
	fs.IntVar(&s.procs, "procs", 0, "CPUs of each process (GOMAXPROCS); default: all, or half of them when both processes are here")
	fs.StringVar(&s.profile, "cpuprofile", "", "write a CPU profile to this `file`; a server that run starts adds \".server\"")
}

// args are the flags that give s, for a child process.
func (s *settings) args() []string {
	return []string{
		"-transport", s.transport, "-device", s.device, "-provider", s.provider, "-port", strconv.Itoa(s.port),
		"-gid-index", strconv.Itoa(s.gidIndex), "-mtu", strconv.Itoa(s.mtu), "-poll", s.poll,
		"-sq-depth", strconv.Itoa(s.sqDepth), "-rq-depth", strconv.Itoa(s.rqDepth),
		"-slot", strconv.Itoa(s.slot), "-dedicated", strconv.Itoa(s.dedicated), "-payload-sum=" + strconv.FormatBool(s.sum),
		"-pool", s.pool, "-procs", strconv.Itoa(s.procs), "-cpuprofile", s.profile,
	}
}

func (s *settings) validate() error {
	if s.procs < 0 {
		return fmt.Errorf("-procs is %d, expected at least 1, or 0 for the default", s.procs)
	}
	if s.pool != "warm" && s.pool != "none" && s.pool != "cold" {
		return fmt.Errorf("-pool is %q, expected warm, none or cold", s.pool)
	}
	switch s.transport {
	case "auto", "rdma", "tcp":
		_, err := s.rdma()
		return err
	}
	return fmt.Errorf("-transport is %q, expected auto, rdma or tcp", s.transport)
}

// workload is what a client asks for: one cell per size, number of callers and rate.
type workload struct {
	sizes    ints
	callers  ints
	rates    ints // calls/s; 0: a closed loop
	duration time.Duration
	warmup   time.Duration
	rounds   int
	codec    string
}

func (w *workload) register(fs *flag.FlagSet) {
	w.sizes, w.callers = ints{64, 4 << 10, 64 << 10, 1 << 20}, ints{1, 16, 64, 256}
	w.rates = ints{0}
	fs.Var(&w.sizes, "sizes", "payload `bytes`, comma separated")
	fs.Var(&w.callers, "callers", "`numbers` of concurrent callers, comma separated")
	fs.Var(&w.rates, "rate", "`calls/s` to offer, comma separated: a call is timed from when it was due; 0: a closed loop, each caller calls when its last call has returned")
	fs.DurationVar(&w.duration, "duration", 2*time.Second, "measured time of a cell and round")
	fs.DurationVar(&w.warmup, "warmup", 300*time.Millisecond, "time before it that does not count")
	fs.IntVar(&w.rounds, "rounds", 1, "rounds; medians are shown")
	fs.StringVar(&w.codec, "codec", "proto", "payload codec: proto (generated stubs) or raw")
}

func (w *workload) validate() error {
	const largest = 32 << 20
	for _, n := range w.sizes {
		if n < 0 || n > largest {
			return fmt.Errorf("-sizes has %d, expected 0 to %d bytes", n, largest)
		}
	}
	for _, n := range w.callers {
		if n < 1 || n > 1<<16 {
			return fmt.Errorf("-callers has %d, expected 1 to %d", n, 1<<16)
		}
	}
	for _, n := range w.rates {
		if n > 10_000_000 {
			return fmt.Errorf("-rate has %d, expected 0 to %d calls/s", n, 10_000_000)
		}
	}
	switch {
	case w.duration <= 0 || w.warmup < 0:
		return fmt.Errorf("-duration is %v and -warmup %v, expected more than 0 and at least 0", w.duration, w.warmup)
	case w.rounds < 1:
		return fmt.Errorf("-rounds is %d, expected at least 1", w.rounds)
	case w.codec != "proto" && w.codec != "raw":
		return fmt.Errorf("-codec is %q, expected proto or raw", w.codec)
	}
	return nil
}

// ints is a flag of comma separated numbers, each with an optional K or M.
type ints []int

func (v *ints) String() string {
	var parts []string
	for _, n := range *v {
		parts = append(parts, strconv.Itoa(n))
	}
	return strings.Join(parts, ",")
}

func (v *ints) Set(s string) error {
	var out ints
	for _, part := range strings.Split(s, ",") {
		n, err := parseSize(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		out = append(out, n)
	}
	*v = out
	return nil
}

func parseSize(s string) (int, error) {
	unit := 1
	switch {
	case strings.HasSuffix(s, "K"):
		unit, s = 1<<10, strings.TrimSuffix(s, "K")
	case strings.HasSuffix(s, "M"):
		unit, s = 1<<20, strings.TrimSuffix(s, "M")
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1<<30/unit {
		return 0, fmt.Errorf("%q is not a number like 64, 4K or 1M", s)
	}
	return n * unit, nil
}
