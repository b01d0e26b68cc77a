package simverbs

import (
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Faults are what goes wrong on a fabric. Probabilities are drawn from a
// generator seeded with Seed, and hooks draw theirs from the same. Hooks run
// under the fabric's lock: they must not call verbs or the fabric.
//
// Faults that come once, or at a moment of the test's choice, are methods of
// Fabric: FailCall, BreakCQs, Partition, SetPort, KillDevice, KillHost, Raise, Inject.
type Faults struct {
	Seed uint64 // 0: one is drawn; Fabric.Watch prints it

	// On the wire, for each packet, requests and answers alike.
	Drop      float64
	Duplicate float64
	Delay     time.Duration // at most so much more than Latency: reorders
	OnPacket  func(Packet, *rand.Rand) Verdict

	// LoseEvent is the probability that a completion on an armed CQ disarms
	// it and raises no event.
	LoseEvent float64

	// OnCall may fail a verbs call of the control path, or a post. 0 lets it
	// pass.
	OnCall func(Call, *rand.Rand) syscall.Errno

	// OnCompletion decides the fate of each completion.
	OnCompletion func(Completion, *rand.Rand) Fate
}

func (f *Faults) onWire() bool {
	return f.Drop > 0 || f.Duplicate > 0 || f.Delay > 0 || f.OnPacket != nil
}

// Packet is what a hook sees of a packet.
type Packet struct {
	From, To string // hosts
	SrcQPN   uint32
	QPN      uint32 // to which it goes
	PSN      uint32
	Answer   bool         // acknowledgement or response
	Opcode   verbs.Opcode // of a request
	Data     []byte       // not to be kept
}

// Verdict is what happens to a packet.
type Verdict struct {
	Drop      bool
	Duplicate bool
	Delay     time.Duration // beyond Latency

	// Stale, if not nil, arrives in the packet's place: a packet of an earlier
	// QP whose number and PSN fit, so that the responder takes it and, when
	// the right one comes, has had it (seen on rxe).
	Stale []byte
}

// Call is a verbs call about to be made.
type Call struct {
	Host string
	Verb string // C name; "ibv_modify_qp RTR" with the state it asks for; Doorbell
	N    int    // which call of that verb on that host, from 1
}

// Doorbell is the call by which ibv_post_send tells the device of what is in the
// queue already. Where it fails, the next post or ERR does.
const Doorbell = "ibv_post_send doorbell"

// Completion is a completion about to be entered into a CQ.
type Completion struct {
	Host string
	Send bool // of a send WR
	WC   verbs.WC
}

// Fate is what happens to a completion. The zero value is the usual.
type Fate struct {
	Drop      bool
	Duplicate bool

	// Delay enters the completion later, even after its QP was destroyed.
	Delay time.Duration

	// HoldToArm enters it when the CQ is next armed, just before that takes
	// effect: after the poll that found nothing, and without an event. It is
	// kept 10 ms at most.
	HoldToArm bool

	// Status, if not success, replaces a success: the QP goes to ERR as for
	// any error.
	Status verbs.WCStatus
}

const maxHold = 10 * time.Millisecond

type callKey struct{ host, verb string }

type callFailure struct {
	callKey
	n     int // 0: every one
	errno syscall.Errno
}

// FailCall makes the nth call of a verb on a host fail, counted from now and
// from 1; n 0 is every call. The verb is named as in Call.Verb; "ibv_modify_qp"
// is any of that name.
func (f *Fabric) FailCall(hostName, verb string, n int, errno syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.host(hostName)
	key := callKey{hostName, verb}
	if n > 0 {
		n += f.calls[key]
	}
	f.failures = append(f.failures, callFailure{key, n, errno})
}

// enter begins a verbs call: with the lock held, or with the error planned.
func (f *Fabric) enter(h *host, verb, object string) error {
	f.mu.Lock()
	op, _, qualified := strings.Cut(verb, " ")
	errno := f.planned(h, verb)
	if qualified && errno == 0 {
		errno = f.planned(h, op)
	}
	if errno == 0 {
		return nil
	}
	f.mu.Unlock()
	return &verbs.Error{Op: op, Object: object, Errno: errno, Hint: "planned fault"}
}

func (f *Fabric) planned(h *host, verb string) (errno syscall.Errno) {
	key := callKey{h.name, verb}
	f.calls[key]++
	n := f.calls[key]
	for _, p := range f.failures {
		if p.callKey == key && (p.n == 0 || p.n == n) {
			errno = p.errno
		}
	}
	if errno == 0 && f.cfg.Faults.OnCall != nil {
		errno = f.cfg.Faults.OnCall(Call{Host: h.name, Verb: verb, N: n}, f.rng)
	}
	return errno
}

// plannedPost is planned for the data path, which is not counted unless there
// is something to count for.
func (f *Fabric) plannedPost(d *device, verb string) syscall.Errno {
	if len(f.failures) == 0 && f.cfg.Faults.OnCall == nil {
		return 0
	}
	return f.planned(d.nic.host, verb)
}

// judge draws what happens to a packet.
func (f *Fabric) judge(p *packet) Verdict {
	c := &f.cfg.Faults
	var v Verdict
	if c.OnPacket != nil && p.to != nil && p.to != blackHole {
		info := Packet{
			From: p.src.dev.nic.host.name, To: p.to.nic.host.name, SrcQPN: p.src.num, QPN: p.qpn, PSN: p.psn,
			Answer: p.answer != answerNone, Data: p.data,
		}
		if p.wr != nil {
			info.Opcode = p.wr.Opcode
		}
		v = c.OnPacket(info, f.rng)
	}
	v.Drop = v.Drop || f.draw(c.Drop)
	v.Duplicate = v.Duplicate || f.draw(c.Duplicate)
	if c.Delay > 0 {
		v.Delay += time.Duration(f.rng.Int64N(int64(c.Delay)))
	}
	return v
}

func (f *Fabric) draw(probability float64) bool {
	return probability > 0 && f.rng.Float64() < probability
}

func (f *Fabric) losesEvent() bool { return f.draw(f.cfg.Faults.LoseEvent) }

// completeFaulty enters a completion as the hook decides.
func (f *Fabric) completeFaulty(q *queuePair, cq *compQueue, e cqEntry) {
	fate := f.cfg.Faults.OnCompletion(Completion{Host: q.dev.nic.host.name, Send: e.send, WC: e.wc}, f.rng)
	if fate.Status != verbs.WCSuccess && e.wc.Status == verbs.WCSuccess {
		e.wc = verbs.WC{ID: e.wc.ID, Status: fate.Status, QPNum: q.num}
		defer q.enterErr()
	}
	copies := 1
	switch {
	case fate.Drop:
		copies = 0
	case fate.Duplicate:
		copies = 2
	}
	for i := range copies {
		if e.unpolled = nil; i == 0 && (e.send || q.srq == nil) {
			e.unpolled = q.produced()
		}
		switch {
		case fate.HoldToArm && !cq.isArmed(), len(cq.held) > 0 && fate.Delay == 0: // in order behind those held
			cq.held = append(cq.held, e)
			f.after(maxHold, cq.releaseHeld)
		case fate.Delay > 0:
			late := e
			f.after(fate.Delay, func() { cq.push(late) })
		default:
			cq.push(e)
		}
	}
}
