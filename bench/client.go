package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
)

// clientCommand measures every cell of the load against a server.
func clientCommand(ctx context.Context, args []string) error {
	var (
		s settings
		l load
	)
	fs := flag.NewFlagSet("bench client", flag.ContinueOnError)
	addr := fs.String("addr", "127.0.0.1:7471", "`address` of the server")
	local := fs.String("local", "", "local `address` to connect from; chooses the device")
	jsonPath := fs.String("json", "", "write the report to this `file`")
	s.register(fs)
	l.register(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := l.validate(); err != nil {
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
	cells := newCells(l)
	for round := range l.rounds {
		if err := c.round(ctx, cells, l, round); err != nil {
			return err
		}
	}
	progress("")
	for _, cell := range cells {
		r.Rows = append(r.Rows, cell.row(l))
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
	return r.writeJSON(jsonPath)
}

// client is one connection to a bench server.
type client struct {
	network *transport.Network
	conn    *rpc.Conn
	stub    echo.EchoClient
}

func dial(ctx context.Context, s settings, local, addr string) (*client, error) {
	network, err := s.network(local)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := rpc.Dial(ctx, network, addr)
	if err != nil {
		closeFabric(network)
		return nil, err
	}
	return &client{network: network, conn: conn, stub: echo.NewEchoClient(conn)}, nil
}

func (c *client) close() {
	_ = c.conn.Close()
	closeFabric(c.network)
}

// round adds one sample to each cell.
func (c *client) round(ctx context.Context, cells []*cell, l load, round int) error {
	for _, cell := range cells {
		progress("round %d/%d: %s, %d callers over %v", round+1, l.rounds, formatSize(cell.size), cell.callers, c.conn.Transport().Kind)
		if err := cell.measure(ctx, c, l); err != nil {
			return err
		}
	}
	return nil
}

// newCall returns a call with messages of its own, reused from call to call.
func (c *client) newCall(codec string, size int) func() echoFunc {
	if codec == "raw" {
		return func() echoFunc { return c.rawCall(size) }
	}
	return func() echoFunc {
		request := &echo.Payload{Data: make([]byte, size)}
		return func(ctx context.Context) error {
			reply, err := c.stub.Echo(ctx, request)
			if err == nil && len(reply.Data) != size {
				err = fmt.Errorf("sent %d bytes, got %d back", size, len(reply.Data))
			}
			return err
		}
	}
}

// usage is what both processes have used so far.
type usage struct {
	clientCPU, serverCPU         time.Duration
	clientObjects, serverObjects uint64
	batches                      uint64
}

func (c *client) usage(ctx context.Context) (usage, error) {
	u, err := c.stub.Usage(ctx, &echo.UsageRequest{})
	if err != nil {
		return usage{}, fmt.Errorf("usage of the server: %w", err)
	}
	stats := c.conn.Transport().Link.Stats
	return usage{
		clientCPU:     cpuTime(),
		serverCPU:     time.Duration(u.CpuNs),
		clientObjects: heapObjects(),
		serverObjects: u.Objects,
		batches:       stats.SendBatches + stats.RecvBatches,
	}, nil
}

// cell is one combination of size and callers, with a sample per round.
type cell struct {
	size, callers int
	samples       []sample
	info          transport.Info // of the last round
}

func newCells(l load) []*cell {
	var cells []*cell
	for _, size := range l.sizes {
		for _, callers := range l.callers {
			cells = append(cells, &cell{size: size, callers: callers})
		}
	}
	return cells
}

// measure adds one round. Usage is taken around the whole of it, warm-up and
// callers' own start included, and spread over all calls that were made.
func (c *cell) measure(ctx context.Context, cl *client, l load) error {
	before, err := cl.usage(ctx)
	if err != nil {
		return err
	}
	m, err := hammer(ctx, cl.newCall(l.codec, c.size), c.callers, l.warmup, l.duration)
	if err != nil {
		return err
	}
	after, err := cl.usage(ctx)
	if err != nil {
		return err
	}
	c.info = cl.conn.Transport()
	perCall := func(n float64) float64 { return n / float64(max(m.AllCalls, 1)) }
	us := func(q float64) float64 { return float64(m.Latency.ValueAtQuantile(q)) / 1e3 }
	c.samples = append(c.samples, sample{
		Calls:         m.Calls,
		CallsPerSec:   float64(m.Calls) / m.Seconds,
		P50:           us(50),
		P99:           us(99),
		P999:          us(99.9),
		ClientObjects: perCall(float64(after.clientObjects - before.clientObjects)),
		ServerObjects: perCall(float64(after.serverObjects - before.serverObjects)),
		ClientCPU:     perCall(float64((after.clientCPU - before.clientCPU).Nanoseconds()) / 1e3),
		ServerCPU:     perCall(float64((after.serverCPU - before.serverCPU).Nanoseconds()) / 1e3),
		Batches:       perCall(float64(after.batches - before.batches)),
	})
	return nil
}

func (c *cell) row(l load) row {
	return row{
		Transport: c.info.Kind.String(),
		Reason:    c.info.Reason,
		Device:    c.info.Link.Device,
		MTU:       c.info.Link.MTU,
		Codec:     l.codec,
		Size:      c.size,
		Callers:   c.callers,
		Rounds:    len(c.samples),
		sample:    median(c.samples),
	}
}
