package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/tcp"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// at is a fabric for sessions over the loopback interface, whose control links
// have no address of a simulated device.
type at struct {
	*Fabric
	addr net.Addr

	mu    sync.Mutex
	links []transport.Link
}

func (a *at) Usable(net.Addr) error { return a.Fabric.Usable(a.addr) }

func (a *at) Prepare(ctx context.Context, _ net.Addr) (transport.Half, error) {
	h, err := a.Fabric.Prepare(ctx, a.addr)
	if err != nil {
		return nil, err
	}
	return &atHalf{h, a}, nil
}

type atHalf struct {
	transport.Half
	at *at
}

func (h *atHalf) Connect(ctx context.Context, epoch uint64, peer wire.QP) (transport.Link, error) {
	l, err := h.Half.Connect(ctx, epoch, peer)
	if err == nil {
		h.at.mu.Lock()
		h.at.links = append(h.at.links, l)
		h.at.mu.Unlock()
	}
	return l, err
}

// breakQPs takes the QPs of all links to ERR behind their backs.
func (a *at) breakQPs() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.links {
		if l := l.(*link); l.dead() == nil {
			l.fail(errBroken, false)
		}
	}
	a.links = nil
}

var errBroken = errors.New("broken by the test")

type counting struct {
	mu  sync.Mutex
	ran map[uint64]int
}

func (c *counting) count(_ context.Context, in *[]byte) (*[]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ran[binary.LittleEndian.Uint64(*in)]++
	return in, nil
}

// TestCallsOutliveQPs: calls with messages of all sizes go on while the QP under
// them dies again and again. Each is answered, and each ran once.
func TestCallsOutliveQPs(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	fabrics := [2]*at{{Fabric: ends[0].fabric(t, small), addr: ends[0].addr}, {Fabric: ends[1].fabric(t, small), addr: ends[1].addr}}
	method := &rpc.Method{Name: "/rdma.Test/Count", Codec: codec.Raw}
	service := &counting{ran: map[uint64]int{}}
	server := rpc.NewServer(&transport.Network{Carrier: &tcp.Carrier{}, Fabric: fabrics[1]})
	require.NoError(t, server.Register(&rpc.ServiceDesc{Name: "rdma.Test", Methods: []rpc.MethodDesc{
		{Method: method, Handler: rpc.Unary((*counting).count)},
	}}, service))
	require.NoError(t, server.Listen("127.0.0.1:0"))
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	network := &transport.Network{Carrier: &tcp.Carrier{}, Fabric: fabrics[0]}
	network.Config.ReturnAfter, network.Config.RetryAfter = time.Millisecond, time.Millisecond
	conn, err := rpc.Dial(ctx, network, server.Addr().String())
	require.NoError(t, err)

	stop := make(chan struct{})
	var made atomic.Int64
	var callers sync.WaitGroup
	for i := range uint64(16) {
		callers.Go(func() {
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				msg := make([]byte, 8+n*97%5000)
				fill(msg, int(i<<32|n))
				var reply []byte
				if err := rpc.Call(ctx, conn, method, &msg, &reply); err != nil {
					t.Errorf("caller %d, call %d: %v", i, n, err)
					return
				}
				if string(reply) != string(msg) {
					t.Errorf("caller %d, call %d: another reply", i, n)
					return
				}
				made.Add(1)
			}
		})
	}
	for i := range 12 {
		for conn.Transport().Kind != transport.RDMA && ctx.Err() == nil && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		fabrics[i%2].breakQPs()
	}
	close(stop)
	callers.Wait()
	info := conn.Transport()
	require.NoError(t, conn.Close())
	server.Close()
	require.ErrorIs(t, <-served, rpc.ErrServerClosed)

	require.Greater(t, info.Moves, 2, "the lane has hardly moved: this proved nothing")
	require.EqualValues(t, made.Load(), len(service.ran))
	for id, n := range service.ran {
		require.Equal(t, 1, n, "call %#x", id)
	}
	t.Logf("%d calls, %d moves, %d frames sent again", len(service.ran), info.Moves, info.Retention.Resent)
}
