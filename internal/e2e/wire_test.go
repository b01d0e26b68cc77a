//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/internal/vm/inside"
)

// The client's end of the VM's wire, and the addresses of both.
const (
	clientEnd  = "va"
	clientAddr = "10.8.0.1"
	serverAddr = "10.8.1.1"
)

// ip runs ip(8).
func ip(args ...string) error {
	_, err := inside.Run("", append([]string{"ip"}, args...)...)
	return err
}

// dropRoCE drops the packets of all QPs while during runs: a rule of the
// kernel's routing finds no way for what comes to the port of RoCE v2.
func dropRoCE(t *testing.T, during func()) {
	t.Helper()
	rule := func(do string) {
		require.NoError(t, ip("rule", do, "pref", "1", "ipproto", "17", "dport", "4791", "blackhole"))
	}
	rule("add")
	defer rule("del")
	during()
}

// cutCable takes the client's interface down and, after 2 s, up.
func cutCable(t *testing.T) {
	t.Helper()
	began := time.Now()
	require.NoError(t, ip("link", "set", clientEnd, "down"))
	time.Sleep(2 * time.Second)
	raise(t)
	// Once in many runs the wire stayed dead after it was up, for longer than a
	// session lives: of the test bed, and not what is tested.
	for try := 0; !wireLives(2 * time.Second); try++ {
		t.Logf("the wire is dead %v after the cut: %s", time.Since(began), wireState())
		require.Less(t, try, 3, "the wire does not come back")
		require.NoError(t, ip("link", "set", clientEnd, "down"))
		raise(t)
	}
	t.Logf("the cable was cut for %v", time.Since(began))
}

// raise takes the client's interface up, with the routes that went with it.
func raise(t *testing.T) {
	t.Helper()
	require.NoError(t, ip("link", "set", clientEnd, "up"))
	require.NoError(t, inside.RestoreRoutes())
}

// wireLives says that the server's end answers within d: it refuses a connection.
func wireLives(d time.Duration) bool {
	dialer := net.Dialer{Timeout: d, LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientAddr)}}
	conn, err := dialer.Dial("tcp", net.JoinHostPort(serverAddr, "1"))
	if err == nil {
		conn.Close()
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

// wireState is what a person needs to see of a wire that does not work.
func wireState() string {
	var all strings.Builder
	for _, command := range []string{
		"ip -s link", "ip neigh", "ip rule", "ip route show table all", "ss -tino", "cat /proc/softirqs /proc/loadavg", "dmesg",
	} {
		out, err := exec.Command("sh", "-c", command+" | tail -n 40").CombinedOutput()
		fmt.Fprintf(&all, "\n== %s (%v)\n%s", command, err, out)
	}
	return all.String()
}
