package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// perftestSize is the message size of the comparison in bytes, and of that with
// libfabric.
const perftestSize = 64

// perftest is what ib_send_lat and ib_send_bw showed: medians over the rounds.
type perftest struct {
	SendLat  float64 `json:"send_lat_us"`           // half a round trip, as printed
	SendRate float64 `json:"send_messages_per_sec"` // one way
	lats     []float64
	rates    []float64
}

// round runs both programs once and takes their figures in.
func (p *perftest) round(ctx context.Context, ends peers) error {
	// Column 4 of ib_send_lat is t_typical in µs; column 4 of ib_send_bw the
	// message rate in millions per second.
	lat, err := runPerftest(ctx, "ib_send_lat", ends, 1000)
	if err != nil {
		return err
	}
	rate, err := runPerftest(ctx, "ib_send_bw", ends, 10000)
	if err != nil {
		return err
	}
	p.lats, p.rates = append(p.lats, lat), append(p.rates, rate*1e6)
	p.SendLat, p.SendRate = results.Middle(p.lats), results.Middle(p.rates)
	return nil
}

func runPerftest(ctx context.Context, program string, ends peers, messages int) (float64, error) {
	port, err := freePort(ends.server.addr)
	if err != nil {
		return 0, err
	}
	args := func(e endpoint) []string {
		return []string{"-F", "-d", e.device, "-i", strconv.Itoa(e.port), "-x", strconv.Itoa(e.gidIndex), "-p", port,
			"-s", strconv.Itoa(perftestSize), "-n", strconv.Itoa(messages)}
	}
	p := pair{
		program: program, column: 4, limit: 2 * time.Minute, refused: "Couldn't connect",
		server: args(ends.server), client: append(args(ends.client), ends.server.addr),
	}
	return p.run(ctx)
}

// libfabric is what its fi_pingpong showed between message endpoints of its
// verbs provider, which are RC queue pairs: the median over the rounds.
type libfabric struct {
	Pingpong float64 `json:"fi_pingpong_us"` // half a round trip, as printed: a mean
	times    []float64
}

// roundTrip is in µs.
func (l *libfabric) roundTrip() float64 { return 2 * l.Pingpong }

// round runs the program once and takes its figure in.
func (l *libfabric) round(ctx context.Context, ends peers) error {
	port, err := freePort(ends.server.addr)
	if err != nil {
		return err
	}
	// The devices find their ports and GIDs by themselves: rdma_cm goes by the
	// addresses. Column 6 is usec/xfer.
	args := func(e endpoint, more ...string) []string {
		return slices.Concat([]string{"-p", "verbs", "-e", "msg", "-d", e.device, "-I", "1000", "-S", strconv.Itoa(perftestSize)}, more)
	}
	p := pair{
		program: "fi_pingpong", column: 6, limit: time.Minute, refused: "Connection refused",
		server: args(ends.server, "-B", port), client: args(ends.client, "-P", port, ends.server.addr),
	}
	t, err := p.run(ctx)
	if err != nil {
		return err
	}
	l.times = append(l.times, t)
	l.Pingpong = results.Middle(l.times)
	return nil
}
