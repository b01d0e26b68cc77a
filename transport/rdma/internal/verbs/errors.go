package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrInterrupted is returned by Device.AsyncEvent after Interrupt.
var ErrInterrupted = errors.New("verbs: interrupted")

// Error is a verbs call that failed: the call, what it was tried on, and the
// errno. It unwraps to the errno: errors.Is(err, syscall.ENOMEM).
type Error struct {
	Op     string // C name of the call: "ibv_modify_qp"
	Object string // what it was called on: "rxe0", "QP 0x11"
	Errno  syscall.Errno
	Hint   string // what to look at, "" if nothing is known
}

func (e *Error) Error() string {
	s := fmt.Sprintf("verbs: %s on %s: %v", e.Op, e.Object, e.Errno)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// UnavailableError says why RDMA cannot be used in this process: no library,
// a missing symbol, no device, built without cgo.
type UnavailableError struct {
	Reason   string
	NoDevice bool // there is none now; nothing else is wrong
}

func (e *UnavailableError) Error() string { return "verbs: RDMA is not available: " + e.Reason }
