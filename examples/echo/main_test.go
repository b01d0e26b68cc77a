package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const commandEnv = "VERBENA_ECHO_TEST"

// TestMain makes the test binary the command itself, so that tests run it in
// processes of its own.
func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	return cmd
}

func TestEcho(t *testing.T) {
	server := command("-listen", "127.0.0.1:0")
	stdout, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	defer server.Wait()
	defer server.Process.Kill()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	var addr string
	_, err = fmt.Sscanf(line, "listening on %s", &addr)
	require.NoError(t, err)

	out, err := command("-addr", addr, "-n", "10", "hello", "there").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `(?s)^hello there\n10 calls over (rdma|tcp) \(.+\), .*s each\n$`, string(out))

	out, err = command("-tcp", "-addr", addr, "hello").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "calls over tcp (")

	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait())
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{}, {"-listen", "x", "-addr", "x"}, {"-addr", "x", "-n", "0"}, {"-addr", "x"}, {"-listen", "x"}} {
		out, err := command(args...).CombinedOutput()
		require.Error(t, err, "%v", args)
		require.Contains(t, string(out), "echo: ")
	}
}
