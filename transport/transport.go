// Package transport carries messages between two processes.
//
// A Link is one attachment to a peer: one RC queue pair or one TCP connection,
// ordered while alive, never repaired. A Lane is an ordered channel of
// messages, carried by one link at a time; it cuts large messages into chunks
// and puts them together again. A Session is two live processes that know each
// other: a control link over TCP, at times a fast link beside it, and lanes.
// A Network makes sessions.
//
// Package tcp implements Carrier and its links, package rdma implements Fabric
// and its links; package rpc makes calls over lanes. The frames on a link are
// those of docs/PROTOCOL.md.
package transport

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Kind is what a link is made of.
type Kind uint8

// Kinds of links.
const (
	TCP Kind = iota + 1
	RDMA
)

func (k Kind) String() string {
	switch k {
	case TCP:
		return "tcp"
	case RDMA:
		return "rdma"
	}
	return "none"
}

// Class says who waits behind whom for room on a link.
type Class uint8

// Classes of frames.
const (
	Small   Class = iota // whole messages; never wait behind Bulk
	Bulk                 // chunks of large messages; leave room for Small
	Control              // frames of the link or session; have reserved slots
)

// Link is one attachment to a peer. Its methods may be called from any
// goroutine. Frames are sent in steps, so that a message is encoded
// straight into the memory that it is sent from:
//
//	slot, err := link.Reserve(ctx, transport.Small, n)
//	copy(slot.Payload, …)
//	err = link.Commit(slot, &wire.Header{Kind: wire.Call, …})
//	link.Flush()
//
// Frames of lanes leave in the order of Commit as the link saw it. Those of the
// link itself may pass them.
type Link interface {
	Kind() Kind

	// Start begins delivery to r. It is called once, before anything else
	// arrives at r; frames may be sent before. If the link has died by itself
	// since, r is told by Closed, from another goroutine.
	Start(r Receiver)

	// MaxPayload is the largest payload of one frame in bytes. It never changes.
	MaxPayload() int

	// Reserve claims room for a frame with n <= MaxPayload payload bytes. It
	// waits for room until ctx is done or the link is dead. Where there is room
	// it does not look at ctx: with a context that is over, Reserve takes what
	// is free at once or fails at once, with the error of ctx. A slot must be
	// given back by Commit or Discard, soon: slots are few.
	Reserve(ctx context.Context, class Class, n int) (Slot, error)

	// Commit gives the frame in s to the link. It leaves with the next Flush at
	// the latest: each Commit is followed by one. The caller sets Kind, Flags,
	// Lane, Seq, Ack, Call, Method, Total and Arg of h; the link sets the others,
	// and sends a payload sum where the caller set flag Sum. h is not kept.
	// Commit never waits for the peer, nor for whoever flushes. An error means
	// that the frame was not and will never be sent, and the slot is still the
	// caller's, to be given back by Discard.
	Commit(s Slot, h *wire.Header) error

	// Flush lets what was committed leave, as far as the peer has room. It does
	// not wait for the peer, nor for another that flushes, which sends this too;
	// it may yield once to callers that are about to commit. A link that was
	// accepted may hold frames back until the first frame of the peer has arrived.
	Flush()

	// Discard gives a slot back unused.
	Discard(s Slot)

	// Close ends the link because of err (nil: regular end) and returns at
	// once. Frames that were committed before may be lost. Only the first
	// call counts. From then on Reserve and Commit fail, with err or
	// net.ErrClosed, and of the Receiver only Closed is called, never from
	// within Close. A link that was not started may be closed too; Start has
	// no effect then.
	Close(err error)

	// Done is closed when the link is dead, all its resources are released,
	// and Receiver.Closed has returned.
	Done() <-chan struct{}

	Info() LinkInfo
}

// Helper is a Link on which who waits for a message may take in what arrives,
// so that it need not be woken.
type Helper interface {
	// Help takes in what arrives until done is set, for a time that makes
	// it worth while, and says whether it was; else the caller had better wait
	// in the usual way. waiting is how many wait for messages of the link: with
	// others about, Help sees to it that somebody goes on when it returns.
	// Receivers are called on the caller's goroutine.
	Help(done *Signal, waiting *atomic.Int32) bool
}

// Rouser is a Helper whose Help sleeps until something arrives on the link, and
// does not see what done gets from elsewhere. What arrives when nobody helps any
// more may wait for 10 ms, unless it is roused.
type Rouser interface {
	Helper

	// Rouse has the link take in what arrives itself, at once, also where it was
	// about to leave that to helpers, and ends a Help that is under way. It does
	// not wait. Call it when something set done that the link did not bring,
	// and when who has helped does not come back soon.
	Rouse()
}

