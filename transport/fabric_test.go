package transport_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// memory is a network within the process: a Carrier with one listener, whose
// connections are pipes so that tests can run in virtual time, and the wires of
// fabrics.
type memory struct {
	mu       sync.Mutex
	listener *memoryListener
	wires    map[uint64]net.Conn // by epoch: the end that the second side takes
	control  []net.Conn          // of control links
	refuses  atomic.Bool         // new connections
	mute     atomic.Bool         // of new connections nothing comes back
	dark     atomic.Bool         // nobody can be reached for new ones
	all      []*stallable
}

// cut ends all control connections.
func (m *memory) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.control {
		c.Close()
	}
}

// fail ends all connections, with that error at both ends.
func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.all {
		c.failed.Store(&err)
		c.Close()
	}
}

// stall lets nothing through any more on the links that there are.
func (m *memory) stall() { m.stalled(true) }

// stalled says whether the links that there are let anything through.
func (m *memory) stalled(is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.all {
		c.stalled.Store(is)
	}
}

// stallControls has the connections there are carry nothing any more, and no new ones come.
func (m *memory) stallControls() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dark.Store(true)
	for _, p := range m.control {
		p.(*stallable).stalled.Store(true)
	}
}

// stallClients lets nothing through from clients on the control links that
// there are.
func (m *memory) stallClients() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := 0; i < len(m.control); i += 2 {
		m.control[i].(*stallable).stalled.Store(true)
	}
}

// stallable is a connection that can come to carry nothing.
type stallable struct {
	net.Conn
	stalled atomic.Bool
	failed  atomic.Pointer[error]
	closed  chan struct{}
	once    sync.Once
}

func (c *stallable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.why(err)
}

// why is the reason that the connection ended for, if it was ended by fail.
func (c *stallable) why(err error) error {
	if failed := c.failed.Load(); err != nil && failed != nil {
		return *failed
	}
	return err
}

func (c *stallable) Write(b []byte) (int, error) {
	for c.stalled.Load() {
		select {
		case <-c.closed:
			return 0, c.why(net.ErrClosed)
		case <-time.After(10 * time.Millisecond):
		}
	}
	n, err := c.Conn.Write(b)
	return n, c.why(err)
}

