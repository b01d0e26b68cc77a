//go:build linux

package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
)

const rounds = 8

// A killed server: every call ends with a typed error, none hangs until its
// deadline, and nothing is left behind (cases 1, 67).
func TestServerKilled(t *testing.T) {
	for _, w := range worlds(t) {
		t.Run(w.kind.String(), func(t *testing.T) {
			network := newNetwork(w.client, rdma.Config{})
			defer network.Fabric.Close()
			var before resources
			for round := range rounds {
				server := spawn(t, nil, "server", hostPort(w.server))
				callUntilKilled(t, w, network, server)
				if round == 0 {
					// Devices, pollers and warm QPs are there from the first round on.
					time.Sleep(500 * time.Millisecond)
					before = held(network.Fabric)
				}
				requireBack(t, network.Fabric, before)
			}
		})
	}
}

func callUntilKilled(t *testing.T, w world, network *transport.Network, server *process) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := rpc.Dial(ctx, network, server.line)
	require.NoError(t, err)
	defer conn.Close()
	requireKind(t, w, conn.Transport())

	var callers sync.WaitGroup
	for i := range 32 {
		callers.Go(func() {
			var err error
			for n := 0; err == nil; n++ {
				err = echo(ctx, conn, pattern(i+n, n*331%20000))
			}
			requireLost(t, err)
		})
		callers.Go(func() {
			var reply []byte
			requireLost(t, rpc.Call(ctx, conn, hangMethod, &[]byte{1}, &reply))
		})
	}
	time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
	server.kill()
	killed := time.Now()
	callers.Wait()
	require.NoError(t, ctx.Err(), "calls waited for their deadline")
	t.Logf("all calls had ended %v after the kill", time.Since(killed).Round(time.Millisecond))
}

// requireLost wants the error of a lost peer: typed, with a delivery.
func requireLost(t *testing.T, err error) {
	t.Helper()
	var e *rpc.Error
	if !errors.As(err, &e) || e.Code != rpc.Unavailable {
		t.Errorf("a call to a killed server ended with %v, expected Unavailable", err)
	}
}

func requireKind(t *testing.T, w world, info transport.Info) {
	t.Helper()
	require.Equal(t, w.kind, info.Kind, "carried by another link: %s", info.Reason)
}

// A killed client under load: the server gives back all it held for it.
func TestClientKilled(t *testing.T) {
	for _, w := range worlds(t) {
		t.Run(w.kind.String(), func(t *testing.T) {
			network := newNetwork("", rdma.Config{})
			server := serve(t, network, w.server)
			var before resources
			for round := range rounds {
				client := spawn(t, nil, "client", server.Addr().String(), w.client)
				require.True(t, strings.HasPrefix(client.line, w.kind.String()), "client said %q", client.line)
				time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				client.kill()
				if round == 0 {
					requireNoSessions(t, server)
					time.Sleep(3 * time.Second) // goroutines of handlers end when idle
					before = held(network.Fabric)
				}
				requireBack(t, network.Fabric, before)
			}
			// During the set-up: of the process, of the session, of the QP.
			for range rounds {
				client, _ := start(t, nil, "client", os.Args[0], server.Addr().String(), w.client)
				time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
				client.kill()
			}
			requireNoSessions(t, server)
			requireBack(t, network.Fabric, before)
		})
	}
}

func requireNoSessions(t *testing.T, s *rpc.Server) {
	t.Helper()
	require.Eventually(t, func() bool { return s.Stats().Sessions == 0 }, 10*time.Second, 10*time.Millisecond)
}
