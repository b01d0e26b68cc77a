package vm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKernelFaultsAreNamed(t *testing.T) {
	for line, want := range map[string]string{
		"watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [rxe_test:412]":         "soft lockup",
		"watchdog: Watchdog detected hard LOCKUP on cpu 0":                         "hard lockup",
		"refcount_t: underflow; use-after-free.":                                   "refcount",
		"INFO: task kworker/u4:2:61 blocked for more than 120 seconds.":            "hung task",
		"rcu: INFO: rcu_preempt self-detected stall on CPU":                        "RCU stall",
		"rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:":                    "RCU stall",
		"general protection fault, probably for non-canonical address 0xdead: 0":   "general protection fault",
		"Oops: 0002 [#1] PREEMPT SMP NOPTI":                                        "oops",
		"BUG: kernel NULL pointer dereference, address: 0000000000000010":          "BUG",
		"kernel BUG at mm/slub.c:379!":                                             "BUG",
		"WARNING: CPU: 1 PID: 512 at drivers/infiniband/sw/rxe/rxe_pool.c:259 x":   "WARNING",
		"UBSAN: array-index-out-of-bounds in drivers/x.c:1:2":                      "undefined behaviour",
		"unregister_netdevice: waiting for va to become free. Usage count = 3":     "device still referenced",
		"Out of memory: Killed process 312 (bench) total-vm:1kB, anon-rss:1kB":     "out of memory (give the guest more)",
		"Kernel panic - not syncing: Fatal exception in interrupt":                 "panic",
		"WARNING: possible circular locking dependency detected BUG: then another": "BUG",
	} {
		log := "[    1.000000] before\r\n[   12.345678] " + line + "\r\n[   12.4] after\r\n"
		f := findKernelFault([]byte(log))
		require.NotNil(t, f, line)
		require.Equal(t, want, f.Kind, line)
		require.Equal(t, line, f.Line)
		require.Equal(t, -1, f.ExitCode)
		require.Contains(t, f.Excerpt, "before")
		require.NotContains(t, f.Excerpt, "\r")
	}
}

// Lines of a healthy boot, and of a fault that is not the kernel's.
func TestHealthyLog(t *testing.T) {
	for _, line := range []string{
		"",
		"[    0.628910] \tRCU CPU stall warnings timeout set to 60 (rcu_cpu_stall_timeout).",
		`[    1.448855] PCI: Using host bridge windows from ACPI; if necessary, use "pci=nocrs" and report a bug`,
		"[    1.933191] AMD-Vi: AMD IOMMUv2 functionality not available on this system - This is not a bug.",
		"[    3.308647] rdma_rxe: loaded",
		"[    6.000000] a.out[99]: segfault at 0 ip 0000000000401136 sp 00007ffe error 6 in a.out",
		"[    6.000000] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000200",
	} {
		require.Nil(t, findKernelFault([]byte(line)), line)
	}
}

func TestExcerptIsBounded(t *testing.T) {
	var lines []string
	for i := range 200 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	lines[100] = "WARNING: first"
	lines[150] = "BUG: second"
	f := findKernelFault([]byte(strings.Join(lines, "\n")))
	require.Equal(t, "WARNING: first", f.Line)
	require.Equal(t, strings.Join(lines[97:140], "\n"), f.Excerpt)

	lines[110] = "---[ end trace 0000000000000000 ]---"
	f = findKernelFault([]byte(strings.Join(lines, "\n")))
	require.Equal(t, strings.Join(lines[97:111], "\n"), f.Excerpt)
}

func TestKernelFaultTellsWhatTheProgramSaid(t *testing.T) {
	f := &KernelFault{Kind: "BUG", Line: "BUG: x", ExitCode: 0}
	require.Equal(t, "kernel fault, not a test failure: BUG: BUG: x (the program itself exited with 0)", f.Error())
	f.ExitCode = -1
	require.Contains(t, f.Error(), "(the program did not end)")
}

func TestLogTail(t *testing.T) {
	require.Equal(t, "c\nd", logTail([]byte("a\r\nb\r\nc\r\nd\r\n"), 2))
	require.Equal(t, "a", logTail([]byte("a"), 2))
	require.Contains(t, logTail(nil, 2), "empty")
}
