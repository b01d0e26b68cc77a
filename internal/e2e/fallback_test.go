//go:build linux

package e2e

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// Whatever one side lacks, the session is there, on TCP, and says why (cases
// 45, 48).
func TestFallbackSaysWhy(t *testing.T) {
	tcpAlone := &transport.Network{Carrier: &tcp.Carrier{}}
	noDevice := rdma.Config{Device: "no-such-device"}
	for _, test := range []struct {
		name           string
		client, server *transport.Network
		reason         string
	}{
		{"client without fabric", tcpAlone, newNetwork("", rdma.Config{}), "fabric"},
		{"server without fabric", newNetwork("", rdma.Config{}), tcpAlone, ""},
		{"client without device", newNetwork("", noDevice), newNetwork("", rdma.Config{}), ""},
		{"server without device", newNetwork("", rdma.Config{}), newNetwork("", noDevice), ""},
		{"address of no device", newNetwork("", rdma.Config{}), newNetwork("", rdma.Config{}), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := serve(t, test.server, "127.0.0.1")
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			conn, err := rpc.Dial(ctx, test.client, server.Addr().String())
			require.NoError(t, err)
			if test.client.Fabric != nil {
				defer test.client.Fabric.Close()
			}
			defer conn.Close()
			require.NoError(t, echo(ctx, conn, pattern(1, 100_000)))
			info := conn.Transport()
			require.Equal(t, transport.TCP, info.Kind)
			require.NotEmpty(t, info.Reason)
			require.Contains(t, info.Reason, test.reason)
			t.Log(info.Reason)
		})
	}
}

// A process that may lock too little memory calls over TCP, and the reason
// names the limit (case 50). The limit does not hold for root, so the client
// is somebody else.
func TestLockedMemoryLimit(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can start a process as somebody else")
	}
	host, local, err := rdmaPorts()
	if err != nil {
		t.Skip("skipped: ", err)
	}
	server := spawn(t, nil, "server", hostPort(host.String()))
	// The binary that go test made lies in a folder of root's alone.
	self := filepath.Join(t.TempDir(), "e2e.test")
	copyFile(t, os.Args[0], self)
	for dir := filepath.Dir(self); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	client := spawnCommand(t, nobody, "client", "/bin/sh",
		"-c", `ulimit -l 64; exec "$0" "$@"`, self, server.line, local.String())
	require.Contains(t, client.line, "tcp")
	require.Contains(t, client.line, "RLIMIT_MEMLOCK")
	t.Log(client.line)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}
