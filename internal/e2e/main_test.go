//go:build linux

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// The test binary is also the other process: with a role in its environment it
// does that instead of running tests, until its standard input ends.
const roleVar = "E2E_ROLE"

func TestMain(m *testing.M) {
	role, ok := os.LookupEnv(roleVar)
	if !ok {
		os.Exit(m.Run())
	}
	if err := roles[role](os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

var roles = map[string]func(args []string) error{
	"server": serverRole,
	"client": clientRole,
}

// echo returns what it is given; hang answers never, until its context ends.
var (
	echoMethod = &rpc.Method{Name: "/e2e.Test/Echo", Codec: codec.Raw}
	hangMethod = &rpc.Method{Name: "/e2e.Test/Hang", Codec: codec.Raw}

	// count is echo, and counts how often each call ran; see executions.
	countMethod = &rpc.Method{Name: "/e2e.Test/Count", Codec: codec.Raw}
)

type handlers struct{}

func (handlers) echo(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil }

func (handlers) hang(ctx context.Context, in *[]byte) (*[]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func newServer(network *transport.Network) (*rpc.Server, error) {
	s := rpc.NewServer(network)
	return s, s.Register(&rpc.ServiceDesc{Name: "e2e.Test", Methods: []rpc.MethodDesc{
		{Method: echoMethod, Handler: rpc.Unary(handlers.echo)},
		{Method: hangMethod, Handler: rpc.Unary(handlers.hang)},
		{Method: countMethod, Handler: rpc.Unary(handlers.count)},
	}}, handlers{})
}

// serverRole serves at the address it is given and prints the one it got.
func serverRole(args []string) error {
	network := newNetwork("", rdma.Config{})
	s, err := newServer(network)
	if err != nil {
		return err
	}
	if err := s.Listen(args[0]); err != nil {
		return err
	}
	fmt.Println(s.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Close()
	}()
	if err := s.Serve(); !errors.Is(err, rpc.ErrServerClosed) {
		return err
	}
	return network.Fabric.Close()
}

// clientRole calls the server at an address, from a local one, without end. It
// prints its link once the first call was answered.
func clientRole(args []string) error {
	network := newNetwork(args[1], rdma.Config{})
	conn, err := rpc.Dial(context.Background(), network, args[0])
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for i := range 16 {
		go func() {
			for n := 0; ; n++ {
				if err := echo(context.Background(), conn, pattern(i*1000+n, 100*n%20000)); err != nil {
					return
				}
			}
		}()
	}
	if err := echo(context.Background(), conn, pattern(1, 64)); err != nil {
		return err
	}
	fmt.Println(conn.Transport().Kind, conn.Transport().Reason)
	<-conn.Done()
	return nil
}

// serve runs a server in this process until the test ends.
func serve(t *testing.T, network *transport.Network, host string) *rpc.Server {
	t.Helper()
	server, err := newServer(network)
	require.NoError(t, err)
	require.NoError(t, server.Listen(hostPort(host)))
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	t.Cleanup(func() {
		server.Close()
		require.ErrorIs(t, <-served, rpc.ErrServerClosed)
		if network.Fabric != nil {
			require.NoError(t, network.Fabric.Close())
		}
	})
	return server
}

func newNetwork(local string, cfg rdma.Config) *transport.Network {
	return &transport.Network{
		Carrier: &tcp.Carrier{Config: tcp.Config{LocalAddr: local}},
		Fabric:  rdma.New(cfg),
	}
}

// echo makes one call and checks what comes back.
func echo(ctx context.Context, conn *rpc.Conn, payload []byte) error {
	var reply []byte
	if err := rpc.Call(ctx, conn, echoMethod, &payload, &reply); err != nil {
		return err
	}
	if !slices.Equal(reply, payload) {
		return fmt.Errorf("sent %d bytes, other %d came back", len(payload), len(reply))
	}
	return nil
}

// pattern is n bytes that differ from those of another seed.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed*31 + i>>8)
	}
	return b
}

// process is another process of this test binary.
type process struct {
	*exec.Cmd
	stdin io.Closer
	line  string // the first it printed
}

// spawn starts a role and waits for its first line. attr may be nil.
func spawn(t *testing.T, attr *syscall.SysProcAttr, role string, args ...string) *process {
	t.Helper()
	return spawnCommand(t, attr, role, os.Args[0], args...)
}

// spawnCommand is spawn by way of another program, which runs this binary.
func spawnCommand(t *testing.T, attr *syscall.SysProcAttr, role, program string, args ...string) *process {
	t.Helper()
	p, stdout := start(t, attr, role, program, args...)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "%s did not start", role)
	p.line = strings.TrimSpace(line)
	return p
}

// start starts a role and waits for nothing.
func start(t *testing.T, attr *syscall.SysProcAttr, role, program string, args ...string) (*process, io.Reader) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{Cmd: cmd, stdin: stdin}
	t.Cleanup(p.kill)
	return p, stdout
}

// kill ends the process as kill -9 does, and waits for it.
func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// world is where the two processes live: on two devices if there are two, else
// on the loopback interface.
type world struct {
	server, client string // addresses
	kind           transport.Kind
}

// worlds are TCP always, and RDMA where there are two active ports.
func worlds(t *testing.T) []world {
	all := []world{{"127.0.0.1", "127.0.0.1", transport.TCP}}
	server, client, err := rdmaPorts()
	switch {
	case err == nil:
		return append(all, world{server.String(), client.String(), transport.RDMA})
	case os.Getenv("VERBENA_VM") != "":
		t.Fatalf("RDMA is required here: %v", err)
	}
	t.Logf("over TCP alone: %v", err)
	return all
}

func rdmaPorts() (server, client netip.Addr, err error) {
	ports, err := rdma.Ports()
	if err != nil {
		return server, client, err
	}
	var active []netip.Addr
	for _, p := range ports {
		if p.Active && p.Addr.Is4() {
			active = append(active, p.Addr)
		}
	}
	if len(active) < 2 {
		return server, client, fmt.Errorf("two active RDMA ports with IPv4 addresses are needed, there are %d", len(active))
	}
	return active[1], active[0], nil
}

// resources are what a peer's death must not leave behind.
type resources struct {
	Goroutines, FDs, QPs, Quarantined int
}

// held counts what this process holds for sessions. Warm QPs wait for the
// next one and are the fabric's own.
func held(f transport.Fabric) resources {
	s := f.(*rdma.Fabric).Stats()
	fds, _ := os.ReadDir("/proc/self/fd")
	return resources{
		Goroutines: runtime.NumGoroutine(), FDs: len(fds),
		QPs: s.QPs - s.Pooled, Quarantined: s.Quarantined,
	}
}

// within says that nothing exceeds before.
func (r resources) within(before resources) bool {
	return r.Goroutines <= before.Goroutines && r.FDs <= before.FDs && r.QPs <= before.QPs && r.Quarantined <= before.Quarantined
}

// requireBack waits until what is held is no more than before.
func requireBack(t *testing.T, f transport.Fabric, before resources) {
	t.Helper()
	now := held(f)
	for deadline := time.Now().Add(10 * time.Second); !now.within(before); now = held(f) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			t.Fatalf("10 s later more is held than before: %+v, was %+v\n%s", now, before, stacks)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func hostPort(host string) string { return net.JoinHostPort(host, "0") }
