package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
)

// spread is what bench scale does with each number of connections.
type spread struct {
	connections ints
	callers     int // calls under way, over all connections
	size        int
	duration    time.Duration // of the calls
	rest        time.Duration // that CPU at rest is measured
}

const (
	maxConnections = 1 << 15 // more than the ports that one address has for them by default (ip(7), ip_local_port_range)
	dialsAtOnce    = 32      // far below Config.MaxHandshakes and the backlog of a listener
	settleTime     = 2 * time.Minute
)

func (w *spread) register(fs *flag.FlagSet) {
	w.connections = ints{1, 64, 1024, 4096}
	fs.Var(&w.connections, "connections", "`numbers` of connections, comma separated")
	fs.IntVar(&w.callers, "callers", 64, "calls under way at once, spread over all connections")
	fs.IntVar(&w.size, "size", 64, "payload `bytes` of the calls")
	fs.DurationVar(&w.duration, "duration", 5*time.Second, "measured time of the calls")
	fs.DurationVar(&w.rest, "rest", 20*time.Second, "time at rest over which CPU is measured; keepalive looks at each link every 5 s")
}

func (w *spread) validate() error {
	for _, n := range w.connections {
		if n < 1 || n > maxConnections {
			return fmt.Errorf("-connections has %d, expected 1 to %d", n, maxConnections)
		}
	}
	calls := workload{sizes: ints{w.size}, callers: ints{w.callers}, duration: w.duration, rounds: 1, codec: "proto"}
	if err := calls.validate(); err != nil {
		return err
	}
	if w.rest <= 0 {
		return fmt.Errorf("-rest is %v, expected more than 0", w.rest)
	}
	return nil
}

// scaleCommand measures what connections hold, and what they cost at rest and
// under calls, over each kind of link and in each way to poll.
func scaleCommand(ctx context.Context, args []string) error {
	var (
		s settings
		w spread
	)
	fs := flag.NewFlagSet("bench scale", flag.ContinueOnError)
	jsonPath := fs.String("json", "", "write the report to this `file`")
	s.register(fs)
	w.register(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := w.validate(); err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return err
	}
	most := 0
	for _, n := range w.connections {
		most = max(most, n)
	}
	if err := allowFiles(most + spareFiles); err != nil {
		return err
	}
	s.procs = cmp.Or(s.procs, max(1, runtime.NumCPU()/2))
	runtime.GOMAXPROCS(s.procs)

	ends, noPeer := findPeers()
	r := &scaleReport{Header: results.NewHeader(results.Scale), Callers: w.callers, Size: w.size}
	subjects := []settings{}
	switch {
	case s.transport == "tcp":
	case noPeer == nil:
		subjects = append(subjects, pollModes(s)...)
	case s.transport == "rdma":
		return noPeer
	default:
		r.NoRDMA = noPeer.Error()
	}
	if s.transport != "rdma" {
		s.transport = "tcp"
		subjects = append(subjects, s)
	}
	for _, s := range subjects {
		for _, n := range w.connections {
			row, err := scaleOnce(ctx, s, w, ends, n)
			if err != nil {
				return fmt.Errorf("%d connections over %s: %w", n, scaleName(s), err)
			}
			r.Rows = append(r.Rows, *row)
		}
	}
	progress("")
	if err := r.write(os.Stdout); err != nil {
		return err
	}
	if *jsonPath == "" {
		return nil
	}
	return results.Write(*jsonPath, r)
}

// pollModes are the settings of every way to poll, or of the one asked for.
func pollModes(s settings) (modes []settings) {
	s.transport = "rdma"
	if s.poll != "" {
		return []settings{s}
	}
	for _, poll := range []string{"busy", "", "events"} {
		s.poll = poll
		modes = append(modes, s)
	}
	return modes
}

func scaleName(s settings) string {
	if s.transport == "tcp" {
		return "tcp"
	}
	return "rdma, " + cmp.Or(s.poll, "adaptive")
}

// crowd is a client with many connections to a server process of its own, and
// one more that both are asked over.
type crowd struct {
	settings settings
	server   *serverProcess
	asks     *client
	conns    []*rpc.Conn
}

// scaleOnce measures n connections: the calls first, so that what is held at
// rest is what connections hold that were used.
func scaleOnce(ctx context.Context, s settings, w spread, ends peers, n int) (*scaleRow, error) {
	c, err := newCrowd(ctx, s, ends)
	if err != nil {
		return nil, err
	}
	defer c.close()
	client, server, err := c.held(ctx)
	if err != nil {
		return nil, err
	}
	progress("%s: %d connections", scaleName(s), n)
	if err := c.dial(ctx, n); err != nil {
		return nil, err
	}
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	row := &scaleRow{Link: scaleName(s), Connections: n}
	progress("%s: %d connections, calls", scaleName(s), n)
	calls, err := load.Closed(ctx, c.newCall(w), load.Options{Callers: w.callers, Warmup: w.duration / 5, Duration: w.duration})
	if err != nil {
		return nil, fmt.Errorf("echo: %w", err)
	}
	row.CallsPerSec = float64(calls.Calls) / calls.Seconds
	row.P50, row.P99 = calls.Latency.Quantile(50), calls.Latency.Quantile(99)
	progress("%s: %d connections, at rest", scaleName(s), n)
	if row.ClientCPU, row.ServerCPU, err = c.rest(ctx, w.rest); err != nil {
		return nil, err
	}
	clientNow, serverNow, err := c.held(ctx)
	if err != nil {
		return nil, err
	}
	row.Client, row.Server = clientNow.Sub(client), serverNow.Sub(server)
	return row, nil
}

