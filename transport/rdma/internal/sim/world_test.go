package sim

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/verbena-rpc/verbena/internal/simnet"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// epoch is when the time of every bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Bounds, of virtual time.
const (
	recovery = 15 * time.Second // from the end of all faults to a call that succeeds
	return_  = 3 * time.Minute  // and to a session on RDMA: attempts that failed double the pauses, up to a minute and a quarter, and a breaker may be open
	hang     = 30 * time.Minute // for a whole world
)

// world is one run of a plan. mu guards the last group.
type world struct {
	t     *testing.T
	plan  *plan
	net   *simnet.Network
	rdma  *simverbs.Fabric
	chaos *chaos
	model *model
	trace *trace

	clients []*process
	servers []*server
	ways    map[pair]*way
	leaving sync.WaitGroup // processes that end

	mu         sync.Mutex
	processes  []*process
	violations []string
	lostDrains uint64
	rnr        uint64
	seen       report // what sessions counted
}

// report is what a world came to.
type report struct {
	seed       uint64
	violations []string
	trace      []string
	calls      int
	faults     map[string]int
	outcomes   [executed + 1]int

	moves, resent, duplicates uint64 // as sessions of clients counted them
}

// play runs the world of a seed in a bubble.
func play(t *testing.T, seed uint64) (r report) {
	base := len(verbs.Live())
	arenas := pool.Stats().Arenas
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		w := newWorld(t, newPlan(seed))
		watchdog := time.AfterFunc(hang, w.hung)
		w.run()
		watchdog.Stop()
		w.checkLeft(base, arenas)
		r = w.report()
	})
	return r
}

func newWorld(t *testing.T, p *plan) *world {
	w := &world{t: t, plan: p, ways: map[pair]*way{}, trace: new(trace)}
	w.model = newModel(w)
	w.chaos = newChaos(w)
	p.tcp.OnWrite = w.chaos.onWrite
	w.net = simnet.New(p.tcp)
	f := &p.rdma.Faults
	f.OnPacket, f.OnCompletion, f.OnCall = w.chaos.onPacket, w.chaos.onCompletion, w.chaos.onCall
	w.rdma = simverbs.NewFabric(p.rdma)
	return w
}

func (w *world) run() {
	goroutines := runtime.NumGoroutine()
	for i := range w.plan.servers {
		w.servers = append(w.servers, &server{w: w, index: i})
		w.servers[i].boot()
	}
	for i, m := range w.plan.clients {
		w.clients = append(w.clients, w.start(m))
		for j := range w.servers {
			p := pair{i, j}
			w.ways[p] = newWay(w, p, w.clients[i])
		}
	}
	var work sync.WaitGroup
	for _, c := range w.plan.callers {
		work.Go(func() { w.call(c) })
	}
	w.chaos.run()
	w.progress()
	work.Wait()
	w.end()
	w.model.settle()
	w.checkGoroutines(goroutines)
}

// call makes the calls of one caller.
func (w *world) call(c callerPlan) {
	l := w.ways[pair{c.client, c.server}]
	for _, k := range c.calls {
		time.Sleep(k.think)
		from := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), recovery)
		conn, session, err := l.get(ctx)
		cancel()
		if err != nil {
			w.model.notDialed(l.pair, from, err)
			continue
		}
		k.session = session
		w.make(l, conn, k)
	}
}

func (w *world) make(l *way, conn *rpc.Conn, k *call) {
	k.made, k.start = true, time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), k.deadline)
	defer cancel()
	if k.cancel > 0 {
		defer time.AfterFunc(k.cancel, cancel).Stop()
	}
	var reply []byte
	err := rpc.Call(ctx, conn, k.rpcMethod(), k.request(), &reply)
	w.model.ended(k, l.pair, reply, err)
	l.leave(conn, err)
}

// progress checks that everything works once faults have stopped.
func (w *world) progress() {
	healed := time.Now()
	var checks sync.WaitGroup
	for i := range w.clients {
		for j := range w.servers {
			checks.Go(func() { w.recovers(w.ways[pair{i, j}], healed) })
		}
	}
	checks.Wait()
}

