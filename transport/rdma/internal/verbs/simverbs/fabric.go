// Package simverbs is an RDMA device in software, inside one process: a fabric
// of hosts whose devices reach each other, with the semantics of RC, UC and UD,
// and with faults on request.
//
// It serves two ends. Speed: without latency and faults a work request is
// carried out on the goroutine that posts it, memory to memory. Faults: packets
// and completions pass through hooks driven by a seed, time is that of package
// time, so that testing/synctest makes it virtual. A fabric owns no goroutine:
// what happens later is run by one timer.
//
// # What is modelled
//
// Messages, not packets: a message is lost, delayed or duplicated as a whole,
// and takes one PSN. Everything a program can see through the verbs is there:
// states and their required attributes, queue sizes, RNR, retries and their
// time, access checks, the order of completions and flushes, one-shot arming,
// CQ overrun, asynchronous events.
//
// Where rdma_rxe departs from the specification, Model chooses whom to follow.
package simverbs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Model is the device whose habits a fabric imitates.
type Model uint8

// Models. They differ in this:
//
//	                           RXE                     Spec
//	retry_cnt 7                for ever                8 attempts
//	receive too small          sender 11, receiver 2   sender 9, receiver 1
//	bad lkey of a send         status 2                status 4
//	bad rkey of a WRITE        status 10, then 5 again status 10
//	receive posted in ERR      flushed when it is      flushed
//	                           taken to ERR again
//	send with the port down    status 2 at once        retries, status 12
//	local send error, UC, UD   ERR                     SQE
//	send slot is free again    when completed          when its or a later
//	                                                   completion was polled
//	queue sizes                2^n - 1                 2^n (CQ: 2^n - 1)
//	QP with an SRQ to ERR      no event                LAST_WQE_REACHED
//	SRQ limit above what is    event with the next     event at once
//	posted                     receive taken
const (
	RXE  Model = iota // rdma_rxe of Linux 6.1, as measured
	Spec              // the InfiniBand specification, as hardware does it
)

// Config describes a fabric. The zero value is two hosts, "a" and "b", with one
// device "sim0" each, without latency or faults.
type Config struct {
	Hosts []Host
	Model Model

	// Latency is the time a packet travels, one way. 0: it arrives before
	// PostSend returns.
	Latency time.Duration

	// Doorbell is the time from PostSend until the device reads the work
	// request's memory. What is written there meanwhile, it sends.
	Doorbell time.Duration

	// Round makes queue sizes of those asked for; nil follows the model.
	Round func(n int) int

	// LowestQPN gives each QP the lowest number that is free, so that numbers
	// recur at once. Otherwise they count up.
	LowestQPN bool

	Faults Faults
}

// Host is one machine of the fabric.
type Host struct {
	Name    string   // unique; default "a", "b", "c"…
	Devices []Device // default one
}

// Device describes one device.
type Device struct {
	Name      string           // default "sim0", "sim1"…
	Ports     []Port           // default one
	Attr      verbs.DeviceAttr // zero fields take defaults like those of rxe
	MaxInline int              // bytes; default 512
}

// Port describes one port.
type Port struct {
	// Addrs make the GID table: for a link-local address and then for each of
	// Addrs one entry of RoCE v1 and one of v2. The network routes v2 with
	// Addrs only; the others go nowhere. Default 10.8.<host>.<port>, like
	// 10.8.0.1.
	Addrs  []netip.Addr
	GIDs   []verbs.GIDEntry // replaces the table made from Addrs
	MTU    verbs.MTU        // active; default 4096
	NetDev string           // default as the device, with "eth" for "sim"
}

// Fabric is a simulated network.
//
// mu guards everything behind it, devices, QPs and memory alike, except CQs,
// channels and event queues, which have locks of their own and are locked
// last. A message is delivered under mu, so that it is atomic: the whole of
// the machinery runs as if on one processor.
type Fabric struct {
	cfg   Config
	seed  uint64
	hosts map[string]*host
	order []*host

	mu         sync.Mutex
	rng        *rand.Rand
	clock      clock
	calls      map[callKey]int
	cut        map[[2]*host]bool
	failures   []callFailure
	violations []string
	stats      Stats
	direct     bool // neither latency nor packet faults
}

