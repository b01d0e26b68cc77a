package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
)

// clientCommand measures every cell of the load against a server.
func clientCommand(ctx context.Context, args []string) error {
	var (
		s settings
		w workload
	)
	fs := flag.NewFlagSet("bench client", flag.ContinueOnError)
	addr := fs.String("addr", "127.0.0.1:7471", "`address` of the server")
	local := fs.String("local", "", "local `address` to connect from; chooses the device")
	jsonPath := fs.String("json", "", "write the report to this `file`")
	s.register(fs)
	w.register(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := w.validate(); err != nil {
		return err
	}
	stopProfile, err := s.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	c, err := dial(ctx, s, *local, *addr)
	if err != nil {
		return err
	}
	defer c.close()

	r := newReport(s)
	r.NoPeer = "it runs beside `bench run`"
	r.NoLibfabric = r.NoPeer
	cells := newCells(w)
	for round := range w.rounds {
		if err := c.round(ctx, cells, w, round); err != nil {
			return err
		}
	}
	progress("")
	for _, cell := range cells {
		r.Rows = append(r.Rows, cell.row(w))
	}
	return finish(r, *jsonPath)
}

// finish prints the table and writes the JSON where asked for.
func finish(r *report, jsonPath string) error {
	if err := r.writeTable(os.Stdout); err != nil {
		return err
	}
	if jsonPath == "" {
		return nil
	}
	return results.Write(jsonPath, r)
}

// client is one connection to a bench server.
type client struct {
	network *transport.Network
	links   *ledger
	conn    *rpc.Conn
	stub    echo.EchoClient
}

func dial(ctx context.Context, s settings, local, addr string) (*client, error) {
	network, err := s.network(local)
	if err != nil {
		return nil, err
	}
	links := watchLinks(network)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := rpc.Dial(ctx, network, addr)
	if err != nil {
		closeFabric(network)
		return nil, err
	}
	return &client{network: network, links: links, conn: conn, stub: echo.NewEchoClient(conn)}, nil
}

func (c *client) close() {
	_ = c.conn.Close()
	closeFabric(c.network)
}

// round adds one sample to each cell. What carries the first round carries all.
func (c *client) round(ctx context.Context, cells []*cell, w workload, round int) error {
	if round == 0 {
		info := c.conn.Transport()
		for _, cell := range cells {
			cell.info = info
		}
	}
	for _, cell := range cells {
		progress("round %d/%d: %s, %d callers over %v", round+1, w.rounds, results.FormatSize(cell.size), cell.callers, c.conn.Transport().Kind)
		if err := cell.measure(ctx, c, w); err != nil {
			return fmt.Errorf("round %d, %s, %d callers: %w", round+1, results.FormatSize(cell.size), cell.callers, err)
		}
	}
	return nil
}

// newCall returns a call with messages of its own, reused from call to call.
func (c *client) newCall(codec string, size int) func() load.Call {
	if codec == "raw" {
		return func() load.Call { return echo.NewRawCall(c.conn, size) }
	}
	return func() load.Call { return echo.NewCall(c.stub, size) }
}

// usage is what both processes have used so far.
type usage struct {
	client, server           load.Usage
	info                     transport.Info  // of the link that carries the calls
	clientLinks, serverLinks *echo.LinkUsage // of this kind
}

func (c *client) usage(ctx context.Context) (usage, error) {
	u, err := c.stub.Usage(ctx, &echo.UsageRequest{})
	if err != nil {
		return usage{}, fmt.Errorf("usage of the server: %w", err)
	}
	info, links := c.conn.Transport(), u.Tcp
	if info.Kind == transport.RDMA {
		links = u.Rdma
	}
	return usage{
		client:      load.ReadUsage(),
		server:      load.Usage{CPU: time.Duration(u.CpuNs), Objects: u.Objects},
		info:        info,
		clientLinks: c.links.usage(info.Kind),
		serverLinks: links,
	}, nil
}

// cell is one combination of size, callers and rate, with a sample per round.
type cell struct {
	size, callers, rate int
	samples             []results.Sample
	latency             load.Histogram
	info                transport.Info // of the link that carried the first round
}

// LinkChangedError says that the calls have left the kind of link that carried
// the first round: their figures must not go into the row of that one.
type LinkChangedError struct {
	First, Now transport.Kind
	Reason     string // why it is not a fast link, if it is not
}

func (e *LinkChangedError) Error() string {
	text := fmt.Sprintf("%v carried the first round, and now %v carries the calls", e.First, e.Now)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// carries checks that calls are where they were in the first round.
func (c *cell) carries(now transport.Info) error {
	if now.Kind != c.info.Kind {
		return &LinkChangedError{First: c.info.Kind, Now: now.Kind, Reason: now.Reason}
	}
	return nil
}

func newCells(w workload) []*cell {
	var cells []*cell
	for _, size := range w.sizes {
		for _, callers := range w.callers {
			for _, rate := range w.rates {
				cells = append(cells, &cell{size: size, callers: callers, rate: rate, latency: load.NewHistogram()})
			}
		}
	}
	return cells
}

// measure adds one round. Usage is taken around the whole of it, warm-up and
// callers' own start included, and spread over all calls that were made.
func (c *cell) measure(ctx context.Context, cl *client, w workload) error {
	before, err := cl.usage(ctx)
	if err != nil {
		return err
	}
	if err := c.carries(before.info); err != nil {
		return err
	}
	o := load.Options{Callers: c.callers, Warmup: w.warmup, Duration: w.duration}
	var m load.Result
	if c.rate > 0 {
		m, err = load.Open(ctx, cl.newCall(w.codec, c.size), c.rate, o)
	} else {
		m, err = load.Closed(ctx, cl.newCall(w.codec, c.size), o)
	}
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	after, err := cl.usage(ctx)
	if err != nil {
		return err
	}
	if err := c.carries(after.info); err != nil {
		return err
	}
	sample := results.NewSample(m, after.client.Sub(before.client), after.server.Sub(before.server))
	sample.ClientLinks = crossings(before.clientLinks, after.clientLinks, m.AllCalls)
	sample.ServerLinks = crossings(before.serverLinks, after.serverLinks, m.AllCalls)
	c.samples = append(c.samples, sample)
	c.latency.Merge(m.Latency)
	return nil
}

func (c *cell) row(w workload) row {
	return row{
		Transport: c.info.Kind.String(),
		Reason:    c.info.Reason,
		Device:    c.info.Link.Device,
		MTU:       c.info.Link.MTU,
		Codec:     w.codec,
		Cell:      results.NewCell(c.size, c.callers, c.rate, c.samples, c.latency),
	}
}
