package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// lists is a network, Carrier and Fabric in one, whose links are lists of
// frames: what is committed arrives when the test says so, or never.
type lists struct {
	t      testing.TB
	accept chan Link
	closed chan struct{}
	once   sync.Once

	mu      sync.Mutex
	ends    []*listEnd          // of all links, those of one side by side
	halves  map[uint64]*listEnd // by epoch: the end that the second side takes
	width   int                 // MaxPayload of fast links to be made
	refuses bool                // connections
}

func newLists(t testing.TB) *lists {
	return &lists{t: t, accept: make(chan Link, 64), closed: make(chan struct{}), halves: map[uint64]*listEnd{}, width: 400}
}

// wideList is the MaxPayload of control links.
const wideList = 2000

func (n *lists) pair(kind Kind, width int) (a, b *listEnd) {
	end := func() *listEnd {
		return &listEnd{n: n, kind: kind, width: width, room: make(chan struct{}), over: make(chan struct{}), done: make(chan struct{})}
	}
	a, b = end(), end()
	a.peer, b.peer = b, a
	n.ends = append(n.ends, a, b)
	return a, b
}

func (n *lists) Dial(context.Context, string) (Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuses {
		return nil, errors.New("no route")
	}
	a, b := n.pair(TCP, wideList)
	n.accept <- b
	return a, nil
}

func (n *lists) Listen(string) (Listener, error) { return n, nil }
func (n *lists) Addr() net.Addr                  { return &net.UnixAddr{Name: "lists"} }
func (n *lists) Close() error                    { n.once.Do(func() { close(n.closed) }); return nil }
func (n *lists) Kind() Kind                      { return RDMA }
func (n *lists) Usable(net.Addr) error           { return nil }

func (n *lists) Accept() (Link, error) {
	select {
	case l := <-n.accept:
		return l, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *lists) Prepare(context.Context, net.Addr) (Half, error) { return listHalf{n}, nil }

type listHalf struct{ n *lists }

func (listHalf) Offer() wire.QP { return wire.QP{QPN: 1, Depth: 64, Slot: 4096, MTU: 1} }
func (listHalf) Abort()         {}

func (h listHalf) Connect(_ context.Context, epoch uint64, _ wire.QP) (Link, error) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if b := h.n.halves[epoch]; b != nil {
		delete(h.n.halves, epoch)
		return b, nil
	}
	a, b := h.n.pair(RDMA, h.n.width)
	h.n.halves[epoch] = b
	return a, nil
}

// made are all ends, in the order in which they were made.
func (n *lists) made() []*listEnd {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.ends)
}

// live are the ends that have not died.
func (n *lists) live() (live []*listEnd) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.ends {
		if !e.isDead() {
			live = append(live, e)
		}
	}
	return live
}

// release drops what is still under way.
func (n *lists) release() {
	for _, e := range n.made() {
		e.truncate(0)
	}
}

// listEnd is one end of a link. Control links give slots of pooled memory, as
// those of package tcp; fast links reuse theirs at once.
type listEnd struct {
	n     *lists
	kind  Kind
	width int
	peer  *listEnd
	over  chan struct{} // closed when it dies
	done  chan struct{}

	turn    sync.Mutex // of calls of the receiver
	landing *listFrame // that is half there
	dst     []byte

	mu   sync.Mutex
	recv Receiver
	dead bool
	sent []listFrame   // under way to the peer
	full bool          // no slots
	room chan struct{} // closed when full ends
}

type listFrame struct {
	h       wire.Header
	payload []byte
	buf     *pool.Buf
}

func (f *listFrame) release() {
	if f.buf != nil {
		f.buf.Release()
	}
}

func (e *listEnd) Kind() Kind            { return e.kind }
func (e *listEnd) MaxPayload() int       { return e.width }
func (e *listEnd) Flush()                {}
func (e *listEnd) Close(err error)       { e.die(err) }
func (e *listEnd) Done() <-chan struct{} { return e.done }
func (e *listEnd) Info() LinkInfo        { return LinkInfo{Kind: e.kind, Remote: &net.UnixAddr{}} }

func (e *listEnd) Start(r Receiver) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recv = r
	if e.dead {
		go r.Closed(errDead)
	}
}