// Acker is a Link of which frames may take longer than a peer should be silent, and
// which knows before that they are on their way.
type Acker interface {
	// Acked is how many bytes of what was sent the peer's system has said that it
	// has; 0 if nobody knows.
	Acked() uint64
}

// Referrer is a Link that can send a payload from the memory where it is.
type Referrer interface {
	// Refer is Reserve of a frame whose payload is already there: n bytes of
	// buf, from at on, which nobody may change any more. The link holds a
	// reference to buf until the frame has been written or given back.
	Refer(ctx context.Context, class Class, buf *pool.Buf, at, n int) (Slot, error)
}

// Slot is room for one frame on the link that gave it.
type Slot struct {
	// Payload is where the message goes: exactly the bytes asked for. It
	// belongs to the caller until Commit or Discard.
	Payload []byte

	// Token and Ref are the link's own.
	Token uint64
	Ref   any

	// Buf holds Payload from byte At on, where the memory is not bound to the
	// link: then whoever retains it may read the payload after Commit. Else nil.
	Buf *pool.Buf
	At  int

	via   *carrier // of Lane: what gave it; nil: a buffer of the lane's own
	class Class    // of Lane
}

// Receiver takes in what a link delivers. The link calls it from one goroutine
// at a time, in order of arrival, with headers that were checked: sum, epoch,
// length. An error closes the link with that error.
//
// A link that has the whole frame in memory gives it to Take; one that reads the
// payload to where it belongs calls Land and then Frame. None of the methods
// may wait: on RDMA one poller serves many links.
type Receiver interface {
	// Take takes in a frame. payload has h.Length bytes, checked; the receiver
	// copies what it keeps of it.
	Take(h *wire.Header, payload []byte) error

	// Land says where the payload of the frame belongs: h.Length bytes that
	// stay valid until Frame or Closed. It is not called for empty payloads.
	Land(h *wire.Header) ([]byte, error)

	// Frame says that the frame is there, its payload in place and checked.
	Frame(h *wire.Header) error

	// Closed says that the link is dead, why, and that nothing follows. It
	// is called exactly once; nil means that this side closed it regularly.
	Closed(err error)
}

// LinkInfo describes a link to people and metrics.
type LinkInfo struct {
	Kind          Kind
	Epoch         uint64
	Local, Remote net.Addr
	Device        string // RDMA: device and port, "rxe0/1"
	MTU           int    // RDMA: path MTU in bytes
	Stats         LinkStats
}

// LinkStats count what a link did.
type LinkStats struct {
	FramesSent, FramesReceived uint64
	BytesSent, BytesReceived   uint64 // whole frames
	SendBatches                uint64 // crossings or system calls that sent
	RecvBatches                uint64 // polls or reads that brought something
	Completions                uint64 // RDMA: what those polls brought, of sends and of receives
	RecvsPosted, RecvPosts     uint64 // RDMA: receives posted since the link began, unless they are shared, and the crossings that did
	CreditStalls               uint64 // times that a sender had frames but no credit
	Stale                      uint64 // frames of another epoch, dropped
}

// Carrier makes control links. Package tcp implements it.
type Carrier interface {
	Dial(ctx context.Context, addr string) (Link, error)
	Listen(addr string) (Listener, error)
}

// Listener accepts control links. Accept returns net.ErrClosed after Close.
type Listener interface {
	Accept() (Link, error)
	Addr() net.Addr
	Close() error
}

// Fabric makes fast links between two processes that already share a control
// link. Package rdma implements it. A Fabric serves any number of sessions.
type Fabric interface {
	Kind() Kind

	// Usable says why no fast link can start at the local address, or nil.
	Usable(local net.Addr) error

	// Prepare takes what a new link needs on this side, up to receives that
	// are ready, without knowing the peer.
	Prepare(ctx context.Context, local net.Addr) (Half, error)

	// Close releases the fabric's own resources, after its links are done.
	Close() error
}

// Watcher is a Fabric that knows when its ports change. Package rdma implements
// it.
type Watcher interface {
	Fabric

	// Watch has changed called each time that a device or port has come up or
	// has other addresses, so that a link which could not be made might be
	// made now. Those calls come from one goroutine, and must not wait. stop
	// ends them; one may still be under way when it returns.
	Watch(changed func()) (stop func())
}

// Half is a link that does not know its peer yet. It ends by Connect or Abort,
// called once.
type Half interface {
	// Offer is what the peer must know. Epoch is left to the caller.
	Offer() wire.QP

	// Connect makes the link of the given epoch. It may block for a second
	// where the peer cannot be resolved. On error everything is released.
	Connect(ctx context.Context, epoch uint64, peer wire.QP) (Link, error)

	Abort()
}
