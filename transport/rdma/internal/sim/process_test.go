package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/internal/simnet"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// carrier makes the real TCP links of a host over the simulated network.
type carrier struct {
	net  *simnet.Network
	host netip.Addr
}

func (c *carrier) Dial(ctx context.Context, addr string) (transport.Link, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	conn, err := c.net.Dial(ctx, c.host, to)
	if err != nil {
		return nil, err
	}
	return tcp.Client(conn)
}

func (c *carrier) Listen(addr string) (transport.Listener, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	l, err := c.net.Listen(at)
	if err != nil {
		return nil, err
	}
	return listener{l}, nil
}

type listener struct{ net.Listener }

func (l listener) Accept() (transport.Link, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tcp.Server(conn)
}

// process is a client or server process on a machine.
type process struct {
	machine
	fabric  *rdma.Fabric // nil without a device
	network *transport.Network
	dead    atomic.Bool // what it does is seen by nobody
}

func (w *world) start(m machine) *process {
	p := &process{machine: m}
	p.network = &transport.Network{Carrier: &carrier{w.net, m.addr}, Config: m.network}
	if m.fast {
		p.fabric = rdma.NewOn(w.rdma.Provider(m.name), m.rdma)
		p.network.Fabric = p.fabric
	}
	w.mu.Lock()
	w.processes = append(w.processes, p)
	w.mu.Unlock()
	return p
}

// exit closes the fabric, as a process does that ends.
func (w *world) exit(p *process) {
	if p.fabric == nil {
		return
	}
	if err := p.fabric.Close(); err != nil {
		w.violate("%s: closing its fabric: %v", p.name, err)
	}
	s := p.fabric.Stats()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lostDrains += s.LostDrains
	w.rnr += s.RNR
}

// port of every server.
const port = 7400

// server is a server machine and the process that runs on it now, which only
// the goroutine of the faults replaces.
type server struct {
	w     *world
	index int
	*incarnation
}

// incarnation is one server process.
type incarnation struct {
	w      *world
	proc   *process
	rpc    *rpc.Server
	served chan error
}

func (s *server) machine() machine { return s.w.plan.servers[s.index] }

func (s *server) addr() string { return netip.AddrPortFrom(s.machine().addr, port).String() }

// boot starts a process.
func (s *server) boot() {
	i := &incarnation{w: s.w, proc: s.w.start(s.machine()), served: make(chan error, 1)}
	opts := []rpc.ServerOption{rpc.Inline(inlineMethod.Name)}
	if n := s.w.plan.maxHandlers; n > 0 {
		opts = append(opts, rpc.MaxHandlers(n, n))
	}
	i.rpc = rpc.NewServer(i.proc.network, opts...)
	s.w.must(i.rpc.Register(&serviceDesc, &service{i.proc, s.w}))
	s.w.must(i.rpc.Listen(s.addr()))
	go func() { i.served <- i.rpc.Serve() }()
	s.incarnation = i
}

// kill ends the process at once, as its peers see it.
func (i *incarnation) kill() {
	i.proc.dead.Store(true)
	i.w.net.Kill(i.proc.addr)
	i.w.rdma.KillHost(i.proc.name)
	i.w.leaving.Go(i.bury)
}

// stop ends the process in an orderly way.
func (i *incarnation) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = i.rpc.Shutdown(ctx) // an error says that it had to cut somebody off
	i.bury()
}

// bury closes what is left of the process.
func (i *incarnation) bury() {
	i.w.must(i.rpc.Close())
	err := <-i.served // of one that was killed, the listener may have been closed first
	if !errors.Is(err, rpc.ErrServerClosed) && !(i.proc.dead.Load() && errors.Is(err, net.ErrClosed)) {
		i.w.violate("%s: Serve returned %v", i.proc.name, err)
	}
	i.w.exit(i.proc)
}

var (
	echoMethod   = &rpc.Method{Name: "/sim.World/Echo", Codec: codec.Raw}
	inlineMethod = &rpc.Method{Name: "/sim.World/Inline", Codec: codec.Raw}
	probeMethod  = &rpc.Method{Name: "/sim.World/Probe", Codec: codec.Raw}
	zeroMethod   [zeroMethods]*rpc.Method
	serviceDesc  = rpc.ServiceDesc{Name: "sim.World"}
)

func init() {
	add := func(m *rpc.Method, zero int) {
		serviceDesc.Methods = append(serviceDesc.Methods, rpc.MethodDesc{Method: m, Handler: rpc.Unary(
			func(s *service, ctx context.Context, req *[]byte) (*[]byte, error) {
				reply, err := s.serve(ctx, zero, *req)
				return &reply, err
			})})
	}
	add(echoMethod, -1)
	add(inlineMethod, -1)
	serviceDesc.Methods = append(serviceDesc.Methods, rpc.MethodDesc{Method: probeMethod, Handler: rpc.Unary(
		func(_ *service, _ context.Context, req *[]byte) (*[]byte, error) { return req, nil })})
	for i := range zeroMethod {
		zeroMethod[i] = &rpc.Method{Name: fmt.Sprintf("/sim.World/Zero%d", i), Codec: codec.Raw}
		add(zeroMethod[i], i)
	}
}

func (c *call) rpcMethod() *rpc.Method {
	switch c.method {
	case methodInline:
		return inlineMethod
	case methodZero:
		return zeroMethod[c.zero]
	}
	return echoMethod
}

// way is a client's way to a server: a session, and another when that has
// failed. Its callers share it.
type way struct {
	w    *world
	pair pair
	proc *process
	lock chan struct{} // of one: holds the token; waiting for a mutex would stop the time

	conn    *rpc.Conn
	session int         // how many there were
	left    []*rpc.Conn // that are not used for new calls any more
}

func newWay(w *world, p pair, proc *process) *way {
	return &way{w: w, pair: p, proc: proc, lock: make(chan struct{}, 1)}
}

// get returns a session, and its number.
func (l *way) get(ctx context.Context) (*rpc.Conn, int, error) {
	select {
	case l.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	defer func() { <-l.lock }()
	if l.conn != nil {
		select {
		case <-l.conn.Done():
			l.left, l.conn = append(l.left, l.conn), nil
		default:
			return l.conn, l.session, nil
		}
	}
	conn, err := rpc.Dial(ctx, l.proc.network, l.w.servers[l.pair.server].addr())
	if err != nil {
		return nil, 0, err
	}
	l.conn = conn
	l.session++
	return conn, l.session, nil
}

// leave has the next call made on another session, because of how one ended on
// this.
func (l *way) leave(conn *rpc.Conn, err error) {
	if rpc.CodeOf(err) != rpc.Unavailable {
		return
	}
	l.lock <- struct{}{}
	defer func() { <-l.lock }()
	if l.conn == conn {
		l.conn = nil
		l.left = append(l.left, conn)
	}
}

// describe says what carries the session.
func (l *way) describe() string {
	if l.conn == nil {
		return ""
	}
	return fmt.Sprintf("\n%+v", l.conn.Transport())
}

// close ends all sessions. Others may be made.
func (l *way) close() {
	l.lock <- struct{}{}
	defer func() { <-l.lock }()
	if l.conn != nil {
		l.left = append(l.left, l.conn)
		l.conn = nil
	}
	for _, conn := range l.left {
		_ = conn.Close()
		l.w.saw(conn.Transport())
	}
	l.left = nil
}
