package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/rpc"
)

// serverCommand serves until ctx ends or, as a child of run, until its
// standard input does, which happens however the parent dies.
func serverCommand(ctx context.Context, args []string) error {
	var (
		s     settings
		child bool
	)
	fs := flag.NewFlagSet("bench server", flag.ContinueOnError)
	listen := fs.String("listen", ":7471", "`address` to listen on")
	fs.BoolVar(&child, "until-stdin-ends", false, "serve until standard input ends")
	s.register(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	stopProfile, err := s.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()
	network, err := s.network("")
	if err != nil {
		return err
	}
	defer closeFabric(network)

	service := echo.Server{
		Links:  watchLinks(network).usage,
		Pinned: func() int64 { return pinned(network) },
	}
	server := rpc.NewServer(network)
	if err := service.Register(server); err != nil {
		return err
	}
	if err := server.Listen(*listen); err != nil {
		return err
	}
	fmt.Println("listening on", server.Addr())

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if child {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(); !errors.Is(err, rpc.ErrServerClosed) {
		return err
	}
	return nil
}
