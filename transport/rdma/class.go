package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Class says what the end of a link teaches: whether its QP is good for
// another life, and whether another link is worth it.
type Class uint8

// Classes of errors.
const (
	// Unclassified teaches nothing. The QP is destroyed.
	Unclassified Class = iota

	// Flushed follows another error, or a transition of our own: it is no
	// cause of anything.
	Flushed

	// RemotePath is the peer's or the network's: gone, out of reach, out of
	// receives, or a local port that is down. Another link may work at once.
	RemotePath

	// Fault is a mistake on either side of the wire or a broken device: wrong
	// memory, rights or lengths. Another link would do the same, hence the
	// breaker.
	Fault
)

func (c Class) String() string {
	switch c {
	case Unclassified:
		return "unclassified"
	case Flushed:
		return "flushed"
	case RemotePath:
		return "remote path"
	case Fault:
		return "local or protection fault"
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// reusable says that the QP is as good as before, once it is drained.
func (c Class) reusable() bool { return c == Flushed || c == RemotePath }

// completionClasses are those of failed work requests: InfiniBand Architecture
// Specification, volume 1, section 11.6.2, and ibv_poll_cq(3). What concerns RD
// and EE contexts, which we have not, and statuses without a cause stay
// unclassified.
var completionClasses = map[verbs.WCStatus]Class{
	verbs.WCWRFlushErr: Flushed,

	verbs.WCRetryExcErr:    RemotePath,
	verbs.WCRNRRetryExcErr: RemotePath,
	verbs.WCRemOpErr:       RemotePath, // the peer's QP or device gave up
	verbs.WCRemAbortErr:    RemotePath,
	verbs.WCRespTimeoutErr: RemotePath,

	verbs.WCLocLenErr:    Fault,
	verbs.WCLocQPOpErr:   Fault, // but see completionClass
	verbs.WCLocProtErr:   Fault,
	verbs.WCLocAccessErr: Fault,
	verbs.WCMWBindErr:    Fault,
	verbs.WCBadRespErr:   Fault,
	verbs.WCRemInvReqErr: Fault,
	verbs.WCRemAccessErr: Fault,
	verbs.WCFatalErr:     Fault,
}

// completionClass is the class of a failed work request. rxe completes a send
// with a local QP operation error where it finds no route, as when the network
// interface is down (Linux 6.1): there it is the path's.
func completionClass(s verbs.WCStatus, rxe bool) Class {
	if s == verbs.WCLocQPOpErr && rxe {
		return RemotePath
	}
	return completionClasses[s]
}

// eventClasses are those of asynchronous events that end links.
var eventClasses = map[verbs.EventType]Class{
	verbs.EventPortErr: RemotePath,

	verbs.EventQPReqErr:    Fault,
	verbs.EventQPAccessErr: Fault,
	verbs.EventQPFatal:     Fault,
	verbs.EventCQErr:       Fault,
	verbs.EventSRQErr:      Fault,
	verbs.EventDeviceFatal: Fault,
}

// ClassOf is the class of an error that a link ended with, Unclassified where
// it comes from neither completion nor device.
func ClassOf(err error) Class {
	var (
		completion *CompletionError
		event      *EventError
		removed    *RemovedError
	)
	switch {
	case errors.As(err, &completion):
		return completion.Class
	case errors.As(err, &event):
		return eventClasses[event.Event.Type]
	case errors.As(err, &removed):
		return RemotePath
	}
	return Unclassified
}
