package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// TestLedgerKeepsTheDead: what links did that are gone is counted still, once.
func TestLedgerKeepsTheDead(t *testing.T) {
	n := &transport.Network{Carrier: &tcp.Carrier{}}
	l := watchLinks(n)
	server := rpc.NewServer(n)
	require.NoError(t, server.Listen("127.0.0.1:0"))
	go server.Serve() //nolint:errcheck // it ends with Close
	conn, err := rpc.Dial(t.Context(), n, server.Addr().String())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, server.Close())

	l.mu.Lock()
	for link := range l.live {
		<-link.Done()
	}
	l.mu.Unlock()
	dead := l.usage(transport.TCP)
	require.Empty(t, l.live)
	require.GreaterOrEqual(t, dead.Posted, uint64(2), "a HELLO each way")
	require.Equal(t, dead, l.usage(transport.TCP))
	require.Zero(t, l.usage(transport.RDMA).Posted)
}
