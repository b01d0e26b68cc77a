package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// network is what the settings ask for. local is the address to connect
// from, "" for any.
func (s *settings) network(local string) (*transport.Network, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	if s.procs > 0 {
		runtime.GOMAXPROCS(s.procs)
	}
	n := &transport.Network{Carrier: &tcp.Carrier{Config: tcp.Config{LocalAddr: local}}}
	n.Config.PayloadSum = s.sum
	if s.transport == "tcp" {
		return n, nil
	}
	if s.transport == "rdma" {
		n.Config.FastLink = transport.RequireFastLink
	}
	cfg, err := s.rdma()
	if err != nil {
		return nil, err
	}
	if s.pool != "warm" {
		cfg.Warm = -1
	}
	fabric := rdma.New(cfg)
	n.Fabric = fabric
	switch s.pool {
	case "warm":
		_ = fabric.Prewarm(context.Background()) // why RDMA cannot be used is told by the sessions
	case "cold":
		n.Fabric = &coldFabric{fabric, cfg}
	}
	return n, nil
}

func (s *settings) rdma() (rdma.Config, error) {
	if s.port < 0 || s.port > 255 {
		return rdma.Config{}, fmt.Errorf("-port is %d, expected 1 to 255, or 0 for the one that has the address", s.port)
	}
	cfg := rdma.Config{
		Device: s.device, Port: uint8(s.port), MTU: s.mtu,
		SQDepth: s.sqDepth, RQDepth: s.rqDepth, SlotSize: s.slot, Dedicated: s.dedicated,
	}
	if s.gidIndex >= 0 {
		cfg.GIDIndex = &s.gidIndex
	}
	switch s.provider {
	case "auto":
	case "libibverbs":
		cfg.Provider = rdma.Libibverbs
	case "uverbs":
		cfg.Provider = rdma.Uverbs
	default:
		return rdma.Config{}, fmt.Errorf("-provider is %q, expected auto, libibverbs or uverbs", s.provider)
	}
	var err error
	switch s.poll {
	case "":
	case "busy":
		cfg.Poll = rdma.Busy
	case "events":
		cfg.Poll = rdma.EventsOnly
	default:
		if cfg.Spin, err = time.ParseDuration(s.poll); err != nil {
			return rdma.Config{}, fmt.Errorf("-poll is %q, expected busy, events or a duration", s.poll)
		}
	}
	return cfg, cfg.Validate()
}

// closeFabric releases devices once their links are done.
func closeFabric(n *transport.Network) {
	if n.Fabric != nil {
		_ = n.Fabric.Close()
	}
}

// pinned is what n has registered with devices, in bytes.
func pinned(n *transport.Network) int64 {
	fabric := n.Fabric
	if w, ok := fabric.(*watchedFabric); ok {
		fabric = w.Watcher
	}
	if f, ok := fabric.(*rdma.Fabric); ok {
		return f.Stats().PinnedBytes
	}
	return 0
}

// startProfile starts the CPU profile that the settings ask for; stop writes it.
func (s *settings) startProfile() (stop func(), err error) {
	if s.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(s.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}, nil
}

// findPeers chooses two ports on this machine for server and client: the
// first two active ones whose GIDs are IP addresses, or one that talks to itself.
func findPeers() (peers, error) {
	ports, err := rdma.Ports()
	if err != nil {
		return peers{}, err
	}
	var ends []endpoint
	for _, p := range ports {
		if p.Active && p.Addr.IsValid() && !p.Addr.IsLinkLocalUnicast() {
			ends = append(ends, endpoint{device: p.Device, port: int(p.Port), gidIndex: p.GIDIndex, addr: p.Addr.String()})
		}
	}
	if len(ends) == 0 {
		return peers{}, fmt.Errorf("no active RDMA port with an IP address among the %d on this %s machine", len(ports), runtime.GOOS)
	}
	return peers{client: ends[0], server: ends[len(ends)-1]}, nil
}