func newCrowd(ctx context.Context, s settings, ends peers) (*crowd, error) {
	addr, local := "127.0.0.1:0", ""
	if s.transport == "rdma" {
		addr, local = ends.server.addr+":0", ends.client.addr
	}
	server, err := startServer(ctx, s, addr)
	if err != nil {
		return nil, err
	}
	asks, err := dial(ctx, s, local, server.addr)
	if err != nil {
		server.stop()
		return nil, err
	}
	return &crowd{settings: s, server: server, asks: asks}, nil
}

func (c *crowd) close() {
	var group errgroup.Group
	group.SetLimit(dialsAtOnce)
	for _, conn := range c.conns {
		group.Go(conn.Close)
	}
	_ = group.Wait()
	c.asks.close()
	c.server.stop()
}

// dial makes n connections, and a call on each.
func (c *crowd) dial(ctx context.Context, n int) error {
	c.conns = make([]*rpc.Conn, 0, n)
	made := make(chan *rpc.Conn, n)
	group, dialing := errgroup.WithContext(ctx)
	group.SetLimit(dialsAtOnce)
	for range n {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(dialing, settleTime)
			defer cancel()
			conn, err := rpc.Dial(ctx, c.asks.network, c.server.addr)
			if err != nil {
				return err
			}
			made <- conn
			return callOnce(ctx, conn)
		})
	}
	err := group.Wait()
	close(made)
	for conn := range made {
		c.conns = append(c.conns, conn)
	}
	return err
}

// settle waits until every connection has all links that it is to have.
func (c *crowd) settle(ctx context.Context) error {
	if c.settings.transport != "rdma" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for _, conn := range append(c.conns, c.asks.conn) {
		for {
			info := conn.Transport()
			if info.Kind == transport.RDMA && info.Ready == 2 { // it carries calls, another stands by
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w: a connection is over %v, %d links ready, %s", ctx.Err(), info.Kind, info.Ready, info.Reason)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

// newCall has callers call on one connection after the other, so that all are used.
func (c *crowd) newCall(w spread) func() load.Call {
	var next int
	turn := make(chan struct{}, 1)
	return func() load.Call {
		turn <- struct{}{}
		at := next
		next++
		<-turn
		calls := make([]load.Call, 0, len(c.conns)/w.callers+1)
		for i := at % len(c.conns); i < len(c.conns); i += w.callers {
			calls = append(calls, echo.NewCall(echo.NewEchoClient(c.conns[i]), w.size))
		}
		var made int
		return func(ctx context.Context) error {
			made++
			return calls[made%len(calls)](ctx)
		}
	}
}

// rest measures the CPU that both processes use while nobody calls, as shares of
// a core.
func (c *crowd) rest(ctx context.Context, d time.Duration) (client, server float64, err error) {
	const calm = 6 * time.Second // what calls leave is over: workers end, and the last replies are acknowledged, with the next look at each link
	if err := pause(ctx, min(calm, d)); err != nil {
		return 0, 0, err
	}
	before, err := c.asks.usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := pause(ctx, d); err != nil {
		return 0, 0, err
	}
	after, err := c.asks.usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	share := func(before, after load.Usage) float64 {
		return after.Sub(before).CPU.Seconds() / time.Since(began).Seconds()
	}
	return share(before.client, after.client), share(before.server, after.server), nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// held is what both processes hold now.
func (c *crowd) held(ctx context.Context) (client, server load.Held, err error) {
	h, err := c.asks.stub.Held(ctx, &echo.HeldRequest{})
	if err != nil {
		return client, server, fmt.Errorf("what the server holds: %w", err)
	}
	server = load.Held{
		Heap: h.Heap, Stacks: h.Stacks, Pinned: h.Pinned, Resident: h.Resident, Goroutines: h.Goroutines, Files: h.Files,
	}
	client = load.ReadHeld()
	client.Pinned = pinned(c.asks.network)
	return client, server, nil
}

// FileLimitError says that this process may not open as many files as it has to.
type FileLimitError struct {
	Need, Have uint64
	Err        error // of the attempt to have more
}

func (e *FileLimitError) Error() string {
	text := fmt.Sprintf("%d open files are needed, RLIMIT_NOFILE is %d", e.Need, e.Have)
	if e.Err != nil {
		text += fmt.Sprintf(" and cannot be raised: %v", e.Err)
	}
	return text + "; raise it (ulimit -n) or ask for fewer -connections"
}

func (e *FileLimitError) Unwrap() error { return e.Err }

// spareFiles are what a process has open beside its connections: devices, pipes,
// the listener, the standard streams.
const spareFiles = 64