func (w *world) recovers(l *way, healed time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), healed.Add(recovery))
	defer cancel()
	var err error
	for {
		var conn *rpc.Conn
		if conn, _, err = l.get(ctx); err == nil {
			err = rpc.Call(ctx, conn, probeMethod, []byte{}, new([]byte))
			if err == nil {
				break
			}
			l.leave(conn, err)
		}
		if ctx.Err() != nil {
			w.violate("client %d does not reach server %d %v after the end of all faults: %v%s",
				l.pair.client, l.pair.server, recovery, err, l.describe())
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	c, s := w.plan.clients[l.pair.client], w.plan.servers[l.pair.server]
	for c.fast && s.fast {
		conn, _, err := l.get(context.Background())
		switch {
		case err != nil:
			w.violate("client %d lost server %d after the end of all faults: %v", l.pair.client, l.pair.server, err)
			return
		case conn.Transport().Kind == transport.RDMA:
			return
		case time.Since(healed) > return_:
			info := conn.Transport()
			w.violate("client %d is on %v with server %d %v after the end of all faults: %s (%d attempts, %d failed)",
				l.pair.client, info.Kind, l.pair.server, return_, info.Reason, info.Attempts, info.Fallbacks)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// end closes everything.
func (w *world) end() {
	for i := range w.clients {
		for j := range w.servers {
			l := w.ways[pair{i, j}]
			w.checkIdle(l)
			l.close()
		}
	}
	w.leaving.Wait()
	for _, s := range w.servers {
		w.checkAlone(s)
		s.stop()
	}
	for _, p := range w.clients {
		w.exit(p)
	}
}

// checkIdle looks at a session that nothing happens on.
func (w *world) checkIdle(l *way) {
	if l.conn == nil {
		return
	}
	if n := l.conn.Stats().Active; n != 0 {
		w.violate("client %d: %d calls under way to server %d, and none is", l.pair.client, n, l.pair.server)
	}
	if r := l.conn.Transport().Retention; r.Frames > 2*64 || r.Bytes > 2*256<<10 {
		w.violate("client %d keeps %d frames of %d bytes for server %d, which has taken them in", l.pair.client, r.Frames, r.Bytes, l.pair.server)
	}
}

// checkAlone waits until a server has noticed that its clients are gone. One whose
// connection the system gave up has ResumeWithin and Keepalive from then on.
func (w *world) checkAlone(s *server) {
	for range 400 {
		if st := s.rpc.Stats(); st.Sessions == 0 && st.InFlight == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.violate("%s: its clients are gone, and it has %+v", s.proc.name, s.rpc.Stats())
}

func (w *world) checkLeft(objects int, arenas int64) {
	if left := verbs.Live(); len(left) != objects {
		w.violate("verbs objects left: %v", left[min(objects, len(left)):])
	}
	if n := pool.Stats().Arenas; n != arenas {
		w.violate("%d arenas left", n-arenas)
	}
	if n := w.net.Open(); n != 0 {
		w.violate("%d ends of connections left", n)
	}
	for _, v := range w.rdma.Violations() {
		w.violate("%s", v)
	}
	if n := w.rdma.Stats().Abandoned; n > w.lostDrains {
		w.violate("%d QPs were given up before all of their work had completed, %d of them because it took too long", n, w.lostDrains)
	}
	// Where no fault kept completions, or made the QP stay what it was, each drain ends.
	if w.lostDrains > 0 && !w.chaos.happened("wc-lost", "drain-hangs", "call-refused", "device-fatal", "server-killed", "pause") {
		w.violate("%d QPs did not drain in time", w.lostDrains)
	}
	if w.rnr > 0 && !w.chaos.happened("tcp-garble", "rdma-stale", "rdma-again", "wc-error") {
		w.violate("%d times a frame found no receive", w.rnr)
	}
}

// checkGoroutines waits for those that end by themselves.
func (w *world) checkGoroutines(before int) {
	for range 100 {
		if synctest.Wait(); runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.violate("%d goroutines left:\n%s", runtime.NumGoroutine()-before, stacks())
	w.die()
}

func (w *world) hung() {
	w.violate("not over after %v:\n%s", hang, stacks())
	w.die()
}

// die reports and ends the process, for a bubble with goroutines that are
// stuck cannot be left.
func (w *world) die() {
	fail(w.report())
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

func (w *world) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.trace.add("VIOLATION %s", firstLine(text))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, text)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// must is for what only a mistake in this package makes fail.
func (w *world) must(err error) {
	if err != nil {
		panic(err)
	}
}

// saw adds up what a session of a client counted.
func (w *world) saw(info transport.Info) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.moves += uint64(info.Moves)
	w.seen.resent += info.Retention.Resent
	w.seen.duplicates += info.Retention.Duplicates
}

func (w *world) report() report {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.seen
	return report{
		moves: r.moves, resent: r.resent, duplicates: r.duplicates,
		seed: w.plan.seed, violations: w.violations, trace: w.trace.lines(),
		calls: len(w.model.calls), faults: w.chaos.count, outcomes: w.model.counts,
	}
}

// trace is what happened, by time. Any goroutine may add to it.
type trace struct {
	mu    sync.Mutex
	total []string
}

func (t *trace) add(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total = append(t.total, fmt.Sprintf("%12v  ", time.Since(epoch))+fmt.Sprintf(format, args...))
}

func (t *trace) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}
