package vm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// These tests boot guests through the command, as users do. Where that cannot
// be they are skipped; VERBENA_REQUIRE_RDMA=1 makes that a failure.

// verbenaVM is the command, built for this run of the tests.
var verbenaVM string

func TestMain(m *testing.M) {
	if os.Getenv("VERBENA_VM") != "" { // the guest part of a test
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "verbena-vm-test-")
	if err != nil {
		panic(err)
	}
	verbenaVM = filepath.Join(dir, "verbena-vm")
	build := exec.Command("go", "build", "-o", verbenaVM, "github.com/verbena-rpc/verbena/cmd/verbena-vm")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr // the tests that need it will fail
	build.Run()
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// outcome of one verbena-vm run.
type outcome struct {
	code           int
	stdout, stderr string
}

// vmCommand prepares a run, or ends the test where there can be none.
func vmCommand(t *testing.T, args []string) *exec.Cmd {
	t.Helper()
	err := Check()
	if err == nil && os.Getenv("VERBENA_VM") != "" {
		err = errors.New("this is a guest already")
	}
	if err != nil && os.Getenv("VERBENA_REQUIRE_RDMA") == "1" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip("no VM: ", err)
	}
	return exec.Command(verbenaVM, append([]string{"run", "-v"}, args...)...)
}

// startVM is for tests that act while the program runs.
func startVM(t *testing.T, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := vmCommand(t, args)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewReader(stdout)
}

func runVM(t *testing.T, args ...string) outcome {
	t.Helper()
	cmd := vmCommand(t, args)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Run()
	t.Logf("%s", &stderr)
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func TestVMCarriesOutputFilesAndExitCode(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("VERBENA_TEST_GREETING", "hello")
	t.Chdir(dir)
	got := runVM(t, "-mtu", "1500", "-out", "/out/="+dir+"/out", "-out", dir+"/file", "--", "/bin/sh", "-c", `
		printf 'line\r\nno newline'; echo "$VERBENA_TEST_GREETING" >&2
		pwd >/out/pwd; cat /sys/class/net/va/mtu >/out/mtu; seq 100000 >file; echo lost >lost
		exit 77`)
	require.Equal(t, 77, got.code)
	require.Equal(t, "line\r\nno newline", got.stdout)
	require.Contains(t, got.stderr, "hello\n")
	require.NotContains(t, got.stdout+got.stderr, "[    0.") // the kernel log is elsewhere
	for name, want := range map[string]string{"out/pwd": dir + "\n", "out/mtu": "1500\n"} {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	b, err := os.ReadFile("file")
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(b, []byte("\n99999\n100000\n")))
	require.NoFileExists(t, "lost")
}

// The devices talk, and over the wire: what one sends, va counts.
func TestVMHasTwoDevicesOnAWire(t *testing.T) {
	if _, err := exec.LookPath("ib_send_lat"); err != nil {
		t.Skip("no perftest: ", err)
	}
	const messages = 500
	got := runVM(t, "--", "/bin/sh", "-ec", fmt.Sprintf(`
		ls /sys/class/infiniband
		packets() { cat /sys/class/net/va/statistics/tx_packets; }
		before=$(packets)
		ib_send_lat -d rxe1 -x 1 -s 64 -n %[1]d >/dev/null &
		until grep -q :4853 /proc/net/tcp; do sleep 0.1; done # it listens on 18515
		ib_send_lat -d rxe0 -x 1 -s 64 -n %[1]d 10.8.1.1 | grep Mtu
		wait
		test $(($(packets) - before)) -ge %[1]d && echo crossed
		test $(cat /sys/class/net/lo/statistics/tx_packets) = 0 && echo nothing on lo`, messages))
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "rxe0\nrxe1\n")
	require.Contains(t, got.stdout, ": 4096[B]")
	require.Contains(t, got.stdout, "crossed\nnothing on lo\n")
}

// So do connections that rdma_cm makes, over the wire.
func TestVMConnectsByRDMACM(t *testing.T) {
	if _, err := exec.LookPath("fi_pingpong"); err != nil {
		t.Skip("no libfabric-bin: ", err)
	}
	const messages = 500
	got := runVM(t, "--", "/bin/sh", "-ec", fmt.Sprintf(`
		packets() { cat /sys/class/net/va/statistics/tx_packets; }
		before=$(packets)
		fi_pingpong -p verbs -e msg -d rxe1 -I %[1]d -S 64 >/dev/null &
		until grep -q :B9E8 /proc/net/tcp; do sleep 0.1; done # it listens on 47592
		fi_pingpong -p verbs -e msg -d rxe0 -I %[1]d -S 64 10.8.1.1
		wait
		test $(($(packets) - before)) -ge %[1]d && echo crossed`, messages))
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "crossed\n")
}

