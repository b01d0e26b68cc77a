package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bootTimeouts bound one boot after the other. A guest boots in seconds; on a
// host that is busy with other guests it has taken half a minute. About one
// boot in a hundred stops for ever somewhere in the kernel's set-up, seen under
// emulation only: since nothing has run yet, it is simply tried again.
var bootTimeouts = []time.Duration{45 * time.Second, 90 * time.Second, 2 * time.Minute}

// errHung is a boot that did not end in its time.
var errHung = fmt.Errorf("%w: nothing heard", ErrBoot)

// Bounds of one run.
const (
	quitGrace  = 5 * time.Second // from SIGQUIT to the end of a program past its deadline
	drainGrace = 2 * time.Second // for Stdout and Stderr to take the last output
	maxLog     = 16 << 20        // bytes of console kept; the first fault is what counts
)

// Run boots a guest, runs the program in it and waits for its end. The error is
// nil when the program ran to its end, whatever its exit code, and the kernel
// did not complain; a *KernelFault when it did; else it wraps one of the errors
// of this package, or ctx's. When ctx ends, or this process dies in any way, the
// guest dies at once. Run may be called by several goroutines.
func Run(ctx context.Context, cfg Config) (Result, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Result{}, err
	}
	qemu, m, err := prepare(cfg)
	if err != nil {
		return Result{}, err
	}
	end := time.Now().Add(cfg.Timeout)
	var res Result
	for _, timeout := range bootTimeouts {
		res, err = runGuest(ctx, cfg, qemu, m, timeout, end)
		if !errors.Is(err, errHung) {
			break
		}
	}
	return res, err
}

// runGuest is one attempt of Run.
func runGuest(ctx context.Context, cfg Config, qemu string, m machine, bootTimeout time.Duration, end time.Time) (Result, error) {
	g, err := startGuest(qemu, m.args(), cfg.KernelLog)
	if err != nil {
		return Result{}, err
	}
	s := newSession(g.control, cfg)
	res, err := g.run(ctx, cfg, s, bootTimeout, end)
	g.kill() // its disk is memory, and what counts has arrived
	res.KernelLog = g.close(s)
	return res, g.explain(res, err)
}

// Check says whether Run can work here, without starting anything.
func Check() error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	if _, err := findQEMU(); err != nil {
		return err
	}
	_, err = findKernel(cache)
	return err
}

func findQEMU() (string, error) {
	if runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("%w, this is linux/%s", ErrUnsupported, runtime.GOARCH)
	}
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return "", ErrNoQEMU
	}
	return path, nil
}

func prepare(cfg Config) (qemu string, m machine, err error) {
	if qemu, err = findQEMU(); err != nil {
		return "", machine{}, err
	}
	if cfg.CacheDir == "" {
		if cfg.CacheDir, err = CacheDir(); err != nil {
			return "", machine{}, err
		}
	}
	k, err := findKernel(cfg.CacheDir)
	if err != nil {
		return "", machine{}, err
	}
	initrd, err := ensureInitrd(cfg.CacheDir, k, cfg.Init, cfg.Modules)
	if err != nil {
		return "", machine{}, err
	}
	return qemu, machine{kernel: k.bootImage(), initrd: initrd, cpus: cfg.CPUs, memoryMiB: cfg.MemoryMiB}, nil
}

// guest is a running QEMU and the host's ends of its two channels. It belongs
// to the goroutine that called Run. Order of closing: QEMU is killed, then its
// channels end by themselves, then the files are closed.
type guest struct {
	started          time.Time
	control, console *os.File
	kill             func()
	exited           chan struct{} // closed when QEMU is gone
	stderr           limitedBuffer // QEMU's own words; read after exited
	log              limitedBuffer // the console; read after logged
	logged           chan struct{} // closed when the console has ended
	ready            bool          // the program was started
}

