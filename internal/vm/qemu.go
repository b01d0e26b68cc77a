package vm

import (
	"fmt"
	"strings"
)

// Descriptors of QEMU beyond the standard three, in the order in which the
// runner passes them.
const (
	fdControl = 3
	fdConsole = 4
)

// machine is what QEMU is asked to emulate.
type machine struct {
	kernel, initrd string
	cpus           int
	memoryMiB      int
}

// args builds QEMU's command line. TCG is asked for by name: KVM may be present
// and hang (seen in nested machines), and timings are comparable between
// machines only if all emulate.
func (m machine) args() []string {
	return []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", fmt.Sprint(m.cpus), "-m", fmt.Sprint(m.memoryMiB),
		"-kernel", m.kernel, "-initrd", m.initrd, "-append", strings.Join(kernelCommandLine, " "),
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", fdConsole),
		"-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=control,fd=%d", fdControl),
		"-device", "virtserialport,chardev=control,nr=1,name=verbena.control",
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag=" + rootTag,
	}
}

const rootTag = "hostroot"

// kernelCommandLine of the guest.
var kernelCommandLine = []string{
	"console=ttyS0", "printk.devkmsg=on",
	// Without these every clock read of a program traps into the emulated HPET.
	"tsc=reliable", "clocksource=tsc",
	"mitigations=off",
	// A kernel that has oopsed proves nothing more: end at once (-no-reboot).
	"oops=panic", "panic=-1",
	// A busy host may starve the emulated CPUs for seconds; that is no lock-up.
	"watchdog_thresh=30", "rcupdate.rcu_cpu_stall_timeout=60",
	"rdinit=/init",
}