type host struct {
	name string
	nics []*nic
}

// NewFabric builds a fabric. It panics on a configuration that makes no sense:
// it is for tests.
func NewFabric(cfg Config) *Fabric {
	if len(cfg.Hosts) == 0 {
		cfg.Hosts = make([]Host, 2)
	}
	seed := cfg.Faults.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	f := &Fabric{
		cfg:   cfg,
		seed:  seed,
		hosts: map[string]*host{},
		rng:   rand.New(rand.NewPCG(seed, 0x76657262)),
		calls: map[callKey]int{},
		cut:   map[[2]*host]bool{},
	}
	f.direct = cfg.Latency == 0 && !cfg.Faults.onWire()
	for i, hc := range cfg.Hosts {
		f.addHost(i, hc)
	}
	return f
}

func (f *Fabric) addHost(i int, hc Host) {
	h := &host{name: hc.Name}
	if h.name == "" {
		h.name = string(rune('a' + i))
	}
	if f.hosts[h.name] != nil {
		panic(fmt.Sprintf("simverbs: two hosts %q", h.name))
	}
	if len(hc.Devices) == 0 {
		hc.Devices = make([]Device, 1)
	}
	addr := netip.AddrFrom4([4]byte{10, 8, byte(i), 0})
	for j, dc := range hc.Devices {
		n := newNIC(f, h, j, dc)
		for k, pc := range dc.ports() {
			addr = addr.Next()
			n.ports = append(n.ports, newPort(n, k+1, pc, addr))
		}
		h.nics = append(h.nics, n)
	}
	f.hosts[h.name] = h
	f.order = append(f.order, h)
}

// Provider shows the devices of one host; it panics if there is no such host.
func (f *Fabric) Provider(hostName string) verbs.Provider {
	return provider{f: f, host: f.host(hostName)}
}

func (f *Fabric) host(name string) *host {
	h := f.hosts[name]
	if h == nil {
		panic(fmt.Sprintf("simverbs: no host %q", name))
	}
	return h
}

// String names the fabric and the seed of its faults.
func (f *Fabric) String() string { return fmt.Sprintf("simverbs fabric, seed %#x", f.seed) }

// Seed is the seed in use: Faults.Seed, or the one drawn for it.
func (f *Fabric) Seed() uint64 { return f.seed }

// Stats counts what happened on the fabric since it was built.
type Stats struct {
	Packets     uint64 // requests, acknowledgements and responses sent
	Completions uint64 // entered into CQs

	// Abandoned counts QPs that were RESET or destroyed before each of their
	// work requests had completed and each completion had been polled.
	// Completions that faults dropped do not count, nor does what a dead
	// device or host never completes, nor receives of an SRQ: they are its own.
	Abandoned uint64
}

// Stats reads the counters.
func (f *Fabric) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Violations lists what no correct program does and no completion reports: a
// device touched memory after its deregistration, a region was deregistered
// under an outstanding work request.
func (f *Fabric) Violations() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.violations...)
}

func (f *Fabric) violation(format string, args ...any) {
	f.violations = append(f.violations, fmt.Sprintf(format, args...))
}

// TB is the part of testing.TB that Watch needs.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Watch makes t report the fabric's violations at its end as errors, and its
// seed if t failed.
func (f *Fabric) Watch(t TB) {
	t.Helper()
	t.Cleanup(func() {
		for _, v := range f.Violations() {
			t.Errorf("simverbs: %s", v)
		}
		if t.Failed() {
			t.Logf("%v (set Faults.Seed to repeat)", f)
		}
	})
}

type provider struct {
	f    *Fabric
	host *host
}

func (p provider) Name() string { return "simverbs" }

func (p provider) Devices() ([]string, error) {
	if err := p.f.enter(p.host, "ibv_get_device_list", p.host.name); err != nil {
		return nil, err
	}
	defer p.f.mu.Unlock()
	var names []string
	for _, n := range p.host.nics {
		if !n.removed {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return nil, &verbs.UnavailableError{Reason: "host " + p.host.name + " has no device", NoDevice: true}
	}
	return names, nil
}
