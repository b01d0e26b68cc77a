// Command verbena-vm runs a program in a virtual machine that has two RDMA
// devices:
//
//	verbena-vm setup                      install what is missing, fetch the guest kernel
//	verbena-vm check                      say whether run would work, and why not
//	verbena-vm run [flags] -- PROGRAM…    run it; also: go test -exec "verbena-vm run --"
//
// It exits as the program did, with 128+n where signal n killed it. Its own
// codes are those of timeout(1) and its kin: 122 kernel fault, 124 deadline,
// 125 the rig failed, 127 the program could not be started; a line on stderr
// that starts with "verbena-vm:" goes with each.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/internal/vm"
)

// Exit codes that are not the program's.
const (
	exitUsage       = 2
	exitKernelFault = 122
	exitDeadline    = 124
	exitRig         = 125
	exitNotStarted  = 127
)

const usage = `usage:
  verbena-vm setup
  verbena-vm check
  verbena-vm run [flags] -- PROGRAM [ARGUMENT…]
`

func main() {
	if vm.InGuest() {
		vm.GuestMain()
	}
	os.Exit(command(os.Args[1:]))
}

func command(args []string) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch name {
	case "setup":
		return exitCode(vm.Setup(ctx, os.Stdout))
	case "check":
		if err := vm.Check(); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("ok")
		return 0
	case "run":
		return run(ctx, args[1:])
	}
	fmt.Fprint(os.Stderr, usage)
	return exitUsage
}

// run is the run subcommand.
func run(ctx context.Context, args []string) int {
	var cfg vm.Config
	var env []string
	flags := flag.NewFlagSet("verbena-vm run", flag.ContinueOnError)
	flags.DurationVar(&cfg.Timeout, "timeout", vm.DefaultTimeout, "`limit` for boot and run together")
	flags.IntVar(&cfg.MTU, "mtu", vm.DefaultMTU, "MTU of the devices' netdevs in `bytes`; the path MTU is the next lower power of two")
	flags.IntVar(&cfg.CPUs, "cpus", vm.DefaultCPUs, "`number` of CPUs")
	flags.IntVar(&cfg.MemoryMiB, "mem", vm.DefaultMemoryMiB, "memory in `MiB`")
	flags.Func("out", "copy a file out of the guest at the end, `guestpath[=hostpath]`; may be repeated", func(s string) error {
		out, err := vm.ParseOutput(s)
		cfg.Outputs = append(cfg.Outputs, out)
		return err
	})
	flags.Func("env", "pass on these variables too, `NAME,NAME`; may be repeated", func(s string) error {
		env = append(env, strings.Split(s, ",")...)
		return nil
	})
	flags.Func("modules", "load these kernel modules too, `NAME,NAME`; may be repeated", func(s string) error {
		cfg.Modules = append(cfg.Modules, strings.Split(s, ",")...)
		return nil
	})
	kernelLog := flags.String("kernel-log", "", "write the guest's console to this `file`")
	verbose := flags.Bool("v", false, "say which kernel ran and how long it took to boot")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return exitUsage
	}
	return exitCode(runIn(ctx, cfg, flags.Args(), env, *kernelLog, *verbose))
}

// status is a program's own exit code, as an error.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// runIn fills in what the machine at hand decides, and runs.
func runIn(ctx context.Context, cfg vm.Config, program, env []string, kernelLog string, verbose bool) (err error) {
	cfg.Args = program
	cfg.Env = vm.SelectEnv(os.Environ(), env)
	cfg.Stdout, cfg.Stderr = os.Stdout, os.Stderr
	if cfg.Dir, err = os.Getwd(); err != nil {
		return err
	}
	if cfg.Init, err = os.Executable(); err != nil {
		return err
	}
	cfg.Outputs = append(cfg.Outputs, vm.TestOutputs(program[min(1, len(program)):], cfg.Dir)...)
	if kernelLog != "" {
		f, err := os.Create(kernelLog)
		if err != nil {
			return err
		}
		defer f.Close()
		cfg.KernelLog = f
	}
	// The go command sends SIGQUIT to a test that is overdue, to see its goroutines.
	quits := make(chan os.Signal, 1)
	signal.Notify(quits, syscall.SIGQUIT)
	quit := make(chan struct{})
	go func() {
		for range quits {
			quit <- struct{}{}
		}
	}()
	cfg.Quit = quit

	res, err := vm.Run(ctx, cfg)
	if verbose && res.Kernel != "" {
		fmt.Fprintf(os.Stderr, "verbena-vm: linux %s booted in %v\n", res.Kernel, res.Boot.Round(10*time.Millisecond))
	}
	if err == nil && res.ExitCode != 0 {
		return status(res.ExitCode)
	}
	return err
}

// exitCode prints an error of the rig, and gives each its code.
func exitCode(err error) int {
	var own status
	if err == nil {
		return 0
	}
	if errors.As(err, &own) {
		return int(own)
	}
	fmt.Fprintln(os.Stderr, "verbena-vm:", err)
	var fault *vm.KernelFault
	switch {
	case errors.As(err, &fault):
		fmt.Fprintf(os.Stderr, "%s\n", fault.Excerpt)
		return exitKernelFault
	case errors.Is(err, vm.ErrDeadline):
		return exitDeadline
	case errors.Is(err, vm.ErrStart):
		return exitNotStarted
	}
	return exitRig
}
