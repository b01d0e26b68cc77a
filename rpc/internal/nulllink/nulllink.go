// Package nulllink carries sessions within one process at next to no cost, so
// that what is measured over it is the cost of everything above links.
//
// A frame is neither encoded nor sent: whoever flushes calls the receiver of
// the other end with each header that was committed, and copies the payload to
// where that wants it. While another goroutine delivers in that direction, the
// frame waits for it. This is legal because a Receiver does not wait, and an end is
// delivered to by one goroutine at a time; what a receiver sends meanwhile
// leaves when it has taken in all that waits. There is always room.
package nulllink

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// maxPayload of a frame, in bytes: about that of an RDMA link with default slots.
const maxPayload = 8 << 10

// Carrier makes links to its own listeners. The zero value is ready for use,
// from any goroutine.
type Carrier struct {
	mu        sync.Mutex
	listeners map[string]*listener
	opened    int // listeners so far
}

// Dial makes a link to the listener at addr.
func (c *Carrier) Dial(ctx context.Context, addr string) (transport.Link, error) {
	c.mu.Lock()
	l := c.listeners[addr]
	c.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("nulllink: nobody listens at %s", addr)
	}
	near, far := newPair()
	select {
	case l.arrived <- far:
		return near, nil
	case <-l.closed:
		return nil, fmt.Errorf("nulllink: nobody listens at %s", addr)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Listen takes in links to addr, or to an address of its choice if that is "".
func (c *Carrier) Listen(addr string) (transport.Listener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened++
	if addr == "" {
		addr = fmt.Sprintf("null-%d", c.opened)
	}
	if c.listeners[addr] != nil {
		return nil, fmt.Errorf("nulllink: %s is in use", addr)
	}
	l := &listener{carrier: c, addr: address(addr), arrived: make(chan *link), closed: make(chan struct{})}
	if c.listeners == nil {
		c.listeners = map[string]*listener{}
	}
	c.listeners[addr] = l
	return l, nil
}

type listener struct {
	carrier *Carrier
	addr    address
	arrived chan *link
	closed  chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (transport.Link, error) {
	select {
	case k := <-l.arrived:
		return k, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.carrier.mu.Lock()
		defer l.carrier.mu.Unlock()
		delete(l.carrier.listeners, string(l.addr))
	})
	return nil
}

type address string

func (address) Network() string  { return "null" }
func (a address) String() string { return string(a) }

// frame is one that waits to be delivered.
type frame struct {
	h       wire.Header
	payload *room
}

// link is one end. mu guards what is to be delivered to it; whoever sets busy
// delivers, alone, and looks for more before it clears it.
type link struct {
	other *link
	done  chan struct{}

	mu       sync.Mutex
	receiver transport.Receiver // nil before Start
	inbox    []frame
	spare    []frame // what was the inbox
	free     *room   // for what the other end sends
	arrived  uint64
	hungUp   bool  // the other end has closed; the inbox comes first
	closed   bool  // no more deliveries but Closed
	told     bool  // Closed was called or is about to be
	err      error // why it closed

	busy atomic.Bool // written with mu held
	dead atomic.Bool // as closed, for senders
}

// room is the memory of a slot. It goes from hand to hand as the Ref of slots.
type room struct {
	next  *room // of the free ones
	small [smallRoom]byte
	large []byte // of maxPayload, once it was needed
}

// smallRoom is what most frames need, in bytes. Rooms for any frame, side by side, would
// share few places in the caches.
const smallRoom = 128

func (m *room) bytes(n int) []byte {
	if n <= smallRoom {
		return m.small[:n:n]
	}
	if m.large == nil {
		m.large = make([]byte, maxPayload)
	}
	return m.large[:n:n]
}

// Pair makes two links that are connected to each other and not started.
func Pair() (a, b transport.Link) { return newPair() }

func newPair() (a, b *link) {
	a, b = &link{done: make(chan struct{})}, &link{done: make(chan struct{})}
	a.other, b.other = b, a
	return a, b
}

func (*link) Kind() transport.Kind    { return transport.TCP }
func (*link) MaxPayload() int         { return maxPayload }
func (k *link) Done() <-chan struct{} { return k.done }

func (k *link) Info() transport.LinkInfo {
	return transport.LinkInfo{
		Kind: transport.TCP, Epoch: 1, Local: address("null"), Remote: address("null"),
		Stats: transport.LinkStats{FramesSent: k.other.count(), FramesReceived: k.count()},
	}
}

func (k *link) count() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.arrived
}

