package echo

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
)

// Server is the measured service.
type Server struct {
	Links  func(transport.Kind) *LinkUsage // what Usage says of links; nil: nothing
	Pinned func() int64                    // bytes registered with devices; nil: there are none
}

// Register registers it on r, with protobuf and without.
func (s Server) Register(r *rpc.Server) error {
	return errors.Join(RegisterEchoServer(r, s), r.Register(rawService, s))
}

// Echo returns the message it was given.
func (Server) Echo(_ context.Context, in *Payload) (*Payload, error) { return in, nil }

// Usage is that of this process.
func (s Server) Usage(context.Context, *UsageRequest) (*UsageReply, error) {
	u := load.ReadUsage()
	reply := &UsageReply{CpuNs: uint64(u.CPU), Objects: u.Objects}
	if s.Links != nil {
		reply.Rdma, reply.Tcp = s.Links(transport.RDMA), s.Links(transport.TCP)
	}
	return reply, nil
}

// Held is what this process holds.
func (s Server) Held(context.Context, *HeldRequest) (*HeldReply, error) {
	h := load.ReadHeld()
	if s.Pinned != nil {
		h.Pinned = s.Pinned()
	}
	return &HeldReply{
		Heap: h.Heap, Stacks: h.Stacks, Pinned: h.Pinned, Resident: h.Resident,
		Goroutines: h.Goroutines, Files: h.Files,
	}, nil
}

// RawEcho returns the bytes it was given.
func (Server) RawEcho(_ context.Context, in *pool.Buf) (*pool.Buf, error) { return in, nil }

// The same work without protobuf, written by hand as a stub would be.
var (
	rawEcho    = &rpc.Method{Name: "/verbena.bench.Raw/Echo", Idempotent: true, Codec: codec.Raw}
	rawService = &rpc.ServiceDesc{
		Name:    "verbena.bench.Raw",
		Methods: []rpc.MethodDesc{{Method: rawEcho, Handler: rpc.Unary(Server.RawEcho)}},
	}
)

// NewCall returns a call by way of stub that reuses its request of size bytes.
func NewCall(stub EchoClient, size int) load.Call {
	request := &Payload{Data: make([]byte, size)}
	return func(ctx context.Context) error {
		reply, err := stub.Echo(ctx, request)
		if err != nil {
			return err
		}
		return Check(reply.Data, size)
	}
}

// NewRawCall returns a call without protobuf that reuses its request of size bytes.
func NewRawCall(conn *rpc.Conn, size int) load.Call {
	request, reply := pool.Get(size), (*pool.Buf)(nil)
	return func(ctx context.Context) error {
		if err := rpc.Call(ctx, conn, rawEcho, request, &reply); err != nil {
			return err
		}
		defer reply.Release()
		return Check(reply.Bytes(), size)
	}
}

// Check says whether an echo of size bytes can be what was sent.
func Check(reply []byte, size int) error {
	if len(reply) != size {
		return fmt.Errorf("sent %d bytes, got %d back", size, len(reply))
	}
	return nil
}
