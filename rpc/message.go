package rpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
)

// message is what is sent, a request or a response.
type message struct {
	codec codec.Codec
	value any
	buf   *pool.Buf // the encoding, where value is that itself
	size  int       // of the encoding, in bytes
}

// referFrom is how large an encoding in a buffer is sent from there, in bytes, and not
// copied to its frame: below, the copy costs less than what it saves.
const referFrom = 4 << 10

// newMessage fails with an encodeError, or with a sizeError above limit.
func newMessage(c codec.Codec, value any, limit int) (m message, err error) {
	m = message{codec: c, value: value}
	if buf, ok := value.(*pool.Buf); ok {
		if buf == nil {
			return m, &encodeError{codec.ErrNil}
		}
		m.buf, m.size = buf, buf.Len()
		if m.size > limit {
			err = &sizeError{m.size, limit}
		}
		return m, err
	}
	m.size, err = sizeOf(c, value, limit)
	return m, err
}

// reserve claims room for the message as one frame, and has it there.
func (m message) reserve(ctx context.Context, l lane) (slot transport.Slot, err error) {
	if m.buf != nil && m.size >= referFrom {
		return l.Refer(ctx, transport.Small, m.buf)
	}
	if slot, err = l.Reserve(ctx, transport.Small, m.size); err != nil {
		return slot, err
	}
	if m.buf != nil {
		copy(slot.Payload, m.buf.Bytes())
	} else if err = marshal(m.codec, slot.Payload, m.value); err != nil {
		l.Discard(slot)
	}
	return slot, err
}

// encode is the encoding, in a buffer to which the caller has a reference.
func (m message) encode() (*pool.Buf, error) {
	if m.buf != nil {
		m.buf.Retain()
		return m.buf, nil
	}
	buf := pool.Get(m.size)
	if err := marshal(m.codec, buf.Bytes(), m.value); err != nil {
		buf.Release()
		return nil, err
	}
	return buf, nil
}

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
// A **pool.Buf gets the payload itself.
func decode(c codec.Codec, payload *pool.Buf, msg any) error {
	if to, ok := msg.(**pool.Buf); ok {
		return hand(payload, to)
	}
	if payload == nil {
		return c.Unmarshal(nil, msg)
	}
	defer payload.Release()
	return c.Unmarshal(payload.Bytes(), msg)
}

// hand gives the reference to the payload away.
func hand(payload *pool.Buf, to **pool.Buf) error {
	if to == nil {
		release(payload)
		return codec.ErrNil
	}
	*to = whole(payload)
	return nil
}

// whole is the payload; a buffer of no bytes for the empty message.
func whole(payload *pool.Buf) *pool.Buf {
	if payload == nil {
		return pool.Get(0)
	}
	return payload
}

func release(payload *pool.Buf) {
	if payload != nil {
		payload.Release()
	}
}