func (k *link) Start(r transport.Receiver) {
	k.mu.Lock()
	k.receiver = r
	k.mu.Unlock()
	go k.pump()
}

func (k *link) Reserve(_ context.Context, _ transport.Class, n int) (transport.Slot, error) {
	if k.dead.Load() {
		return transport.Slot{}, k.why()
	}
	if n > maxPayload {
		return transport.Slot{}, fmt.Errorf("nulllink: payload of %d bytes, at most %d", n, maxPayload)
	}
	m := k.other.room()
	return transport.Slot{Payload: m.bytes(n), Ref: m}, nil
}

func (k *link) room() *room {
	k.mu.Lock()
	m := k.free
	if m != nil {
		k.free = m.next
	}
	k.mu.Unlock()
	if m == nil {
		m = new(room)
	}
	return m
}

func (k *link) Discard(s transport.Slot) {
	o := k.other
	o.mu.Lock()
	defer o.mu.Unlock()
	o.give(s.Ref.(*room))
}

// give takes a room back. Callers hold mu.
func (k *link) give(m *room) { m.next, k.free = k.free, m }

func (k *link) Commit(s transport.Slot, h *wire.Header) error {
	if k.dead.Load() {
		return k.why()
	}
	h.Length = uint32(len(s.Payload))
	k.other.take(h, s.Ref.(*room))
	return nil
}

// Flush delivers what was committed. Who delivers to this end does that when he is
// through, as links do that send the answers to many frames at once.
func (k *link) Flush() {
	if !k.busy.Load() {
		k.other.pump()
	}
}

// pump delivers what waits for this end, and what was committed there meanwhile.
func (k *link) pump() {
	for k.drain() {
		k = k.other
	}
}

// take keeps a frame to be delivered to k.
func (k *link) take(h *wire.Header, payload *room) {
	k.mu.Lock()
	if !k.closed {
		k.arrived++
		k.inbox = append(k.inbox, frame{*h, payload})
	}
	k.mu.Unlock()
}

// drain delivers what waits, and what comes meanwhile, unless somebody is at it. It
// says whether there was anything.
func (k *link) drain() (some bool) {
	k.mu.Lock()
	if k.busy.Load() || k.receiver == nil || len(k.inbox) == 0 && !k.hungUp && !k.closed {
		k.mu.Unlock()
		return false
	}
	k.busy.Store(true)
	for len(k.inbox) > 0 {
		some = true
		batch := k.inbox
		k.inbox, k.spare = k.spare, nil
		k.mu.Unlock()
		for i := range batch {
			k.deliver(&batch[i].h, batch[i].payload)
		}
		k.mu.Lock()
		for i := range batch {
			k.give(batch[i].payload)
		}
		k.spare = batch[:0]
	}
	if k.hungUp && !k.closed {
		k.shut(io.EOF)
	}
	over := k.closed && !k.told
	if over {
		k.told = true
	}
	if !over { // else for good: nothing follows Closed
		k.busy.Store(false)
	}
	k.mu.Unlock()
	if over {
		go k.tell() // never from within Close, whoever delivers
	}
	return some
}

func (k *link) deliver(h *wire.Header, payload *room) {
	if k.dead.Load() {
		return
	}
	if err := k.receiver.Take(h, payload.bytes(int(h.Length))); err != nil {
		k.Close(err)
	}
}

func (k *link) tell() {
	k.receiver.Closed(k.err)
	k.other.hangUp()
	close(k.done)
}

// hangUp says that the other end has closed.
func (k *link) hangUp() {
	k.mu.Lock()
	k.hungUp = true
	k.mu.Unlock()
	k.pump()
}

func (k *link) Close(err error) {
	k.mu.Lock()
	k.shut(err)
	unstarted := k.receiver == nil && !k.told
	if unstarted {
		k.told = true
	}
	k.mu.Unlock()
	if unstarted {
		k.other.hangUp()
		close(k.done)
		return
	}
	k.pump()
}

// shut ends deliveries; only the first reason counts. Callers hold mu.
func (k *link) shut(err error) {
	if k.closed {
		return
	}
	k.closed, k.err = true, err
	k.dead.Store(true)
}

func (k *link) why() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	return net.ErrClosed
}
