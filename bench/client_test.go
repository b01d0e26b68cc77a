package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// TestRoundsKeepToOneLink: what another link carried than the first round does
// not go into the same row.
func TestRoundsKeepToOneLink(t *testing.T) {
	n := &transport.Network{Carrier: &tcp.Carrier{}}
	server := rpc.NewServer(n)
	service := echo.Server{Links: watchLinks(n).usage, Pinned: func() int64 { return 0 }}
	require.NoError(t, service.Register(server))
	require.NoError(t, server.Listen("127.0.0.1:0"))
	go server.Serve() //nolint:errcheck // it ends with Close
	defer server.Close()

	c, err := dial(t.Context(), settings{transport: "tcp", pool: "warm", provider: "auto"}, "", server.Addr().String())
	require.NoError(t, err)
	defer c.close()
	w := workload{sizes: ints{64}, callers: ints{1, 2}, rates: ints{0}, duration: 20 * time.Millisecond, codec: "proto"}
	cells := newCells(w)
	for round := range 2 {
		require.NoError(t, c.round(t.Context(), cells, w, round))
		for _, cell := range cells {
			require.Len(t, cell.samples, round+1)
			require.Equal(t, "tcp", cell.row(w).Transport)
		}
	}

	s := subject{cells: cells}
	for _, cell := range cells {
		cell.info = transport.Info{Kind: transport.RDMA} // as if it had carried the first two
	}
	err = c.round(t.Context(), cells, w, 2)
	var changed *LinkChangedError
	require.ErrorAs(t, err, &changed)
	require.Equal(t, transport.RDMA, changed.First)
	require.Equal(t, transport.TCP, changed.Now)
	require.NotEmpty(t, changed.Reason)
	require.ErrorContains(t, err, "round 3, 64 B, 1 callers: rdma carried the first round, and now tcp carries the calls: ")
	require.Len(t, cells[0].samples, 2)
	require.Equal(t, transport.RDMA, s.kind())
}
