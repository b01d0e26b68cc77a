// Package codec turns messages into the payload of a frame and back. A codec
// encodes in place, so that a message goes straight into the memory that it is
// sent from.
package codec

import (
	"errors"
	"fmt"
)

// Codec encodes messages of some Go types. It has no state; all methods may
// be called from any goroutine, and a message that is only read may be
// encoded by several at once.
//
// Errors are *Error.
type Codec interface {
	// Name identifies the codec to people: "proto", "raw".
	Name() string

	// Size returns the exact size of msg's encoding in bytes. Limits on it are
	// the caller's.
	Size(msg any) (int, error)

	// MarshalTo encodes msg at the start of dst and returns the length. dst
	// has at least the Size bytes of msg, which must not have changed since
	// Size. Nothing is written beyond len(dst), and dst is not kept.
	MarshalTo(dst []byte, msg any) (int, error)

	// Unmarshal decodes src, all of it, into msg, whose old contents go. It
	// keeps no part of src. After an error the contents of msg are arbitrary.
	Unmarshal(src []byte, msg any) error
}

// Error says that a message could not be encoded or decoded.
type Error struct {
	Codec string // name of the codec
	Op    string // "size", "marshal", "unmarshal"
	Type  string // Go type of the message
	Err   error
}

func (e *Error) Error() string {
	return fmt.Sprintf("codec: %s %s of %s: %v", e.Codec, e.Op, e.Type, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Causes of an Error that are the caller's.
var (
	ErrType  = errors.New("the codec does not take messages of this type")
	ErrNil   = errors.New("the message is a nil pointer")
	ErrShort = errors.New("the buffer is shorter than the message, or the message changed since its size was taken")
)

func fail(c Codec, op string, msg any, err error) error {
	return &Error{Codec: c.Name(), Op: op, Type: fmt.Sprintf("%T", msg), Err: err}
}
