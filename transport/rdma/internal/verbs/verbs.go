// Package verbs is the contract between the RDMA transport and a device:
// device, port, GID table, PD, MR, CQ with completion channel, QPs of type RC,
// UC and UD, shared receive queues, and asynchronous events, as libibverbs has
// them.
//
// It holds types and interfaces only. Package ibverbs implements them over
// libibverbs, package uverbs over the kernel itself for devices whose queues
// are laid out in public, package simverbs over a software device for tests;
// package verbstest is the conformance suite that all must pass.
//
// # Memory
//
// Work requests name memory by address and key, so every address must lie in
// a registered region (MR) whose bytes do not move: off-heap memory such as
// pool.Arena. The device may touch it until the work request's completion was
// polled, whatever happened to the caller meanwhile.
//
// # Concurrency
//
// All methods may be called from any goroutine, except that one CQ is polled
// by one goroutine at a time, and that the caller orders Destroy and Close
// after every other use of the object. Objects are destroyed in the order QP,
// SRQ, CQ, CompChannel, MR, PD, Device; a device refuses with EBUSY otherwise.
package verbs

import "time"

// Provider opens RDMA devices.
type Provider interface {
	// Name says which implementation this is: "ibverbs", "uverbs", …
	Name() string

	// Devices lists the device names, in the provider's order. It returns an
	// *UnavailableError when RDMA cannot be used at all in this process.
	Devices() ([]string, error)

	// Open opens a device by name.
	Open(name string) (Device, error)
}

// Device is an open device context.
type Device interface {
	Name() string
	Query() (DeviceAttr, error)
	QueryPort(port uint8) (PortAttr, error)

	// QueryGIDs lists the non-empty entries of the port's GID table. The
	// table may change at run time: indexes are good until the next
	// EventGIDChange or port event.
	QueryGIDs(port uint8) ([]GIDEntry, error)

	AllocPD() (PD, error)
	CreateCompChannel() (CompChannel, error)

	// CreateCQ makes a completion queue of at least depth entries. With a
	// nil channel it can only be polled. An overrun loses completions while
	// its QPs stay in RTS, so depth must cover every WR that can be
	// outstanding on every QP attached to it, after rounding (QP.Caps).
	CreateCQ(depth int, ch CompChannel) (CQ, error)

	// AsyncEvent blocks until the next asynchronous event. It returns
	// ErrInterrupted once after each Interrupt.
	AsyncEvent() (AsyncEvent, error)

	// Interrupt wakes a goroutine blocked in AsyncEvent.
	Interrupt()

	Close() error
}

// PD is a protection domain.
type PD interface {
	// RegisterMR pins mem and lets the device use it. mem must be off-heap
	// and stay mapped until Deregister returned.
	RegisterMR(mem []byte, access Access) (MR, error)
	CreateQP(init QPInit) (QP, error)

	// CreateSRQ makes a receive queue that QPs of this PD share: those that
	// are created with it as QPInit.SRQ.
	CreateSRQ(caps SRQCaps) (SRQ, error)

	// CreateAH makes an address handle, which UD sends name by its Handle.
	CreateAH(attr AHAttr) (AH, error)
	Dealloc() error
}

// MR is a registered memory region.
type MR interface {
	Addr() uint64 // of the first byte
	Len() int
	LKey() uint32
	RKey() uint32
	Deregister() error
}

// AH is an address handle.
type AH interface {
	Handle() uint64
	Destroy() error
}

// CompChannel delivers completion events of the CQs created with it.
type CompChannel interface {
	// Wait blocks until a CQ of the channel has an event, until Wake, or
	// until timeout (0: returns at once; negative: no limit). It takes and
	// acknowledges all events that are there. It blocks an OS thread, not
	// the netpoller: a blocking read wakes faster.
	Wait(timeout time.Duration) (WakeReason, error)

	// Wake makes the current or, when there is none, the next Wait return.
	Wake()
	Destroy() error
}

// WakeReason says why CompChannel.Wait returned.
type WakeReason uint8

// Reasons to wake.
const (
	WakeTimeout WakeReason = iota
	WakeEvent              // a completion event
	WakeCall               // Wake was called (perhaps with an event as well)
)

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(wc) completions into wc, in one crossing, and
	// returns how many.
	Poll(wc []WC) (int, error)

	// Arm asks for one event on the channel at the next completion.
	// Completions that are already queued raise none: arm, poll again, and
	// only then wait.
	Arm() error

	// Depth is the number of entries after rounding.
	Depth() int
	Destroy() error
}

// QP is a queue pair.
type QP interface {
	Num() uint32 // QPN, 24 bits
	Type() QPType

	// Modify changes the attributes named by mask. A transition may block
	// (RTR to an unresolvable GID: 1 s on rxe): never call it on a poller.
	// Errors are *Error with the errno of the device.
	Modify(attr *QPAttr, mask AttrMask) error

	// Query reads the attributes back, State first of all.
	Query() (QPAttr, error)

	// PostSend posts wrs in order, in one crossing, and returns how many
	// were taken; err belongs to wrs[n], or with n == len(wrs) to the doorbell:
	// all are in the queue, and the device need not know before the next post,
	// or ERR. Inline sends may be reused on return, others when completed.
	PostSend(wrs []SendWR) (n int, err error)

	// PostRecv posts receives likewise. A QP that receives from an SRQ takes
	// none: EINVAL.
	PostRecv(wrs []RecvWR) (n int, err error)

	// Caps are the limits after rounding, at least those asked for.
	Caps() QPCaps
	Destroy() error
}

// SRQ is a shared receive queue. Its receives go, in the order they were
// posted, to whichever of its QPs a message comes to; the completion is in that
// QP's receive CQ, under its number.
//
// A receive belongs to no QP until one takes it, with the first packet of a
// message. From then on the device may write into it until it completes, or
// that QP is RESET or destroyed. A QP in ERR flushes only the one it had taken,
// which need not have come by the time that Modify returns; RESET and Destroy
// can lose it. Where the device raises EventQPLastWQEReached, it came before.
// Destroy of the SRQ ends what was not taken, without completions.
type SRQ interface {
	// PostRecv posts receives as QP.PostRecv does, in one crossing, whatever
	// state the QPs are in. With none posted, a QP's peer is told RNR.
	PostRecv(wrs []RecvWR) (n int, err error)

	// Arm asks for one EventSRQLimitReached, when taking a receive leaves
	// fewer than limit. With fewer in the queue already, a device may raise
	// it at once or with the next one taken. 0 asks for none; a later Arm
	// replaces an earlier. Never call it on a poller: it is a command.
	Arm(limit int) error

	// Caps are the limits after rounding, at least those asked for.
	Caps() SRQCaps
	Destroy() error
}
