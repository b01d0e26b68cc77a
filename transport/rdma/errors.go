package rdma

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// SetupError says what could not be made ready on a device. It unwraps to the
// device's error, which names the call, the errno and, for locked memory, the
// limit.
type SetupError struct {
	Device string
	What   string // "register 1.2 MiB for the rings of a QP"
	Err    error
}

func (e *SetupError) Error() string { return fmt.Sprintf("rdma: %s: %s: %v", e.Device, e.What, e.Err) }

// Unwrap returns the device's error.
func (e *SetupError) Unwrap() error { return e.Err }

// FullError says that a device takes no more QPs from this process: their
// completions would not fit into its CQs (case 38).
type FullError struct {
	Device string
	QPs    int // that exist
	Depth  int // entries of a CQ
	Need   int // entries per QP
}

func (e *FullError) Error() string {
	return fmt.Sprintf("rdma: %s: no room for another QP beside %d: it may have %d completions, and the CQs have %d entries each",
		e.Device, e.QPs, e.Need, e.Depth)
}

// CompletionError is a work request that failed, and with it the link.
type CompletionError struct {
	Device    string
	QPN       uint32
	Status    verbs.WCStatus
	VendorErr uint32
	Class     Class
}

func (e *CompletionError) Error() string {
	return fmt.Sprintf("rdma: %s: QP %#x failed: %v (status %d, vendor error %#x, %v)",
		e.Device, e.QPN, e.Status, uint32(e.Status), e.VendorErr, e.Class)
}

// EventError is an asynchronous event of the device that ended a link.
type EventError struct {
	Device string
	Event  verbs.AsyncEvent
}

func (e *EventError) Error() string { return fmt.Sprintf("rdma: %s: %v", e.Device, e.Event) }

// PeerError says what in a peer's QP exchange cannot be used.
type PeerError struct {
	Field string
	Got   uint64
	Want  string
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("rdma: the peer's %s is %#x, expected %s", e.Field, e.Got, e.Want)
}

// reasons are several errors in one line, as a reason is printed.
type reasons []error

// joined is errors.Join in one line.
func joined(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return reasons(errs)
}

func (r reasons) Error() string {
	texts := make([]string, len(r))
	for i, err := range r {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (r reasons) Unwrap() []error { return r }
