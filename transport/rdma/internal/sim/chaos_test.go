package sim

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// device is the one device of every host.
const device = "sim0"

// chaos makes the faults of a plan happen. One goroutine begins and ends them
// (run); the hooks of the networks, which run under their locks, ask mu what is
// going on.
type chaos struct {
	w     *world
	count map[string]int // faults that happened; of run

	mu       sync.Mutex
	garbles  []garble
	cut      map[[2]string]int // RDMA paths, how many faults cut them
	loss     float64
	wcs      map[string]*wcFault
	heldTo   map[string]time.Time // by host: completions wait until then, in order
	refused  map[[2]string]*refusal
	mistakes map[string]mistaken // by host: packets that others shall arrive for
	hit      map[string]uint32   // by host: the QP that one did arrive at
	recorded []record
}

type garble struct {
	from, to netip.Addr
	exchange bool
	bit      int
}

// wcFault is what happens to completions of a host.
type wcFault struct {
	send, recv bool
	flushes    bool    // flushes, else successes
	skip       int     // so many pass first
	times      int     // 0: any number
	share      float64 // probability; 0: 1

	status      verbs.WCStatus
	late        time.Duration
	twice, lost bool
	atArm       bool
}

type refusal struct {
	errno syscall.Errno
	times int
}

// mistake is which packet arrives for another.
type mistake uint8

const (
	ofAnotherLink mistake = iota // with the same place in its lane: nothing but its epoch gives it away
	ofTheSameLink                // an earlier one: nothing but its number does
)

type mistaken struct {
	which mistake
	left  int
}

// record is a frame that travelled, to be mistaken for another.
type record struct {
	to    string
	epoch uint64
	seq   uint32
	kind  wire.Kind
	frame []byte
}

const maxRecords = 256

func newChaos(w *world) *chaos {
	return &chaos{
		w: w, count: map[string]int{}, cut: map[[2]string]int{}, wcs: map[string]*wcFault{},
		heldTo: map[string]time.Time{}, refused: map[[2]string]*refusal{}, mistakes: map[string]mistaken{}, hit: map[string]uint32{},
	}
}

// run begins and ends the faults, and returns when all are over.
func (c *chaos) run() {
	type moment struct {
		at  time.Duration
		f   *fault
		end bool
	}
	var moments []moment
	for i := range c.w.plan.faults {
		f := &c.w.plan.faults[i]
		moments = append(moments, moment{f.at, f, false})
		if f.end != nil {
			moments = append(moments, moment{f.at + f.last, f, true})
		}
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return int(a.at - b.at) })
	start := time.Now()
	for _, m := range moments {
		time.Sleep(m.at - time.Since(start))
		if m.end {
			c.w.trace.add("end of %s: %s", m.f.kind, m.f.detail)
			m.f.end(c)
			continue
		}
		c.w.trace.add("%s: %s (%v)", m.f.kind, m.f.detail, m.f.last)
		c.count[m.f.kind]++
		m.f.begin(c)
	}
	time.Sleep(c.w.plan.span - time.Since(start))
	c.w.trace.add("no more faults")
}

func (c *chaos) happened(kinds ...string) bool {
	return slices.ContainsFunc(kinds, func(k string) bool { return c.count[k] > 0 })
}

// others are the machines at the other ends of a machine's sessions.
func (c *chaos) others(m machine) []machine {
	if m.name[0] == 'c' {
		return c.w.plan.servers
	}
	return c.w.plan.clients
}

