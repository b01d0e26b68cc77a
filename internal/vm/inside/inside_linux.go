// Package inside is for tests that run in the VM and do something to its wire,
// which package vm draws.
package inside

import (
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// RoutesFile is a batch for ip(8) with the routes of the wire. Setting an
// interface down, or taking its address away, flushes them.
const RoutesFile = "/run/verbena-routes"

// Run runs a command, which reads input, ahead of everything else in the VM: the
// load of a test leaves little of it. It returns what the command printed; the
// error has that too.
func Run(input string, args ...string) (string, error) {
	var out strings.Builder
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	err := cmd.Start()
	if err == nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, -20)
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, input, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// RestoreRoutes puts back what RoutesFile has.
func RestoreRoutes() error {
	_, err := Run("", "ip", "-batch", RoutesFile)
	return err
}
