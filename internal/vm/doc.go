// Package vm runs one program inside a virtual machine that has two RDMA
// devices, so that tests and benchmarks meet a real kernel verbs stack on
// machines that have no RDMA hardware.
//
//	host                                guest: Debian's stock kernel, QEMU TCG
//	┌───────────────────────┐           ┌──────────────────────────────────────┐
//	│ verbena-vm run        │  control  │ verbena-vm as PID 1                  │
//	│  stdin-less, streams, │◀────────▶│  program (environment, cwd of host)  │
//	│  exit code, deadline  │  console  │  rxe0 ─ va ══ veth ══ vb ─ rxe1      │
//	│  kernel log scan      │◀──────── │  overlay(tmpfs) over 9p(host "/", ro)│
//	└───────────────────────┘           └──────────────────────────────────────┘
//
// One static binary is both the runner on the host and PID 1 in the guest; it
// travels in an initrd that the package writes itself. The control port (a
// virtio-serial port, see frame.go) carries the job to the guest and the
// program's output, files and exit status back, in order. The kernel log has
// a channel of its own, the first serial port, and is scanned after the run.
//
// The files follow that picture: config.go (what to run), run_linux.go and
// qemu.go (host), session.go and frame.go (the control port), initrd.go and
// modules.go (what is booted), guest_linux.go, network_linux.go and
// program_linux.go (PID 1), kernellog.go (faults of the kernel), kernel.go and
// setup_linux.go (what is installed and cached).
package vm
