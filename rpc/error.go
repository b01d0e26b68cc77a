package rpc

import (
	"context"
	"errors"
	"fmt"
)

// Code says what kind of failure ended a call. The numbers and meanings are
// those of gRPC; there is no code for success, since success is not an error.
//
// A Code is itself an error, so that errors.Is(err, rpc.NotFound) asks for the
// code of an *Error.
type Code uint32

// Codes of failed calls.
const (
	Canceled           Code = 1  // the caller gave up
	Unknown            Code = 2  // the handler returned an error without a code
	InvalidArgument    Code = 3  // wrong whatever the state of the server
	DeadlineExceeded   Code = 4  // the time of the call was over
	NotFound           Code = 5  // what was asked for does not exist
	AlreadyExists      Code = 6  // what was to be made exists
	PermissionDenied   Code = 7  // this caller may not
	ResourceExhausted  Code = 8  // a limit was reached
	FailedPrecondition Code = 9  // not in this state; do not simply repeat
	Aborted            Code = 10 // lost a race; repeat from a higher level
	OutOfRange         Code = 11 // past the end
	Unimplemented      Code = 12 // no such method
	Internal           Code = 13 // a bug or a broken invariant
	Unavailable        Code = 14 // not now; repeat later
	DataLoss           Code = 15 // lost or corrupt data
	Unauthenticated    Code = 16 // caller not known
)

var codeNames = [...]string{
	Canceled: "canceled", Unknown: "unknown", InvalidArgument: "invalid argument",
	DeadlineExceeded: "deadline exceeded", NotFound: "not found", AlreadyExists: "already exists",
	PermissionDenied: "permission denied", ResourceExhausted: "resource exhausted",
	FailedPrecondition: "failed precondition", Aborted: "aborted", OutOfRange: "out of range",
	Unimplemented: "unimplemented", Internal: "internal", Unavailable: "unavailable",
	DataLoss: "data loss", Unauthenticated: "unauthenticated",
}

func (c Code) valid() bool { return c >= Canceled && c <= Unauthenticated }

func (c Code) String() string {
	if c.valid() {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint32(c))
}

// Error makes a Code usable as a target of errors.Is.
func (c Code) Error() string { return c.String() }

// Delivery says whether a failed call was executed.
type Delivery uint8

// Deliveries.
const (
	MaybeExecuted Delivery = iota // sent; whether a handler has seen it is not known
	NotExecuted                   // no handler has seen it and none will: safe to send again
	Executed                      // a handler has run, or had a request that it could not decode, and the server has answered
)

func (d Delivery) String() string {
	switch d {
	case NotExecuted:
		return "not executed"
	case Executed:
		return "executed"
	}
	return "maybe executed"
}

// Error is how a call fails: the only error type that calls return.
//
// errors.Is matches it against a Code, and against context.DeadlineExceeded
// and context.Canceled where it has their codes. Unwrap gives the local cause,
// such as the error that ended the session.
type Error struct {
	Code     Code
	Message  string
	Details  []byte // opaque to the framework, from handler to caller
	Delivery Delivery

	cause    error
	fromPeer bool
}

// Errorf makes an error for a handler to return. It formats like fmt.Errorf;
// what %w wraps is the cause, which stays in this process.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// FromPeer says that the peer sent the error; otherwise it was made here.
func (e *Error) FromPeer() bool { return e.fromPeer }

func (e *Error) Error() string {
	by := "rpc: "
	if e.fromPeer {
		by = "rpc: peer: "
	}
	return fmt.Sprintf("%s%s: %s (%s)", by, e.Code, e.Message, e.Delivery)
}

// Unwrap returns the local cause or nil.
func (e *Error) Unwrap() error { return e.cause }

// Is matches codes and the errors of package context that have one.
func (e *Error) Is(target error) bool {
	switch target {
	case context.Canceled:
		return e.Code == Canceled
	case context.DeadlineExceeded:
		return e.Code == DeadlineExceeded
	}
	code, ok := target.(Code)
	return ok && code == e.Code
}

// CodeOf is the code that err has as the end of a call: that of an *Error or
// Code in its chain, Canceled or DeadlineExceeded for errors of a context,
// else Unknown. It is 0 for nil.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	return asError(err).Code
}

// asError is err as a handler's failure. An error with a code that does not
// exist has none.
func asError(err error) *Error {
	var e *Error
	var code Code
	switch {
	case errors.As(err, &e) && e != nil && e.Code.valid():
		return e
	case errors.As(err, &code) && code.valid():
	case errors.Is(err, context.DeadlineExceeded):
		code = DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = Canceled
	default:
		code = Unknown
	}
	return &Error{Code: code, Message: err.Error(), cause: err}
}

// failed is an error made on this side about a call to m.
func failed(code Code, d Delivery, m *Method, cause error) *Error {
	return &Error{Code: code, Message: m.Name + ": " + cause.Error(), Delivery: d, cause: cause}
}

// interrupted is the failure of a call that could not go on because of err:
// its context is over, or else its session.
func interrupted(ctx context.Context, d Delivery, m *Method, err error) *Error {
	code := contextCode(ctx)
	if code != Unavailable {
		err = ctx.Err()
	}
	return failed(code, d, m, err)
}

// contextCode is the code for what could not go on: that of ctx if it is over.
func contextCode(ctx context.Context) Code {
	switch ctx.Err() {
	case nil:
		return Unavailable
	case context.DeadlineExceeded:
		return DeadlineExceeded
	}
	return Canceled
}

// dialError is a session that did not come to be.
func dialError(ctx context.Context, err error) *Error {
	return &Error{Code: contextCode(ctx), Message: err.Error(), Delivery: NotExecuted, cause: err}
}
