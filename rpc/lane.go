package rpc

import (
	"context"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// lane is what calls need of a transport.Lane. Tests put one without a network
// in its place.
type lane interface {
	MaxPayload() int
	Reserve(ctx context.Context, class transport.Class, n int) (transport.Slot, error)
	Refer(ctx context.Context, class transport.Class, msg *pool.Buf) (transport.Slot, error)
	Commit(s transport.Slot, h *wire.Header) error
	Discard(s transport.Slot)
	Send(ctx context.Context, h wire.Header, msg []byte) error
	SendBuf(ctx context.Context, h wire.Header, msg *pool.Buf) error
	SendMade(ctx context.Context, h *wire.Header, n int, make func() (*pool.Buf, error)) error
	Forget(call uint64)
	Help(done *transport.Signal, waiting *atomic.Int32) bool
	Rouse()
}

// session is what calls need of a transport.Session.
type session interface {
	Transport() transport.Info
	Limits() transport.Limits
	GoAway() error
	Migrate(ctx context.Context, to transport.Kind) error
	Reconnect()
	Close(err error)
	Done() <-chan struct{}
	Err() error
}

// noWait is a context that is over. A lane looks at the context only when it
// has to wait for room, so that with this one it takes what is free or fails.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// sendNow sends a message of one frame if there is room for it at once.
func sendNow(l lane, class transport.Class, h *wire.Header, payload []byte) error {
	return send(noWait, l, class, h, payload)
}

// send sends a message of one frame.
func send(ctx context.Context, l lane, class transport.Class, h *wire.Header, payload []byte) error {
	slot, err := l.Reserve(ctx, class, len(payload))
	if err != nil {
		return err
	}
	copy(slot.Payload, payload)
	return l.Commit(slot, h)
}
