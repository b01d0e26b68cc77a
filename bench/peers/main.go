// Command peers measures echo calls of several RPC libraries over TCP, and of
// bare sockets, all alike.
//
//	peers run            measure, and print a table
//	peers serve KIND     serve echo calls of one kind
//	peers call KIND      make them: one cell, the result as JSON
//
// Every measurement has a server and a client process of its own, with one
// connection between them. Libraries are used as their documentation shows it,
// with default options.
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
	fmt.Fprintln(os.Stderr, "peers:", err)
	os.Exit(1)
}

// errUsage says that the usage was printed already.
var errUsage = errors.New("usage")

func dispatch(ctx context.Context, args []string) error {
	switch {
	case len(args) >= 1 && args[0] == "run":
		return runCommand(ctx, args[1:])
	case len(args) == 2 && args[0] == "serve":
		return serveCommand(args[1])
	case len(args) >= 2 && args[0] == "call":
		return callCommand(ctx, args[1], args[2:])
	}
	fmt.Fprintln(os.Stderr, "usage: peers run [flags] | serve KIND | call KIND [flags]; peers run -h explains the flags")
	fmt.Fprintln(os.Stderr, "kinds:")
	for _, k := range kinds {
		fmt.Fprintf(os.Stderr, "  %-12s %s\n", k.name, k.note)
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
