// Command bench measures echo calls over RDMA and TCP.
//
//	bench run                      both processes on this machine, each transport, beside perftest and libfabric
//	bench connect                  time to the first call, with the warm pool of QPs and without
//	bench failover                 time that calls are without a link when one dies
//	bench scale                    what thousands of connections cost, idle and busy
//	bench report FILE...           one HTML page with charts of what these have written
//	bench compare OLD NEW          in which cells two of them differ
//	bench server -listen ADDR      on one machine …
//	bench client -addr ADDR        … and on another
//
// Every subcommand explains its flags with -h. All of them have automatic
// defaults, so that the same binary serves on a software device and on real
// NICs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

var commands = []struct {
	name, help string
	run        func(ctx context.Context, args []string) error
}{
	{"run", "measure on this machine: server and client processes, every transport, perftest, libfabric", runCommand},
	{"connect", "measure on this machine: time to the first call, with QPs from the pool and without", connecting.run},
	{"failover", "measure on this machine: how long calls are without a link when one dies", failingOver.run},
	{"scale", "measure on this machine: what each of many connections holds, CPU at rest, calls spread over them", scaleCommand},
	{"report", "write one HTML page with charts of what benchmarks have written as JSON", reportCommand},
	{"compare", "say in which cells two files of bench run or peers run differ beyond noise", compareCommand},
	{"server", "serve echo calls until interrupted", serverCommand},
	{"client", "measure calls to a server", clientCommand},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, os.Args[1:])
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return
	case errors.Is(err, errUsage):
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// errUsage says that the usage was printed already.
var errUsage = errors.New("usage")

func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 {
		for _, c := range commands {
			if c.name == args[0] {
				return c.run(ctx, args[1:])
			}
		}
	}
	fmt.Fprintln(os.Stderr, "usage: bench COMMAND [flags]; bench COMMAND -h explains the flags")
	for _, c := range commands {
		fmt.Fprintf(os.Stderr, "  %-8s %s\n", c.name, c.help)
	}
	return errUsage
}

// parse reads the flags of a subcommand, which takes no other arguments.
func parse(fs *flag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%s takes no arguments, got %q", fs.Name(), fs.Arg(0))
	}
	return nil
}
