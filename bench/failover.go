package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/results"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// failingOver measures how long calls are without a link when the one dies that
// carries them: with a link that stands by, with TCP behind it, and where
// everything has to be made anew.
var failingOver = turns{
	name: "failover", does: "deaths of a link of each kind", rounds: 20, pause: 300 * time.Millisecond, floor: 10,
	start: startVictims,
	report: func(ways []contender) gainReport {
		kinds := make([]*victim, len(ways))
		for i, w := range ways {
			kinds[i] = w.(*victim)
		}
		return newFailoverReport(kinds)
	},
}

// victim is a connection whose links are let die.
type victim struct {
	name    string
	network *transport.Network
	killer  *killer
	server  *serverProcess
	fail    func(context.Context, *victim) error
	conn    *rpc.Conn // nil where each death makes another
	resumed []float64 // µs from the death of a link until frames could leave again
	gap     []float64 // µs from then to the reply of the first call
}

func startVictims(ctx context.Context, s settings, ends peers) (kinds []contender, err error) {
	for _, kind := range []struct {
		name, pool string
		standby    int
		fail       func(context.Context, *victim) error
	}{
		{"to a standby link", "warm", 1, killLink},
		{"to TCP", "warm", -1, killLink},
		{"cold reconnect", "cold", -1, reconnectCold},
	} {
		s.transport, s.pool = "rdma", kind.pool
		v := &victim{name: kind.name, fail: kind.fail}
		if v.network, err = s.network(ends.client.addr); err != nil {
			return kinds, err
		}
		v.killer = &killer{Fabric: v.network.Fabric}
		v.network.Fabric = v.killer
		v.network.Config.FastLink = transport.PreferFastLink
		v.network.Config.Standby = kind.standby
		v.network.Config.ReturnAfter = 50 * time.Millisecond
		kinds = append(kinds, v)
		if v.server, err = startServer(ctx, s, ends.server.addr+":0"); err != nil {
			return kinds, err
		}
	}
	return kinds, nil
}

func (v *victim) title() string { return v.name }

func (v *victim) turn(ctx context.Context) error { return v.fail(ctx, v) }

func (v *victim) stop() {
	if v.conn != nil {
		v.conn.Close() //nolint:errcheck // it is over
	}
	if v.server != nil {
		v.server.stop()
	}
	v.network.Fabric = v.killer.Fabric
	closeFabric(v.network)
}

var errKilled = errors.New("killed by the benchmark")

// killLink lets the link die that carries calls, and makes the next call.
func killLink(ctx context.Context, v *victim) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if v.conn == nil {
		conn, err := rpc.Dial(ctx, v.network, v.server.addr)
		if err != nil {
			return err
		}
		v.conn = conn
	}
	if err := v.ready(ctx); err != nil {
		return err
	}
	before := v.conn.Transport()
	died := time.Now()
	v.killer.kill(before.Link.Epoch)
	if err := callOnce(ctx, v.conn); err != nil {
		return err
	}
	v.gap = append(v.gap, microseconds(time.Since(died)))
	after := v.conn.Transport()
	if after.Moves == before.Moves || after.Failover == 0 {
		return fmt.Errorf("the calls did not move (%d moves, %v)", after.Moves, after.Kind)
	}
	v.resumed = append(v.resumed, microseconds(after.Failover))
	return nil
}

// ready waits until the calls are on RDMA, with as many links standing by as
// there should be.
func (v *victim) ready(ctx context.Context) error {
	for {
		info := v.conn.Transport()
		if info.Kind == transport.RDMA && info.Ready >= 1+max(0, v.network.Config.Standby) {
			return callOnce(ctx, v.conn)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %v, %d links ready, %s", ctx.Err(), info.Kind, info.Ready, info.Reason)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// reconnectCold is what a library does that has a connection and nothing behind
// it: it makes another.
func reconnectCold(ctx context.Context, v *victim) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	died := time.Now()
	conn, err := rpc.Dial(ctx, v.network, v.server.addr)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the call was answered
	v.resumed = append(v.resumed, microseconds(time.Since(died)))
	if kind := conn.Transport().Kind; kind != transport.RDMA {
		return fmt.Errorf("it is over %v: %s", kind, conn.Transport().Reason)
	}
	if err := callOnce(ctx, conn); err != nil {
		return err
	}
	v.gap = append(v.gap, microseconds(time.Since(died)))
	return nil
}

func callOnce(ctx context.Context, conn *rpc.Conn) error {
	_, err := echo.NewEchoClient(conn).Echo(ctx, &echo.Payload{Data: make([]byte, 64)})
	return err
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// killer is a fabric whose links can be let die.
type killer struct {
	transport.Fabric
	mu    sync.Mutex
	links map[uint64]transport.Link // by epoch
}

func (k *killer) kill(epoch uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.links[epoch]; l != nil {
		l.Close(errKilled)
		delete(k.links, epoch)
	}
}

func (k *killer) Prepare(ctx context.Context, local net.Addr) (transport.Half, error) {
	half, err := k.Fabric.Prepare(ctx, local)
	if err != nil {
		return nil, err
	}
	return &mortalHalf{half, k}, nil
}

type mortalHalf struct {
	transport.Half
	k *killer
}

func (h *mortalHalf) Connect(ctx context.Context, epoch uint64, peer wire.QP) (transport.Link, error) {
	link, err := h.Half.Connect(ctx, epoch, peer)
	if err != nil {
		return nil, err
	}
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	if h.k.links == nil {
		h.k.links = map[uint64]transport.Link{}
	}
	h.k.links[epoch] = link
	return link, nil
}

// failoverReport is what -json writes. Times are medians in µs.
type failoverReport struct {
	results.Header
	Rows []failoverRow `json:"rows"`
	Gain float64       `json:"gain"` // resumed of "cold reconnect" over that of "to a standby link"
}

type failoverRow struct {
	Kind    string  `json:"kind"`
	N       int     `json:"deaths"`
	Resumed float64 `json:"resumed_us"` // from the death of a link until frames can leave again
	P90     float64 `json:"resumed_p90_us"`
	Gap     float64 `json:"gap_us"` // to the reply of the first call
}

func newFailoverReport(kinds []*victim) *failoverReport {
	r := &failoverReport{Header: results.NewHeader(results.Failover)}
	for _, v := range kinds {
		r.Rows = append(r.Rows, failoverRow{
			Kind: v.name, N: len(v.resumed),
			Resumed: results.Middle(v.resumed), P90: results.Quantile(v.resumed, .9), Gap: results.Middle(v.gap),
		})
	}
	r.Gain = r.Rows[len(r.Rows)-1].Resumed / r.Rows[0].Resumed
	return r
}

func (r *failoverReport) gain() float64 { return r.Gain }

func (r *failoverReport) write(w io.Writer) error {
	fmt.Fprintf(w, "\nWhen the link dies that carries calls, medians in µs, %s\n\n", r.System)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tdeaths\tframes leave again\tp90\tfirst reply\t")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t\n", row.Kind, row.N, row.Resumed, row.P90, row.Gap)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nA standby link is %.1f times faster than a cold reconnect.\n", r.Gain)
	return nil
}
