package sim

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/verbena-rpc/verbena/internal/simnet"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// plan is all that a seed decides, before anything runs.
type plan struct {
	seed             uint64
	clients, servers []machine
	callers          []callerPlan
	faults           []fault // in order of time
	span             time.Duration
	tcp              simnet.Config
	rdma             simverbs.Config
	maxHandlers      int // 0: the default
}

// machine is a host and how the process on it is configured.
type machine struct {
	name    string
	addr    netip.Addr
	fast    bool // it has a device
	mtu     verbs.MTU
	rdma    rdma.Config
	network transport.Config
}

// Streams of random numbers, so that what one part draws does not move the
// others.
const (
	streamWorld = iota + 1
	streamFaults
	streamHooks
	streamCallers
	streamShared = 1 << 32 // above those of all callers
)

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// between draws a time, short ones as often as long ones.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	d := low
	for d < high && r.IntN(5) > 0 {
		d = d*2 + 1
	}
	d = min(d, high)
	return low + time.Duration(r.Int64N(int64(d-low)+1))
}

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

func newPlan(seed uint64) *plan {
	r := newRand(seed, streamWorld)
	p := &plan{seed: seed, span: between(r, 500*time.Millisecond, 3*time.Second)}
	for i := range 1 + r.IntN(3) {
		p.clients = append(p.clients, newMachine(r, 'c', i))
	}
	for i := range 1 + r.IntN(2) {
		p.servers = append(p.servers, newMachine(r, 's', i))
	}
	p.tcp = simnet.Config{
		Latency:     between(r, 10*time.Microsecond, time.Millisecond),
		Bandwidth:   pick(r, 20<<20, 200<<20, 1<<30),
		PeerTimeout: pick(r, time.Second, 2*time.Second, 4*time.Second),
	}
	p.rdma = simverbs.Config{
		Model:     pick(r, simverbs.RXE, simverbs.Spec),
		Latency:   between(r, time.Microsecond, 50*time.Microsecond),
		Doorbell:  pick(r, 0, time.Microsecond),
		LowestQPN: chance(r, 0.5),
		Faults:    simverbs.Faults{Seed: seed | 1<<63, LoseEvent: pick(r, 0, 0, 0.1)},
	}
	if chance(r, 0.3) {
		p.rdma.Faults.Drop, p.rdma.Faults.Duplicate = 0.002, 0.01
		p.rdma.Faults.Delay = between(r, time.Microsecond, 100*time.Microsecond)
	}
	for _, m := range p.machines() {
		port := simverbs.Port{Addrs: []netip.Addr{m.addr}, MTU: m.mtu}
		p.rdma.Hosts = append(p.rdma.Hosts, simverbs.Host{Name: m.name, Devices: []simverbs.Device{{Ports: []simverbs.Port{port}}}})
	}
	p.share(newRand(seed, streamShared))
	p.maxHandlers = pick(r, 0, 0, 0, 4)
	p.callers = newCallers(p, r)
	p.faults = newFaults(p, newRand(seed, streamFaults))
	return p
}

// share has the links of some machines share their receives: few, so that
// frames find none, or enough.
func (p *plan) share(r *rand.Rand) {
	for _, machines := range [][]machine{p.clients, p.servers} {
		for i := range machines {
			if chance(r, 0.5) {
				c := &machines[i].rdma
				c.Dedicated, c.SharedSlots = pick(r, -1, -1, 1), pick(r, 8, 16, 512)
			}
		}
	}
}

const shortestResume = 2 * time.Second

func newMachine(r *rand.Rand, kind byte, i int) machine {
	net := map[byte]byte{'c': 1, 's': 2}[kind]
	m := machine{
		name: string([]byte{kind, '0' + byte(i)}),
		addr: netip.AddrFrom4([4]byte{10, net, byte(i), 1}),
		fast: chance(r, 0.92),
		mtu:  pick(r, verbs.MTU1024, verbs.MTU4096),
		rdma: rdma.Config{
			Poll:     rdma.EventsOnly, // a spinning poller would stop the time of a bubble
			SlotSize: pick(r, 512, 1024, 4096, 8192),
			SQDepth:  pick(r, 16, 32, 64), RQDepth: pick(r, 8, 16, 32),
			Warm:   pick(r, -1, -1, 1, 2),
			Strict: true,
		},
		network: transport.Config{
			PayloadSum:   chance(r, 0.3),
			ReturnAfter:  between(r, 20*time.Millisecond, 500*time.Millisecond),
			RetryAfter:   between(r, 20*time.Millisecond, 500*time.Millisecond),
			Retain:       pick(r, 0, 5<<20),
			Keepalive:    pick(r, 300*time.Millisecond, time.Second, 15*time.Second),
			ResumeWithin: pick(r, shortestResume, 4*time.Second),
			Standby:      pick(r, -1, 0, 0, 2),
		},
	}
	return m
}

func (p *plan) machines() []machine {
	return append(append([]machine(nil), p.clients...), p.servers...)
}
