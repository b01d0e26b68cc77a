package rpc_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
)

// TestIdleSessionsHoldLittle: a session that nobody uses now keeps neither the
// buffers of its link nor what its calls took. Both sides together may
// hold what either may at 4,096 connections (docs/benchmarks.md, "Scale"), and a
// third more.
func TestIdleSessionsHoldLittle(t *testing.T) {
	const (
		sessions = 256
		most     = 22 << 10 // bytes
	)
	network := tcpNetwork()
	network.Config.Keepalive = 300 * time.Millisecond // what a lane keeps is given back after a third
	s := listenOn(t, network, "127.0.0.1:0")
	use(t, network, s.Addr().String()) // makes what is there once
	before := heap()
	for range sessions {
		use(t, network, s.Addr().String())
	}
	var each int64
	require.Eventually(t, func() bool {
		each = (heap() - before) / sessions
		return each <= most
	}, 20*time.Second, 100*time.Millisecond, "sessions hold more than %d bytes", most)
	t.Logf("%d bytes for each session, both sides together", each)
}

// use makes some calls on a connection of its own.
func use(t *testing.T, n *transport.Network, addr string) {
	c := dialOn(t, n, addr)
	for range 4 {
		_, err := echo(t.Context(), c, "some bytes")
		require.NoError(t, err)
	}
}

// heap is the live memory, in bytes. Pools let go with the second collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
