package main

import (
	"context"
	"net"
	"time"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// coldFabric makes all that a link needs when it is asked for: it opens the
// device, allocates a PD, creates a CQ and a QP, maps and registers the rings.
// What it embeds answers Usable.
type coldFabric struct {
	*rdma.Fabric
	cfg rdma.Config
}

func (f *coldFabric) Prepare(ctx context.Context, local net.Addr) (transport.Half, error) {
	own := rdma.New(f.cfg)
	half, err := own.Prepare(ctx, local)
	if err != nil {
		_ = own.Close()
		return nil, err
	}
	return &coldHalf{half, own}, nil
}

type coldHalf struct {
	transport.Half
	own *rdma.Fabric
}

func (h *coldHalf) Connect(ctx context.Context, epoch uint64, peer wire.QP) (transport.Link, error) {
	link, err := h.Half.Connect(ctx, epoch, peer)
	if err != nil {
		_ = h.own.Close()
		return nil, err
	}
	go func() {
		<-link.Done()
		_ = h.own.Close()
	}()
	return link, nil
}

func (h *coldHalf) Abort() {
	h.Half.Abort()
	go h.own.Close() //nolint:errcheck // a benchmark's leftovers
}

// stopwatch notes when the last link was made.
type stopwatch struct {
	transport.Fabric
	prepare, prepared, connect, connected time.Time
}

func (w *stopwatch) Prepare(ctx context.Context, local net.Addr) (transport.Half, error) {
	w.prepare = time.Now()
	half, err := w.Fabric.Prepare(ctx, local)
	w.prepared = time.Now()
	if err != nil {
		return nil, err
	}
	return &timedHalf{half, w}, nil
}

type timedHalf struct {
	transport.Half
	watch *stopwatch
}

func (h *timedHalf) Connect(ctx context.Context, epoch uint64, peer wire.QP) (transport.Link, error) {
	h.watch.connect = time.Now()
	link, err := h.Half.Connect(ctx, epoch, peer)
	h.watch.connected = time.Now()
	return link, err
}
