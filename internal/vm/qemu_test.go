package vm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMachineArgs(t *testing.T) {
	args := machine{kernel: "/k", initrd: "/i", cpus: 2, memoryMiB: 4096}.args()
	line := strings.Join(args, " ")
	for _, want := range []string{
		"-accel tcg,thread=multi ", "-smp 2 ", "-m 4096 ", "-kernel /k ", "-initrd /i ",
		"tsc=reliable clocksource=tsc", "mitigations=off", "-no-reboot", "path=/,security_model=none,readonly=on",
		"id=control,fd=3", "id=console,fd=4",
	} {
		require.Contains(t, line, want)
	}
	for i, a := range args {
		if a == "-append" {
			require.Contains(t, args[i+1], "console=ttyS0") // one argument, whatever spaces
			require.Contains(t, args[i+1], "rdinit=/init")
		}
	}
}