var errDead = errors.New("the link has died")

func (e *listEnd) isDead() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead
}

func (e *listEnd) Reserve(ctx context.Context, _ Class, n int) (Slot, error) {
	if n > e.width {
		e.n.t.Errorf("%d bytes are reserved on a link that takes %d", n, e.width)
	}
	for {
		e.mu.Lock()
		full, room, dead := e.full, e.room, e.dead
		e.mu.Unlock()
		switch {
		case dead:
			return Slot{}, errDead
		case !full && e.kind == RDMA:
			return Slot{Payload: make([]byte, n)}, nil
		case !full:
			buf := pool.Get(8 + n)
			return Slot{Payload: buf.Bytes()[8:], Ref: buf, Buf: buf, At: 8}, nil
		}
		select {
		case <-room:
		case <-e.over:
		case <-ctx.Done():
			return Slot{}, ctx.Err()
		}
	}
}

func (e *listEnd) Commit(s Slot, h *wire.Header) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return errDead
	}
	f := listFrame{h: *h, payload: s.Payload}
	f.h.Length = uint32(len(s.Payload))
	if f.buf, _ = s.Ref.(*pool.Buf); f.buf == nil {
		f.payload = append([]byte(nil), s.Payload...)
		clear(s.Payload)
	}
	e.sent = append(e.sent, f)
	return nil
}

func (e *listEnd) Discard(s Slot) {
	if buf, ok := s.Ref.(*pool.Buf); ok {
		buf.Release()
	}
}

// die ends this end alone: what it sent before may still arrive.
func (e *listEnd) die(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return
	}
	e.dead = true
	close(e.over)
	go func() {
		e.turn.Lock()
		e.landing = nil
		e.turn.Unlock()
		e.mu.Lock()
		recv := e.recv
		e.mu.Unlock()
		if recv != nil {
			recv.Closed(err)
		}
		close(e.done)
	}()
}

// truncate loses what is under way beyond the first frames.
func (e *listEnd) truncate(keep int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.sent) > keep {
		last := len(e.sent) - 1
		e.sent[last].release()
		e.sent = e.sent[:last]
	}
}

// again lets a MOVE that is the last under way come twice.
func (e *listEnd) again() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.sent); n > 0 && e.sent[n-1].h.Kind == wire.Move {
		e.sent = append(e.sent, listFrame{h: e.sent[n-1].h})
	}
}

func (e *listEnd) setFull(full bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.full && !full {
		close(e.room)
		e.room = make(chan struct{})
	}
	e.full = full
}

// next is the frame that arrives next at e. An end whose peer has died, and
// sends nothing more, dies.
func (e *listEnd) next() (f listFrame, ok bool) {
	p := e.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sent) == 0 {
		if p.dead {
			e.die(io.EOF)
		}
		return f, false
	}
	f = p.sent[0]
	p.sent = p.sent[1:]
	return f, true
}

// deliver lets one frame arrive, or where half is set half of one, the rest of
// which comes with the next call. It says whether anything came.
func (e *listEnd) deliver(half bool) bool {
	e.turn.Lock()
	defer e.turn.Unlock()
	e.mu.Lock()
	dead, recv := e.dead, e.recv
	e.mu.Unlock()
	if dead || recv == nil {
		return false
	}
	f := e.landing
	if f == nil {
		came, ok := e.next()
		if !ok {
			return false
		}
		if f = &came; f.buf != nil { // the peer may not write into it any more
			defer f.buf.Release()
			f.payload = append([]byte(nil), f.payload...)
			f.buf = nil
		}
		if !half && f.h.Seq%2 == 1 {
			if err := recv.Take(&f.h, f.payload); err != nil {
				e.die(err)
			}
			return true
		}
		if len(f.payload) > 0 {
			var err error
			if e.dst, err = recv.Land(&f.h); err != nil {
				e.die(err)
				return true
			}
			if half {
				copy(e.dst, f.payload[:len(f.payload)/2])
				e.landing = f
				return true
			}
		}
	}
	e.landing = nil
	copy(e.dst, f.payload)
	if err := recv.Frame(&f.h); err != nil {
		e.die(err)
	}
	return true
}
