package qpstate

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// TransitionError says why a QP did not change its state or attributes, and
// what was expected. It unwraps to Err, and so to the errno:
// errors.Is(err, syscall.EINVAL).
type TransitionError struct {
	Type     verbs.QPType
	QPN      uint32        // 0 when only Check was asked
	From     verbs.QPState // as the QP itself says, once asked
	To       verbs.QPState // same as From when only attributes were to change
	Illegal  bool          // the table has no such transition
	Missing  verbs.AttrMask
	Extra    verbs.AttrMask // not allowed in this transition
	Problems []Problem      // attributes with values that cannot be right
	Err      error          // of the device; syscall.EINVAL when it was not asked
}

// Problem is one attribute whose value does not fit the others, the device,
// or the field it is sent in.
type Problem struct {
	Attr verbs.AttrMask // 0 when it concerns no single attribute
	Text string         // "4096 is above the active MTU 1024 of port 1"
}

func (p Problem) String() string {
	if p.Attr == 0 {
		return p.Text
	}
	return p.Attr.String() + " " + p.Text
}

// Error is one sentence that names everything that was found.
func (e *TransitionError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "qpstate: %v QP", e.Type)
	if e.QPN != 0 {
		fmt.Fprintf(&b, " %#x", e.QPN)
	}
	var device *verbs.Error
	reason := e.Err
	if errors.As(e.Err, &device) {
		reason = device.Errno // the rest of it is said here already
	}
	fmt.Fprintf(&b, ", %v to %v: %v: ", e.From, e.To, reason)
	found := e.findings()
	switch {
	case len(found) > 0:
		b.WriteString(strings.Join(found, "; "))
	case device != nil && device.Hint != "":
		b.WriteString(device.Hint)
	default:
		b.WriteString("it agrees with the table and with what is known of the device")
	}
	return b.String()
}

// Unwrap returns Err.
func (e *TransitionError) Unwrap() error { return e.Err }

func (e *TransitionError) findings() []string {
	var found []string
	if e.Illegal {
		found = append(found, e.illegal())
	}
	if e.Missing != 0 {
		found = append(found, fmt.Sprintf("missing %v", e.Missing))
	}
	if e.Extra != 0 {
		found = append(found, fmt.Sprintf("not allowed here: %v", e.Extra))
	}
	for _, p := range e.Problems {
		found = append(found, p.String())
	}
	return found
}

func (e *TransitionError) illegal() string {
	to := next(e.Type, e.From)
	if len(to) == 0 {
		return fmt.Sprintf("no such transition, and none is known from %v for this type", e.From)
	}
	names := make([]string, len(to))
	for i, s := range to {
		names[i] = s.String()
	}
	return fmt.Sprintf("no such transition, %v leads to %s", e.From, strings.Join(names, ", "))
}

// found says whether there is anything to say.
func (e *TransitionError) found() bool { return len(e.findings()) > 0 }

func (e *TransitionError) problem(attr verbs.AttrMask, format string, args ...any) {
	e.Problems = append(e.Problems, Problem{attr, fmt.Sprintf(format, args...)})
}

// errnoOf is the errno in err: 0 without an error, EIO for one without errno.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return syscall.EIO
}