func (c *stallable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// newPipe is a pipe of the memory.
func (m *memory) newPipe() (net.Conn, net.Conn) {
	a, b := net.Pipe()
	sa, sb := &stallable{Conn: a, closed: make(chan struct{})}, &stallable{Conn: b, closed: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, sa, sb)
	return sa, sb
}

func newMemory() *memory {
	return &memory{wires: map[uint64]net.Conn{}}
}

type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (m *memory) Listen(string) (transport.Listener, error) {
	l := &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listener = l
	return l, nil
}

func (m *memory) pipe(ctx context.Context) (net.Conn, error) {
	m.mu.Lock()
	l := m.listener
	m.mu.Unlock()
	if l == nil || m.refuses.Load() {
		return nil, syscall.ECONNREFUSED
	}
	if m.dark.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	a, b := m.newPipe()
	b.(*stallable).stalled.Store(m.mute.Load())
	select {
	case l.conns <- b:
		m.mu.Lock()
		m.control = append(m.control, a, b)
		m.mu.Unlock()
		return a, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *memory) Dial(ctx context.Context, _ string) (transport.Link, error) {
	conn, err := m.pipe(ctx)
	if err != nil {
		return nil, err
	}
	return tcp.Client(conn)
}

func (l *memoryListener) Accept() (transport.Link, error) {
	select {
	case c := <-l.conns:
		return tcp.Server(c)
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }
func (l *memoryListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }

// fabric is a transport.Fabric over a memory. Its fields are faults.
type fabric struct {
	m         *memory
	usable    error         // of Usable
	down      atomic.Bool   // as usable and prepare, and may change
	prepare   error         // of Prepare
	connect   error         // of Connect
	slow      time.Duration // of Connect
	lost      bool          // READY leaves, and never arrives
	dies      error         // of every link as soon as it starts
	live      atomic.Int32  // halves and links that exist
	prepared  atomic.Int32  // calls of Prepare
	narrow    int           // MaxPayload of links; 0: as it comes
	onPrepare func()

	// eats is asked of each frame that is given to a link: true: it is lost.
	eats func(l *fastLink, h *wire.Header) bool

	fuse  atomic.Int64 // frames of lanes until the link dies that carries the last; 0: for ever
	mu    sync.Mutex
	links []*fastLink // that were made
}

// kill lets the links that exist die.
func (f *fabric) kill(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.links {
		l.Close(err)
	}
	f.links = nil
}

// first is the link that was made first and was not killed.
func (f *fabric) first() *fastLink {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.links[0]
}

func (f *fabric) Kind() transport.Kind { return transport.RDMA }
func (f *fabric) Usable(local net.Addr) error {
	if f.down.Load() {
		return errTest
	}
	return f.usable
}

func (f *fabric) Close() error                 { return nil }
func (h *half) Offer() wire.QP                 { return wire.QP{QPN: 17, Depth: 128, Slot: 4096, MTU: 3} }
func (h *half) Abort()                         { h.f.live.Add(-1) }
func (l *fastLink) Kind() transport.Kind       { return transport.RDMA }
func (l *fastLink) Info() transport.LinkInfo   { i := l.Link.Info(); i.Kind = transport.RDMA; return i }
func (l *fastLink) Start(r transport.Receiver) { l.Link.Start(r); l.started() }

type half struct{ f *fabric }

func (f *fabric) Prepare(ctx context.Context, local net.Addr) (transport.Half, error) {
	f.prepared.Add(1)
	if f.onPrepare != nil {
		f.onPrepare()
	}
	if f.down.Load() {
		return nil, errTest
	}
	if f.prepare != nil {
		return nil, f.prepare
	}
	f.live.Add(1)
	return &half{f}, nil
}

func (h *half) Connect(ctx context.Context, epoch uint64, peer wire.QP) (transport.Link, error) {
	f := h.f
	time.Sleep(f.slow)
	if f.connect != nil {
		f.live.Add(-1)
		return nil, f.connect
	}
	a, b := f.m.newPipe()
	f.m.mu.Lock()
	end, second := f.m.wires[epoch]
	if second {
		delete(f.m.wires, epoch)
	} else {
		end, f.m.wires[epoch] = a, b
	}
	f.m.mu.Unlock()
	side := tcp.Server // the server connects first
	if second {
		side = tcp.Client
	}
	link, err := side(end)
	go func() {
		<-link.Done()
		f.live.Add(-1)
	}()
	made := &fastLink{link, f}
	f.mu.Lock()
	f.links = append(f.links, made)
	f.mu.Unlock()
	return made, err
}

// fastLink is a stream link that says it is a fast one.
type fastLink struct {
	transport.Link
	f *fabric
}

func (l *fastLink) MaxPayload() int {
	if l.f.narrow > 0 {
		return l.f.narrow
	}
	return l.Link.MaxPayload()
}

func (l *fastLink) Reserve(ctx context.Context, class transport.Class, n int) (transport.Slot, error) {
	if n > l.MaxPayload() {
		return transport.Slot{}, &transport.TooLargeError{Size: n, Max: l.MaxPayload()}
	}
	return l.Link.Reserve(ctx, class, n)
}

func (l *fastLink) started() {
	if l.f.dies != nil {
		l.Close(l.f.dies)
	}
}

func (l *fastLink) Commit(s transport.Slot, h *wire.Header) error {
	if l.f.lost && h.Kind == wire.Ready || l.f.eats != nil && l.f.eats(l, h) {
		l.Discard(s)
		return nil
	}
	if h.Kind.InLane() && l.f.fuse.Load() > 0 && l.f.fuse.Add(-1) == 0 {
		defer l.Close(errTest)
	}
	return l.Link.Commit(s, h)
}