// So does TCP, whether or not the client binds an address. The part that runs in
// the guest is this test itself.
func TestVMCarriesTCPOverTheWire(t *testing.T) {
	if os.Getenv("VERBENA_VM") == "" {
		got := runVM(t, "--", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		require.Zero(t, got.code, got.stdout)
		require.Contains(t, got.stdout, "--- PASS: "+t.Name())
		return
	}
	const size = 1 << 20
	for _, c := range []struct{ link, server, local, client string }{
		{"va", "10.8.1.1", "10.8.0.1", "10.8.0.1"},
		{"vb", "10.8.0.1", "10.8.1.1", "10.8.1.1"},
		{"va", "10.8.1.1", "", "10.8.0.1"},
		{"vb", "10.8.0.1", "", "10.8.1.1"},
	} {
		sent, local := counter(t, c.link), counter(t, "lo")
		l, err := net.Listen("tcp", c.server+":0")
		require.NoError(t, err)
		go func() {
			if conn, err := l.Accept(); err == nil {
				io.Copy(io.Discard, conn)
				conn.Close()
			}
		}()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.local)}}
		conn, err := d.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		require.Equal(t, c.client, conn.LocalAddr().(*net.TCPAddr).IP.String())
		_, err = conn.Write(make([]byte, size))
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		_, err = conn.Read(make([]byte, 1)) // the other side has taken all
		require.Equal(t, io.EOF, err)
		require.GreaterOrEqual(t, counter(t, c.link)-sent, size)
		require.Equal(t, local, counter(t, "lo"))
		conn.Close()
		l.Close()
	}
}

// counter returns the bytes that an interface has sent.
func counter(t *testing.T, link string) int {
	b, err := os.ReadFile("/sys/class/net/" + link + "/statistics/tx_bytes")
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	return n
}

func TestVMTellsASignalFromAnExit(t *testing.T) {
	got := runVM(t, "--", "/bin/sh", "-c", "sleep 1000 & kill -9 $$") // what is left behind does not hold it up
	require.Equal(t, 128+9, got.code)
}

func TestVMTellsAProgramThatCannotStart(t *testing.T) {
	got := runVM(t, "--", "/no/such/program")
	require.Equal(t, 127, got.code)
	require.Contains(t, got.stderr, ErrStart.Error())
}

func TestVMTellsAKernelFaultFromAFailure(t *testing.T) {
	got := runVM(t, "--", "/bin/sh", "-c", "echo '<3>BUG: pretended' >/dev/kmsg; exit 3")
	require.Equal(t, 122, got.code)
	require.Contains(t, got.stderr, "kernel fault, not a test failure: BUG: BUG: pretended (the program itself exited with 3)")
}

func TestVMEndsAtTheDeadline(t *testing.T) {
	got := runVM(t, "-timeout", "10s", "--", "sleep", "1000")
	require.Equal(t, 124, got.code)
	require.Contains(t, got.stderr, ErrDeadline.Error())
}

// The go command sends SIGQUIT to a test that hangs, to see its goroutines.
func TestVMPassesSIGQUITOn(t *testing.T) {
	cmd, stdout := startVM(t, "--", "/bin/sh", "-c", "trap 'echo asked to quit; exit 4' QUIT; echo up; while :; do sleep 1; done")
	require.Equal(t, "up\n", readLine(stdout))
	require.NoError(t, cmd.Process.Signal(syscall.SIGQUIT))
	require.Equal(t, "asked to quit\n", readLine(stdout))
	cmd.Wait()
	require.Equal(t, 4, cmd.ProcessState.ExitCode())
}

// Whatever kills the runner, the guest must not stay behind and eat two CPUs.
func TestVMDiesWithItsRunner(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, stdout := startVM(t, "--", "/bin/sh", "-c", "echo up; sleep 1000")
			require.Equal(t, "up\n", readLine(stdout))
			qemu := childOf(cmd.Process.Pid)
			require.True(t, running(qemu))
			require.NoError(t, cmd.Process.Signal(sig))
			cmd.Wait()
			require.Eventually(t, func() bool { return !running(qemu) }, 20*time.Second, 50*time.Millisecond)
		})
	}
}

func readLine(r *bufio.Reader) string {
	line, _ := r.ReadString('\n')
	return line
}

// childOf returns the pid of a process whose parent is pid.
func childOf(pid int) string {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		if _, ppid := procStat(file); ppid == fmt.Sprint(pid) {
			return filepath.Base(filepath.Dir(file))
		}
	}
	return ""
}

// running is false for a zombie as well: it waits for init alone.
func running(pid string) bool {
	state, _ := procStat("/proc/" + pid + "/stat")
	return state != "" && state != "Z"
}

// procStat reads two of the fields that follow the command in parentheses.
func procStat(file string) (state, ppid string) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", ""
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	return fields[0], fields[1]
}
