package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// lane is what calls need of a transport.Lane. Tests put one without a network
// in its place.
type lane interface {
	MaxPayload() int
	Reserve(ctx context.Context, class transport.Class, n int) (transport.Slot, error)
	Commit(s transport.Slot, h *wire.Header) error
	Discard(s transport.Slot)
	Send(ctx context.Context, h wire.Header, msg []byte) error
	SendBuf(ctx context.Context, h wire.Header, msg *pool.Buf) error
	SendFill(ctx context.Context, h *wire.Header, n int, fill func(dst []byte) error) error
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

// encodeError says that a message could not be encoded: a fault of whoever
// made it, not of the lane.
type encodeError struct{ err error }

func (e *encodeError) Error() string { return e.err.Error() }
func (e *encodeError) Unwrap() error { return e.err }

func isEncodeError(err error) bool {
	var e *encodeError
	return errors.As(err, &e)
}

// sizeOf is the encoded size of msg; above limit it is a sizeError.
func sizeOf(c codec.Codec, msg any, limit int) (n int, err error) {
	returned := false
	defer caught(c, &returned, &err)
	n, err = c.Size(msg)
	returned = true
	switch {
	case err != nil:
		return 0, &encodeError{err}
	case n < 0:
		return 0, &encodeError{fmt.Errorf("codec %s: size %d", c.Name(), n)}
	case n > limit:
		return 0, &sizeError{n, limit}
	}
	return n, nil
}

// caught makes a panic of the codec, as when another goroutine changes the
// message meanwhile, an error: what is reserved for the call is not ours to lose.
// It recovers only where the codec has not returned, for to ask costs.
func caught(c codec.Codec, returned *bool, err *error) {
	if !*returned {
		*err = &encodeError{fmt.Errorf("codec %s panicked: %v", c.Name(), recover())}
	}
}

// sizeError is a message that the peer would not take.
type sizeError struct{ size, limit int }

func (e *sizeError) Error() string {
	return fmt.Sprintf("message of %d bytes, the peer takes at most %d", e.size, e.limit)
}

func encode(c codec.Codec, msg any, n int) (*pool.Buf, error) {
	buf := pool.Get(n)
	if err := marshal(c, buf.Bytes(), msg); err != nil {
		buf.Release()
		return nil, err
	}
	return buf, nil
}

// marshal fills dst with msg exactly.
func marshal(c codec.Codec, dst []byte, msg any) (err error) {
	returned := false
	defer caught(c, &returned, &err)
	n, err := c.MarshalTo(dst, msg)
	returned = true
	switch {
	case err != nil:
		return &encodeError{err}
	case n != len(dst):
		return &encodeError{fmt.Errorf("codec %s: message changed while it was encoded, from %d to %d bytes", c.Name(), len(dst), n)}
	}
	return nil
}

// decode fills msg from the payload and releases it; nil is the empty message.
func decode(c codec.Codec, payload *pool.Buf, msg any) error {
	if payload == nil {
		return c.Unmarshal(nil, msg)
	}
	defer payload.Release()
	return c.Unmarshal(payload.Bytes(), msg)
}

func release(payload *pool.Buf) {
	if payload != nil {
		payload.Release()
	}
}

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
