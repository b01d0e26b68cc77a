package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/examples/blockstore/blockpb"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

const commandEnv = "VERBENA_BLOCKSTORE_TEST"

// TestMain makes the test binary the command itself, so that tests run it in
// processes of its own.
func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func start(t *testing.T, stdin []byte, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}

// startServer runs a server and returns its address.
func startServer(t *testing.T, file string, flags ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd, out := start(t, nil, append(flags, "-listen", "127.0.0.1:0", "-file", file)...)
	for {
		line, err := out.ReadString('\n')
		require.NoError(t, err)
		var addr string
		if _, err := fmt.Sscanf(line, "listening on %s", &addr); err == nil {
			return cmd, addr
		}
		t.Log(line)
	}
}

func runClient(t *testing.T, stdin []byte, args ...string) ([]byte, error) {
	t.Helper()
	cmd, out := start(t, stdin, args...)
	b, err := io.ReadAll(out)
	require.NoError(t, err)
	return b, cmd.Wait()
}

func TestCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "blocks")
	server, addr := startServer(t, file)
	block := bytes.Repeat([]byte("0123456789"), 50_000)
	for _, flags := range [][]string{{"-addr", addr}, {"-tcp", "-addr", addr}} {
		_, err := runClient(t, block, append(flags, "put", "7")...)
		require.NoError(t, err)
		got, err := runClient(t, nil, append(flags, "get", "7")...)
		require.NoError(t, err)
		require.True(t, bytes.Equal(block, got))
		_, err = runClient(t, nil, append(flags, "delete", "7")...)
		require.NoError(t, err)
		for _, wrong := range [][]string{{"get", "7"}, {"get", "x"}, {"grow", "7"}, {"get"}} {
			_, err = runClient(t, nil, append(flags, wrong...)...)
			require.Error(t, err, "%v", wrong)
		}
	}
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait())
}

func dial(t *testing.T, addr string) blockpb.BlocksClient {
	t.Helper()
	conn, err := rpc.Dial(t.Context(), &transport.Network{Carrier: &tcp.Carrier{}}, addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return blockpb.NewBlocksClient(conn)
}

func TestCodes(t *testing.T) {
	_, addr := startServer(t, filepath.Join(t.TempDir(), "blocks"), "-tcp")
	blocks := dial(t, addr)
	_, err := blocks.Get(t.Context(), &blockpb.GetRequest{Id: 1})
	require.ErrorIs(t, err, rpc.NotFound)
	_, err = blocks.Put(t.Context(), &blockpb.PutRequest{Id: 1, Data: make([]byte, 1<<20+1)})
	require.ErrorIs(t, err, rpc.InvalidArgument)
	_, err = blocks.Put(t.Context(), &blockpb.PutRequest{Id: 1, Data: make([]byte, 1<<20)})
	require.NoError(t, err)
	reply, err := blocks.Get(t.Context(), &blockpb.GetRequest{Id: 1})
	require.NoError(t, err)
	require.Len(t, reply.Data, 1<<20)
}

// version is what a writer puts as the n-th version of a block.
func version(id, n uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, n)
	return append(b, bytes.Repeat(binary.LittleEndian.AppendUint64(nil, id^n), int(id%64+n%32))...)
}

// A server that is killed at any moment has every block that it acknowledged:
// in that version, or in the one after it, whose reply was lost.
func TestKill(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	file := filepath.Join(t.TempDir(), "blocks")
	const writers = 16
	var acked, sent [writers]uint64 // versions
	for range 6 {
		server, addr := startServer(t, file, "-tcp")
		blocks := dial(t, addr)
		var wg sync.WaitGroup
		for id := range uint64(writers) {
			check(t, blocks, id, acked[id], sent[id])
			wg.Go(func() {
				for n := sent[id] + 1; ; n++ {
					sent[id] = n
					if _, err := blocks.Put(context.Background(), &blockpb.PutRequest{Id: id, Data: version(id, n)}); err != nil {
						return
					}
					acked[id] = n
				}
			})
		}
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		require.NoError(t, server.Process.Kill())
		wg.Wait()
	}
	t.Logf("acknowledged versions: %v", acked)
	require.NotZero(t, acked)
}

func check(t *testing.T, blocks blockpb.BlocksClient, id, acked, sent uint64) {
	t.Helper()
	reply, err := blocks.Get(t.Context(), &blockpb.GetRequest{Id: id})
	if acked == 0 && rpc.CodeOf(err) == rpc.NotFound {
		return
	}
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(reply.Data)
	require.True(t, n >= acked && n <= sent, "block %d is version %d, acknowledged was %d of %d", id, n, acked, sent)
	require.True(t, bytes.Equal(version(id, n), reply.Data))
}

// A damaged file is not served.
func TestDamagedFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "blocks")
	require.NoError(t, os.WriteFile(file, []byte("not blocks"), 0o600))
	cmd := exec.Command(os.Args[0], "-listen", "127.0.0.1:0", "-file", file)
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "corrupt at offset 0")
}