func startGuest(qemu string, args []string, kernelLog io.Writer) (*guest, error) {
	var guestEnds [2]*os.File
	g := &guest{started: time.Now(), exited: make(chan struct{}), logged: make(chan struct{})}
	for i, host := range []**os.File{&g.control, &g.console} {
		var err error
		if *host, guestEnds[i], err = socketPair(); err != nil {
			g.control.Close() // or nil, which is harmless
			return nil, fmt.Errorf("socketpair: %w", err)
		}
		defer guestEnds[i].Close()
	}
	cmd := exec.Command(qemu, args...)
	cmd.ExtraFiles = guestEnds[:] // fdControl, fdConsole
	cmd.Stderr = &g.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // a terminal's ^C is for the runner to handle
		Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, so this
		// thread has to last as long as QEMU.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // QEMU's exit status says nothing: the result frame does
			close(g.exited)
		}
	}()
	if err := <-started; err != nil {
		g.control.Close()
		g.console.Close()
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	g.kill = func() { cmd.Process.Kill() }
	go func() {
		io.Copy(io.MultiWriter(&g.log, kernelLog), g.console)
		close(g.logged)
	}()
	return g, nil
}

// socketPair returns a pollable host end and a guest end.
func socketPair() (host, guest *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest"), nil
}

// run drives the control port until the result, the deadline at end, or ctx.
func (g *guest) run(ctx context.Context, cfg Config, s *session, bootTimeout time.Duration, end time.Time) (res Result, err error) {
	boot, deadline := time.NewTimer(bootTimeout), time.NewTimer(time.Until(end))
	defer boot.Stop()
	defer deadline.Stop()
	var grace <-chan time.Time // runs once the deadline has passed
	for {
		select {
		case e := <-s.events:
			if e.ready != nil {
				g.ready = true
				boot.Stop()
				res.Kernel, res.Boot = e.ready.Kernel, time.Since(g.started)
				continue
			}
			if grace != nil {
				return res, fmt.Errorf("%w (%v)", ErrDeadline, cfg.Timeout)
			}
			return g.outcome(res, e)
		case <-boot.C:
			return res, fmt.Errorf("%w for %v", errHung, bootTimeout)
		case <-deadline.C:
			if !g.ready {
				return res, fmt.Errorf("%w (%v), before the program was started", ErrDeadline, cfg.Timeout)
			}
			s.quit()
			grace = time.After(quitGrace)
		case <-grace:
			return res, fmt.Errorf("%w (%v)", ErrDeadline, cfg.Timeout)
		case <-cfg.Quit:
			s.quit()
		case <-ctx.Done():
			return res, fmt.Errorf("%w", context.Cause(ctx))
		}
	}
}

// outcome turns the end of the control port into the end of the run.
func (g *guest) outcome(res Result, e sessionEvent) (Result, error) {
	rig := ErrLost
	if !g.ready {
		rig = ErrBoot
	}
	switch {
	case errors.Is(e.err, ErrOutput):
		return res, fmt.Errorf("%w", e.err)
	case e.err != nil:
		return res, fmt.Errorf("%w: %w", rig, e.err)
	case e.result.Fault != "":
		return res, fmt.Errorf("%w: %s", rig, e.result.Fault)
	case e.result.NotStarted != "":
		return res, fmt.Errorf("%w: %s", ErrStart, e.result.NotStarted)
	}
	res.ExitCode = e.result.ExitCode
	return res, nil
}

// close waits for the end of QEMU and of all that reads from it, and returns the
// console. A Stdout that takes nothing must not hold up a run past its deadline.
func (g *guest) close(s *session) []byte {
	<-g.exited
	<-g.logged
	select {
	case <-s.ended:
	case <-time.After(drainGrace):
	}
	g.control.Close()
	g.console.Close()
	return g.log.buf
}

// explain gives a failure its right name: the kernel's faults come before all
// that may have followed from them, except that a guest which did not come up
// has not run anything.
func (g *guest) explain(res Result, err error) error {
	if errors.Is(err, ErrBoot) {
		said := g.stderr.buf
		if len(said) == 0 {
			said = res.KernelLog
		}
		return fmt.Errorf("%w; last words:\n%s", err, logTail(said, 15))
	}
	fault := findKernelFault(res.KernelLog)
	if fault == nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w; %w", fault, err)
	}
	fault.ExitCode = res.ExitCode
	return fault
}

// limitedBuffer keeps the first maxLog bytes written to it.
type limitedBuffer struct{ buf []byte }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.buf = append(b.buf, p[:min(len(p), maxLog-len(b.buf))]...)
	return len(p), nil
}
