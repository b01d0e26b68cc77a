package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/results"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
)

// connecting measures the time from Dial to the reply of the first call, with
// QPs from the warm pool and without.
var connecting = turns{
	name: "connect", does: "connections of each kind", rounds: 30, pause: 150 * time.Millisecond, floor: 3,
	start: startConnectors,
	report: func(ways []contender) gainReport {
		kinds := make([]*connector, len(ways))
		for i, w := range ways {
			kinds[i] = w.(*connector)
		}
		return newConnectReport(kinds)
	},
}

// connector makes connections of one kind, to a server process of the same.
type connector struct {
	name    string
	network *transport.Network
	watch   *stopwatch // nil over TCP
	server  *serverProcess
	samples []phases
}

// Names of the kinds.
const (
	fromPool = "rdma, pool"
	noPool   = "rdma, no pool"
	allCold  = "rdma, all cold"
	overTCP  = "tcp"
)

func startConnectors(ctx context.Context, s settings, ends peers) (kinds []contender, err error) {
	for _, kind := range []struct{ name, transport, pool string }{
		{fromPool, "rdma", "warm"}, {noPool, "rdma", "none"}, {allCold, "rdma", "cold"}, {overTCP, "tcp", "warm"},
	} {
		s.transport, s.pool = kind.transport, kind.pool
		k := &connector{name: kind.name}
		if k.network, err = s.network(ends.client.addr); err != nil {
			return kinds, err
		}
		if k.network.Fabric != nil {
			k.watch = &stopwatch{Fabric: k.network.Fabric}
			k.network.Fabric = k.watch
		}
		if k.server, err = startServer(ctx, s, ends.server.addr+":0"); err != nil {
			closeFabric(k.network)
			return kinds, err
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

func (k *connector) title() string { return k.name }

func (k *connector) stop() {
	k.server.stop()
	closeFabric(k.network)
}

// phases are the times of one connection, in order. Over TCP those of the fast
// link are 0.
type phases struct {
	Hello   float64 `json:"hello_us"`   // TCP connect, HELLO both ways
	Prepare float64 `json:"prepare_us"` // a QP in INIT with receives posted
	Peer    float64 `json:"peer_us"`    // the offer's way, the server's Prepare and Connect, the answer's way
	Connect float64 `json:"connect_us"` // RTR and RTS
	Ready   float64 `json:"ready_us"`   // READY both ways
	Call    float64 `json:"call_us"`    // the first call, 64 B
	Total   float64 `json:"total_us"`
}

func (k *connector) turn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	begun := time.Now()
	conn, err := rpc.Dial(ctx, k.network, k.server.addr)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the call was answered
	dialed := time.Now()
	if _, err := echo.NewEchoClient(conn).Echo(ctx, &echo.Payload{Data: make([]byte, 64)}); err != nil {
		return err
	}
	called := time.Now()
	us := func(from, to time.Time) float64 { return float64(to.Sub(from).Nanoseconds()) / 1e3 }
	p := phases{Call: us(dialed, called), Total: us(begun, called)}
	if w := k.watch; w == nil {
		p.Hello = us(begun, dialed)
	} else {
		p.Hello, p.Prepare, p.Peer = us(begun, w.prepare), us(w.prepare, w.prepared), us(w.prepared, w.connect)
		p.Connect, p.Ready = us(w.connect, w.connected), us(w.connected, dialed)
	}
	k.samples = append(k.samples, p)
	return nil
}

// connectReport is what -json writes.
type connectReport struct {
	results.Header
	Rows   []connectRow `json:"rows"`
	Gain   float64      `json:"gain"`    // total of "all cold" over that of "pool"
	Pooled float64      `json:"no_pool"` // and of "no pool"

	PoolHits, PoolMisses uint64 // of the client
}

// connectRow has medians, and of the total the least and the 90th percentile.
type connectRow struct {
	Kind string `json:"kind"`
	N    int    `json:"connections"`
	phases
	Min float64 `json:"total_min_us"`
	P90 float64 `json:"total_p90_us"`
}

func newConnectReport(kinds []*connector) *connectReport {
	r := &connectReport{Header: results.NewHeader(results.Connect)}
	totals := map[string]float64{}
	for _, k := range kinds {
		at := func(q float64, field func(*phases) float64) float64 {
			values := make([]float64, len(k.samples))
			for i := range k.samples {
				values[i] = field(&k.samples[i])
			}
			return results.Quantile(values, q)
		}
		row := connectRow{Kind: k.name, N: len(k.samples), phases: phases{
			Hello:   at(.5, func(p *phases) float64 { return p.Hello }),
			Prepare: at(.5, func(p *phases) float64 { return p.Prepare }),
			Peer:    at(.5, func(p *phases) float64 { return p.Peer }),
			Connect: at(.5, func(p *phases) float64 { return p.Connect }),
			Ready:   at(.5, func(p *phases) float64 { return p.Ready }),
			Call:    at(.5, func(p *phases) float64 { return p.Call }),
			Total:   at(.5, func(p *phases) float64 { return p.Total }),
		}, Min: at(0, func(p *phases) float64 { return p.Total }), P90: at(.9, func(p *phases) float64 { return p.Total })}
		totals[k.name] = row.Total
		r.Rows = append(r.Rows, row)
		if k.name == fromPool {
			stats := k.watch.Fabric.(*rdma.Fabric).Stats()
			r.PoolHits, r.PoolMisses = stats.PoolHits, stats.PoolMisses
		}
	}
	r.Gain, r.Pooled = totals[allCold]/totals[fromPool], totals[noPool]/totals[fromPool]
	return r
}

func (r *connectReport) gain() float64 { return r.Gain }

func (r *connectReport) write(w io.Writer) error {
	fmt.Fprintf(w, "\nFrom Dial to the reply of the first call, medians in µs, %s\n\n", r.System)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "QP\tn\tTCP, HELLO\tprepare\tpeer\tRTR, RTS\tREADY\tcall\ttotal\tmin\tp90\t")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", row.Kind, row.N,
			row.Hello, row.Prepare, row.Peer, row.Connect, row.Ready, row.Call, row.Total, row.Min, row.P90)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThe pool is %.1f times faster than everything made on the way, %.1f times faster than QP and rings alone.\n"+
		"%d of the client's %d links had their QP from the pool.\n", r.Gain, r.Pooled, r.PoolHits, r.PoolHits+r.PoolMisses)
	return nil
}
