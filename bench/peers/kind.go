package main

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// kind is one way to make the same calls.
type kind struct {
	name   string
	module string // whose version is shown; "" for the standard library
	note   string
	role   string // what it is compared with

	// serve listens on a port of its choice, tells its address, and serves.
	serve func(ready func(net.Addr)) error
	dial  func(ctx context.Context, addr string) (conn, error)
}

// conn is the client's end of a connection.
type conn interface {
	// measure makes calls of size bytes in a closed loop.
	measure(ctx context.Context, size int, o load.Options) (load.Result, error)
	close() error
}

// Names of kinds that are compared.
const (
	nameBound = "socket"
	nameProto = "verbena"
	nameRaw   = "verbena-raw"
	nameGRPC  = "grpc"
)

var kinds = []kind{
	{nameBound, "", "the bound: no RPC; no hand-off for one caller, writes batched for many", results.RoleBound, serveSocket, dialSocket},
	{nameProto, "github.com/verbena-rpc/verbena", "generated stubs, protobuf", results.RoleOurs, serveVerbena, dialVerbena},
	{nameRaw, "github.com/verbena-rpc/verbena", "raw codec", results.RoleOurs, serveVerbena, dialVerbenaRaw},
	{nameGRPC, "google.golang.org/grpc", "protobuf", results.RolePeer, serveGRPC, dialGRPC},
	{"connect", "connectrpc.com/connect", "protobuf, HTTP/2 without TLS", results.RolePeer, serveConnect, dialConnect},
	{"ttrpc", "github.com/containerd/ttrpc", "protobuf", results.RolePeer, serveTTRPC, dialTTRPC},
	{"drpc", "storj.io/drpc", "protobuf; one call at a time", results.RolePeer, serveDRPC, dialDRPC},
	{"drpc-pool", "storj.io/drpc", "protobuf; a connection per caller", results.RolePeer, serveDRPC, dialDRPCPool},
	{"thrift", "github.com/apache/thrift", "framed binary protocol; one call at a time", results.RolePeer, serveThrift, dialThrift},
	{"thrift-pool", "github.com/apache/thrift", "framed binary protocol; a connection per caller", results.RolePeer, serveThrift, dialThriftPool},
	{"netrpc", "", "net/rpc, gob", results.RolePeer, serveNetRPC, dialNetRPC},
}

func findKind(name string) (kind, error) {
	for _, k := range kinds {
		if k.name == name {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("there is no kind %q: peers without arguments lists them", name)
}

// version of the module, as built in.
func (k kind) version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || k.module == "" {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == k.module && m.Replace == nil {
			return m.Version
		}
	}
	return ""
}

// calls is a conn whose callers make one call after the other.
type calls struct {
	newCall func(size int) load.Call
	closer  func() error
}

func (c calls) measure(ctx context.Context, size int, o load.Options) (load.Result, error) {
	return load.Closed(ctx, func() load.Call { return c.newCall(size) }, o)
}

func (c calls) close() error { return c.closer() }

// serveOn listens and lets serve take the listener.
func serveOn(ready func(net.Addr), serve func(net.Listener) error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ready(l.Addr())
	return serve(l)
}
