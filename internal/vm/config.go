package vm

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

// Errors that name why a program could not be run, or not to its end. None of
// them says anything about the program itself.
var (
	ErrUnsupported = errors.New("the VM rig needs linux/amd64")
	ErrNoQEMU      = errors.New("no qemu-system-x86_64 in PATH (verbena-vm setup installs it)")
	ErrNoKernel    = errors.New("no guest kernel in the cache (verbena-vm setup fetches it)")
	ErrNotStatic   = errors.New("PID 1 must be a static binary (build verbena-vm with CGO_ENABLED=0)")
	ErrNotRoot     = errors.New("installing packages needs root")
	ErrNoApt       = errors.New("packages are installed with Debian's apt, which is not here")
	ErrBoot        = errors.New("the guest did not come up")
	ErrDeadline    = errors.New("deadline passed")
	ErrLost        = errors.New("the guest ended without a result")
	ErrOutput      = errors.New("output could not be written on the host")
	ErrStart       = errors.New("the program could not be started in the guest")
)

// Defaults of Config. The netdev MTU leaves room for a path MTU of 4096 and the
// RoCE v2 headers. Two CPUs: one poller and one peer that answers it. Memory is
// allocated by the host when the guest touches it.
const (
	DefaultMTU       = 4200
	DefaultCPUs      = 2
	DefaultMemoryMiB = 4096
	DefaultTimeout   = 10 * time.Minute
)

// Config describes one run. Run copies it; the zero value of every field but
// Args and Init is usable.
type Config struct {
	// Args is the program and its arguments. The program is looked up in the
	// guest, which sees the host's file system: a relative path means Dir.
	Args []string
	// Dir is the working directory, the same path on host and guest. Default: "/".
	Dir string
	// Env is the program's environment as "NAME=value". VERBENA_VM=1 is added.
	Env []string
	// Outputs are files fetched from the guest after the program has ended.
	Outputs []Output

	// Modules are kernel modules to load beyond those the rig needs.
	Modules []string
	// MTU of the veth pair in bytes, 256 to 65535. Default 4200 (path MTU 4096).
	MTU int
	// CPUs of the guest, 1 to 64. Default 2.
	CPUs int
	// MemoryMiB of the guest, 256 or more. Default 4096.
	MemoryMiB int
	// Timeout bounds run and boot together, boots that are tried again included.
	// Default 10 min.
	Timeout time.Duration

	// Init is the path of a static verbena-vm, PID 1 of the guest.
	Init string
	// CacheDir holds kernel and initrd. Default: see CacheDir.
	CacheDir string

	// Stdout and Stderr take the program's output as it comes; nil discards.
	// KernelLog takes the console; nil keeps it for the scan only.
	Stdout, Stderr, KernelLog io.Writer
	// Quit, when it yields, has the guest send SIGQUIT to the program, on which
	// a Go program prints its goroutines. Timeout does the same before it kills.
	Quit <-chan struct{}
}

// Output is a file of the guest to be copied to the host, or a directory, whose
// name then ends in "/" and which the guest makes before the program starts. A
// file that is not there is no error: a failed program may not have written it.
type Output struct {
	Guest string `json:"guest"`
	Host  string `json:"-"`
}

func (o Output) isDir() bool { return strings.HasSuffix(o.Guest, "/") }

// Result is how the program ended and in what kernel.
type Result struct {
	// ExitCode is the program's own; 128+n when signal n killed it.
	ExitCode int
	// Kernel is the guest's release, as of uname -r.
	Kernel string
	// Boot is the time from the start of QEMU to the start of the program.
	Boot time.Duration
	// KernelLog is the guest's console output.
	KernelLog []byte
}

// job is the part of Config that the guest acts on.
type job struct {
	Args    []string `json:"args"`
	Dir     string   `json:"dir"`
	Env     []string `json:"env"`
	Outputs []Output `json:"outputs"`
	MTU     int      `json:"mtu"`
}

// withDefaults returns a validated copy with defaults filled in.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Dir, "/")
	setDefault(&c.MTU, DefaultMTU)
	setDefault(&c.CPUs, DefaultCPUs)
	setDefault(&c.MemoryMiB, DefaultMemoryMiB)
	setDefault(&c.Timeout, DefaultTimeout)
	setDefault[io.Writer](&c.Stdout, io.Discard)
	setDefault[io.Writer](&c.Stderr, io.Discard)
	setDefault[io.Writer](&c.KernelLog, io.Discard)
	switch {
	case len(c.Args) == 0 || c.Args[0] == "":
		return c, errors.New("no program to run")
	case !filepath.IsAbs(c.Dir):
		return c, fmt.Errorf("working directory %q is not absolute", c.Dir)
	case c.MTU < 256 || c.MTU > 65535:
		return c, fmt.Errorf("MTU %d is outside 256..65535", c.MTU)
	case c.CPUs < 1 || c.CPUs > 64:
		return c, fmt.Errorf("%d CPUs are outside 1..64", c.CPUs)
	case c.MemoryMiB < 256:
		return c, fmt.Errorf("%d MiB of memory are less than 256", c.MemoryMiB)
	case len(c.Outputs) > maxOutputs:
		return c, fmt.Errorf("%d outputs are over %d", len(c.Outputs), maxOutputs)
	case c.Timeout < 0:
		return c, fmt.Errorf("timeout %v is negative", c.Timeout)
	}
	for _, kv := range c.Env {
		if strings.IndexByte(kv, '=') < 1 {
			return c, fmt.Errorf("environment entry %q is not NAME=value", kv)
		}
	}
	for i, o := range c.Outputs {
		if o.Guest == "" || o.Host == "" {
			return c, fmt.Errorf("output %d needs a guest and a host path", i)
		}
	}
	return c, nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// ParseOutput reads "guestpath=hostpath", or one path that is both; see Output.
func ParseOutput(s string) (Output, error) {
	guest, host, both := strings.Cut(s, "=")
	if !both {
		host = guest
	}
	if guest == "" || host == "" {
		return Output{}, fmt.Errorf("output %q is not guestpath=hostpath", s)
	}
	return Output{Guest: guest, Host: host}, nil
}

// testProfiles are the flags by which `go test` tells a test binary to write a
// file. The go command reads some of them itself, so they must reach the host.
var testProfiles = []string{
	"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace",
}

// TestOutputs finds the files that a test binary's own flags ask for, so that
// `go test -coverprofile` works through the runner. dir is its working directory.
func TestOutputs(args []string, dir string) []Output {
	outputDir := dir
	var names []string
	for _, arg := range args {
		flag, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		name, isTest := strings.CutPrefix(flag, "test.")
		if !ok || !isTest || !strings.HasPrefix(arg, "-") || value == "" {
			continue
		}
		if name == "outputdir" {
			outputDir = value
		}
		for _, p := range testProfiles {
			if name == p {
				names = append(names, value)
			}
		}
	}
	var outs []Output
	for _, n := range names {
		if !filepath.IsAbs(n) {
			n = filepath.Join(outputDir, n)
		}
		outs = append(outs, Output{Guest: n, Host: n})
	}
	return outs
}

// SelectEnv picks from environ what the guest's program gets: names that start
// with VERBENA_ or GO, a few that programs cannot do without, and extra ones.
func SelectEnv(environ, extra []string) []string {
	keep := map[string]bool{"HOME": true, "PATH": true, "USER": true, "LANG": true, "TMPDIR": true}
	for _, name := range extra {
		keep[name] = true
	}
	var env []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if keep[name] || strings.HasPrefix(name, "VERBENA_") || strings.HasPrefix(name, "GO") {
			env = append(env, kv)
		}
	}
	return env
}