func (c *chaos) pairsOf(m machine) (pairs []pair) {
	for p := range c.w.ways {
		if c.w.plan.clients[p.client].name == m.name || c.w.plan.servers[p.server].name == m.name {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// without is how long every session lives without any link: half of the
// shortest Config.ResumeWithin of a plan, for it has to be resumed within that.
const without = shortestResume / 2

// excuseCut says that the pairs cannot talk for a time.
func (c *chaos) excuseCut(why string, d time.Duration, pairs ...pair) (end func()) {
	if d < without {
		return func() {}
	}
	return c.w.model.excuse(why, pairs...)
}

// Hooks of the TCP network.

func (c *chaos) arm(g garble) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.garbles = append(c.garbles, g)
}

func (c *chaos) disarm(g garble) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.garbles = slices.DeleteFunc(c.garbles, func(o garble) bool { return o == g })
}

func (c *chaos) onWrite(from, to netip.Addr, segment []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, g := range c.garbles {
		if g.from != from || g.to != to {
			continue
		}
		var h wire.Header
		if len(segment) < wire.HeaderSize || h.Parse(segment) != nil {
			continue
		}
		at := g.bit
		if g.exchange {
			if h.Kind != wire.QPOffer && h.Kind != wire.QPAnswer {
				continue
			}
			at += 8 * wire.HeaderSize
		}
		if at < 8*len(segment) {
			segment[at/8] ^= 1 << (at % 8)
			c.garbles = slices.Delete(c.garbles, i, i+1)
			c.w.trace.add("garbled a %v", h.Kind)
			return
		}
	}
}

// Hooks of the RDMA network.

func (c *chaos) cutRDMA(from, to string, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[[2]string{from, to}] += by
}

func (c *chaos) setLoss(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loss = rate
}

func (c *chaos) setMistake(to string, which mistake, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mistakes[to] = mistaken{which, n}
}

// failHit fails the QP at which a stale packet has arrived: its sender waits
// for an answer to what was never taken in.
func (c *chaos) failHit(host string) {
	c.mu.Lock()
	qpn, ok := c.hit[host]
	delete(c.hit, host)
	c.mu.Unlock()
	if ok {
		c.w.rdma.FailQPs(host, device, func(n uint32) bool { return n == qpn })
	}
}

func (c *chaos) onPacket(p simverbs.Packet, r *rand.Rand) (v simverbs.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut[[2]string{p.From, p.To}] > 0 || c.loss > 0 && chance(r, c.loss) {
		v.Drop = true
		return v
	}
	if !p.Answer && len(p.Data) >= wire.HeaderSize {
		v.Stale = c.mistake(&p)
	}
	return v
}

// mistake records a frame, or has another arrive in its place.
func (c *chaos) mistake(p *simverbs.Packet) []byte {
	head := record{
		to: p.To, kind: wire.Kind(p.Data[3]),
		epoch: binary.LittleEndian.Uint64(p.Data[16:]), seq: binary.LittleEndian.Uint32(p.Data[24:]),
	}
	if m := c.mistakes[p.To]; m.left > 0 {
		if _, ok := c.hit[p.To]; ok && c.hit[p.To] != p.QPN {
			return nil // one QP at a time, for it has to fail
		}
		for _, old := range c.recorded {
			if m.which.fits(&old, &head) {
				c.mistakes[p.To] = mistaken{m.which, m.left - 1}
				c.hit[p.To] = p.QPN
				c.w.trace.add("an old %v arrives at QP %#x of %s", old.kind, p.QPN, p.To)
				return old.frame
			}
		}
	}
	if flags := wire.Flags(binary.LittleEndian.Uint16(p.Data[4:])); flags&(wire.More|wire.Cont) != 0 {
		return nil // alone it would be refused
	}
	head.frame = bytes.Clone(p.Data)
	if len(c.recorded) == maxRecords {
		c.recorded = slices.Delete(c.recorded, 0, 1)
	}
	c.recorded = append(c.recorded, head)
	return nil
}

// fits says whether old may arrive for what was sent.
func (m mistake) fits(old, sent *record) bool {
	if old.to != sent.to {
		return false
	}
	if m == ofTheSameLink {
		return old.epoch == sent.epoch && old.kind.InLane() && int32(old.seq-sent.seq) < 0
	}
	return old.epoch != sent.epoch && old.kind == sent.kind && (old.seq == sent.seq || !old.kind.InLane())
}

func (c *chaos) wc(host string, f wcFault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f == (wcFault{}) {
		delete(c.wcs, host)
		return
	}
	c.wcs[host] = &f
}

// holdCompletions holds them for d, or for longer where they are held already:
// the devices here complete in order.
func (c *chaos) holdCompletions(host string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until := time.Now().Add(d); until.After(c.heldTo[host]) {
		c.heldTo[host] = until
	}
}

func (c *chaos) onCompletion(k simverbs.Completion, r *rand.Rand) (fate simverbs.Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rest := time.Until(c.heldTo[k.Host]); rest > 0 {
		fate.Delay = rest
		return fate
	}
	f := c.wcs[k.Host]
	switch {
	case f == nil, k.Send && !f.send, !k.Send && !f.recv, f.flushes != (k.WC.Status != verbs.WCSuccess):
		return fate
	case f.skip > 0:
		f.skip--
		return fate
	case f.share > 0 && !chance(r, f.share):
		return fate
	}
	if f.times > 0 {
		if f.times--; f.times == 0 {
			delete(c.wcs, k.Host)
		}
	}
	fate = simverbs.Fate{Drop: f.lost, Duplicate: f.twice, HoldToArm: f.atArm, Status: f.status}
	if f.late > 0 {
		c.heldTo[k.Host] = time.Now().Add(time.Duration(r.Int64N(int64(f.late))))
		fate.Delay = time.Until(c.heldTo[k.Host])
	}
	return fate
}

func (c *chaos) refuse(host, verb string, errno syscall.Errno, times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[[2]string{host, verb}] = &refusal{errno, times}
}

func (c *chaos) onCall(k simverbs.Call, _ *rand.Rand) syscall.Errno {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.refused[[2]string{k.Host, k.Verb}]
	if f == nil || f.times == 0 {
		return 0
	}
	f.times--
	c.w.trace.add("%s refused on %s", k.Verb, k.Host)
	return f.errno
}

// setGIDs takes the address of a host from its device, or gives it back.
func (c *chaos) setGIDs(host string, back bool) {
	for _, m := range c.w.plan.machines() {
		if m.name != host {
			continue
		}
		gids := []verbs.GIDEntry{{Index: 0, GID: verbs.GID{0xfe, 0x80, 15: 1}, Type: verbs.GIDRoCEv2}}
		if back {
			// At another index than before (case 44).
			gids = append(gids, verbs.GIDEntry{Index: 1, GID: m.addr.As16(), Type: verbs.GIDRoCEv1},
				verbs.GIDEntry{Index: 2, GID: m.addr.As16(), Type: verbs.GIDRoCEv2})
		}
		c.w.rdma.SetGIDs(host, device, 1, gids)
	}
}
