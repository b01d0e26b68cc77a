//go:build linux

package faults

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/verbena-rpc/verbena/internal/faults/faultpb"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
)

// ledgerServer writes down each call that it executes, before it answers.
type ledgerServer struct {
	faultpb.UnimplementedLedgerServer
	file *os.File
}

func (s *ledgerServer) Enter(_ context.Context, req *faultpb.Entry) (*faultpb.Receipt, error) {
	rec := Record{ID: req.Id, Outcome: Executed, Wrong: !bytes.Equal(req.Data, pattern(req.Id, len(req.Data)))}
	if _, err := s.file.Write(rec.Append(nil)); err != nil {
		return nil, err
	}
	return &faultpb.Receipt{Id: req.Id, Data: pattern(^req.Id, int(req.Reply))}, nil
}

// serverRole serves at the address it is given.
func serverRole(args []string) error {
	network, fabric := newNetwork("")
	server := rpc.NewServer(network)
	if err := faultpb.RegisterLedgerServer(server, &ledgerServer{file: records()}); err != nil {
		return err
	}
	if err := server.Listen(args[0]); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	if err := obey(func(order) status {
		s := server.Stats()
		return status{Sessions: s.Sessions, Calls: int(s.InFlight), Held: held(fabric)}
	}); err != nil {
		return err
	}
	server.Close()
	if err := <-served; !errors.Is(err, rpc.ErrServerClosed) {
		return err
	}
	return fabric.Close()
}

// hogRole takes QPs for links from the address it is given until there are
// none, says so by a status that counts them, and keeps them.
func hogRole(args []string) error {
	fabric := rdma.New(rdma.Config{SQDepth: 16, RQDepth: 8, SlotSize: 512, Warm: -1})
	local := &net.TCPAddr{IP: net.ParseIP(args[0])}
	var halves []transport.Half
	var refused error
	for refused == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var half transport.Half
		if half, refused = fabric.Prepare(ctx, local); refused == nil {
			halves = append(halves, half)
		}
		cancel()
	}
	return obey(func(order) status {
		return status{Reason: refused.Error(), Held: resources{QPs: len(halves)}}
	})
}
