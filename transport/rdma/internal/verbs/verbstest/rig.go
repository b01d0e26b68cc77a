// Package verbstest is what every verbs provider must pass: one conformance
// suite for software and hardware, and a check that a test run leaves no verbs
// object, goroutine or file descriptor behind.
package verbstest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// End is one of the two devices under test.
type End struct {
	Provider verbs.Provider
	Device   string
	Port     uint8     // default 1
	GID      verbs.GID // the address by which the other end reaches it
}

// Rig is a pair of devices that reach each other. They may be the same.
type Rig struct {
	A, B   End
	Quirks Quirks

	// Deadline bounds each wait; default 30 s. Waits end as soon as what they
	// wait for is there: a slow device costs nothing but this limit.
	Deadline time.Duration
}

// Quirks are departures from the InfiniBand specification that a device is
// known for. Each holds the reason, where it was seen, or "" if the device
// follows the specification. With a reason the suite accepts both.
type Quirks struct {
	RecvInErrSilent    string // a receive posted in ERR gives no completion, unless the QP is taken to ERR again
	ShortRecvIsOpErr   string // receive too small: sender 11, receiver 2, not 9 and 1
	BadLKeyIsOpErr     string // send with a bad lkey: status 2, not 4
	WriteErrorTwice    string // a WRITE refused by the peer completes with 10 and again with 5
	NoAccessIsReqErr   string // operation the peer QP does not allow: 9, not 10
	OversizeUDVanishes string // a datagram above the MTU succeeds and is not sent
	OverrunStopsQP     string // a QP whose receive CQ overruns goes to ERR, its peer's sends fail
	NoLastWQE          string // a QP with an SRQ goes to ERR without LAST_WQE_REACHED
	UCWriteImmSticks   string // UC drops all that follows a long WRITE_IMM which found no receive
}

// RXE are the quirks of rdma_rxe in Linux 6.1, and of simverbs' model of it.
var RXE = Quirks{
	RecvInErrSilent:    "the library queues it, and the device does not look there until a transition to ERR",
	ShortRecvIsOpErr:   "copy_data fails and rxe calls that a malformed WQE",
	BadLKeyIsOpErr:     "rxe_requester knows one local error",
	WriteErrorTwice:    "the WQE is still in the queue when it is flushed",
	NoAccessIsReqErr:   "check_op_valid calls the opcode unsupported",
	OversizeUDVanishes: "rxe_requester fakes the sending (C10-93.1.1)",
	OverrunStopsQP:     "RESPST_ERR_CQ_OVERFLOW ends in rxe_qp_error",
	NoLastWQE:          "check_resource leaves an SRQ alone and raises nothing",
	UCWriteImmSticks:   "the responder remembers the MIDDLE packet, and check_op_seq refuses each FIRST",
}

// Run runs the suite against a rig.
func Run(t *testing.T, rig Rig) {
	for _, e := range []*End{&rig.A, &rig.B} {
		if e.Port == 0 {
			e.Port = 1
		}
	}
	if rig.Deadline == 0 {
		rig.Deadline = 30 * time.Second
	}
	before := len(verbs.Live())
	for _, c := range []struct {
		name string
		test func(*testing.T, Rig)
	}{
		{"Attributes", testAttributes},
		{"UnknownDevice", testUnknownDevice},
		{"Sizes", testSizes},
		{"DestroyOrder", testDestroyOrder},
		{"DestroyTwice", testDestroyTwice},
		{"AsyncInterrupt", testAsyncInterrupt},
		{"QPLife", testQPLife},
		{"IllegalTransitions", testIllegalTransitions},
		{"MissingAttributes", testMissingAttributes},
		{"InconsistentAttributes", testInconsistentAttributes},
		{"PostInWrongState", testPostInWrongState},
		{"QueueFull", testQueueFull},
		{"Recycle", testRecycle},
		{"ResetForgets", testResetForgets},
		{"SendSizes", testSendSizes},
		{"Inline", testInline},
		{"InlineTooLong", testInlineTooLong},
		{"BatchesAreOrdered", testBatchesAreOrdered},
		{"Unsignaled", testUnsignaled},
		{"Immediate", testImmediate},
		{"WriteAndRead", testWriteAndRead},
		{"Atomics", testAtomics},
		{"NotReady", testNotReady},
		{"NotReadyGivesUp", testNotReadyGivesUp},
		{"PeerInErr", testPeerInErr},
		{"FlushIsExact", testFlushIsExact},
		{"PostInErr", testPostInErr},
		{"BadLKey", testBadLKey},
		{"ShortReceive", testShortReceive},
		{"BadRKey", testBadRKey},
		{"NoAccess", testNoAccess},
		{"CQOverrun", testCQOverrun},
		{"UnreliableConnection", testUnreliableConnection},
		{"Datagram", testDatagram},
		{"DatagramQKey", testDatagramQKey},
		{"DatagramTooLong", testDatagramTooLong},
		{"SRQ", testSRQ},
		{"SRQDatagram", testSRQDatagram},
		{"SRQEmpty", testSRQEmpty},
		{"SRQEmptyGivesUp", testSRQEmptyGivesUp},
		{"SRQLimit", testSRQLimit},
		{"SRQOutlivesQP", testSRQOutlivesQP},
		{"SRQDestroyedQP", testSRQDestroyedQP},
		{"SRQShortReceive", testSRQShortReceive},
		{"SRQFull", testSRQFull},
		{"SRQObjects", testSRQObjects},
		{"SRQConcurrent", testSRQConcurrent},
		{"ChannelEvent", testChannelEvent},
		{"ChannelIsOneShot", testChannelIsOneShot},
		{"ChannelIgnoresQueued", testChannelIgnoresQueued},
		{"ChannelWake", testChannelWake},
		{"ChannelTimeout", testChannelTimeout},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, rig) })
	}
	require.Len(t, verbs.Live(), before, "verbs objects are left: %v", verbs.Live())
}
