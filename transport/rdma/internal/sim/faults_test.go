package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// fault is something that goes wrong at a time, and is over at another.
type fault struct {
	kind     string
	detail   string
	at, last time.Duration
	begin    func(c *chaos)
	end      func(c *chaos) // nil: it is over at once
}

// draft is what a fault is made from.
type draft struct {
	r    *rand.Rand
	p    *plan
	f    *fault
	pair pair
	c, s machine // of the pair
	m    machine // either of them
	peer machine // the other
}

func (d *draft) say(format string, args ...any) { d.f.detail = fmt.Sprintf(format, args...) }

// lasts draws how long it lasts.
func (d *draft) lasts(low, high time.Duration) { d.f.last = between(d.r, low, high) }

// faultKinds are the kinds of faults, and how often each comes.
var faultKinds = []struct {
	name   string
	weight int
	make   func(d *draft)
}{
	{"tcp-cut", 4, tcpCut},
	{"tcp-cut-one-way", 3, tcpCutOneWay},
	{"tcp-reset", 3, tcpReset},
	{"tcp-delay", 3, tcpDelay},
	{"tcp-garble", 3, tcpGarble},
	{"rdma-cut", 4, rdmaCut},
	{"rdma-cut-one-way", 4, rdmaCutOneWay},
	{"rdma-loss", 3, rdmaLoss},
	{"rdma-stale", 4, rdmaStale},
	{"rdma-again", 3, rdmaAgain},
	{"qp-fatal", 6, qpFatal},
	{"qp-event", 2, qpEvent},
	{"cq-error", 2, cqError},
	{"srq-error", 2, srqError},
	{"port-flap", 4, portFlap},
	{"port-event", 2, portEvent},
	{"gid-change", 3, gidChange},
	{"device-fatal", 3, deviceFatal},
	{"device-removed", 2, deviceRemoved},
	{"wc-error", 8, wcError},
	{"wc-late", 4, wcLate},
	{"wc-twice", 4, wcTwice},
	{"wc-lost", 3, wcLost},
	{"wc-at-arm", 2, wcAtArm},
	{"drain-hangs", 4, drainHangs},
	{"call-refused", 6, callRefused},
	{"pause", 4, pause},
	{"host-cut", 3, hostCut},
	{"server-killed", 3, serverKilled},
	{"server-stopped", 2, serverStopped},
	{"client-closes", 3, clientCloses},
}

func newFaults(p *plan, r *rand.Rand) []fault {
	total := 0
	for _, k := range faultKinds {
		total += k.weight
	}
	var faults []fault
	for range r.IntN(16) {
		n := r.IntN(total)
		for _, k := range faultKinds {
			if n -= k.weight; n < 0 {
				faults = append(faults, newFault(p, r, k.name, k.make))
				break
			}
		}
	}
	slices.SortStableFunc(faults, func(a, b fault) int { return int(a.at - b.at) })
	return faults
}

func newFault(p *plan, r *rand.Rand, kind string, build func(*draft)) fault {
	f := fault{kind: kind, at: time.Duration(r.Int64N(int64(p.span)))}
	d := &draft{r: r, p: p, f: &f, pair: pair{r.IntN(len(p.clients)), r.IntN(len(p.servers))}}
	d.c, d.s = p.clients[d.pair.client], p.servers[d.pair.server]
	d.m, d.peer = d.c, d.s
	if chance(r, 0.5) {
		d.m, d.peer = d.peer, d.m
	}
	d.say("%s %s", d.m.name, d.peer.name)
	build(d)
	return f
}

// On the TCP network.

func tcpCut(d *draft) {
	d.lasts(time.Millisecond, 3*time.Second)
	end := func() {}
	d.f.begin = func(c *chaos) {
		end = c.excuseCut("tcp cut", d.f.last, d.pair)
		c.w.net.Cut(d.c.addr, d.s.addr)
		c.w.net.Cut(d.s.addr, d.c.addr)
	}
	d.f.end = func(c *chaos) {
		c.w.net.Heal(d.c.addr, d.s.addr)
		c.w.net.Heal(d.s.addr, d.c.addr)
		end()
	}
}

func tcpCutOneWay(d *draft) {
	d.lasts(time.Millisecond, 3*time.Second)
	end := func() {}
	d.f.begin = func(c *chaos) {
		end = c.excuseCut("tcp cut", d.f.last, d.pair)
		c.w.net.Cut(d.m.addr, d.peer.addr)
	}
	d.f.end = func(c *chaos) {
		c.w.net.Heal(d.m.addr, d.peer.addr)
		end()
	}
}

func tcpReset(d *draft) {
	d.f.begin = func(c *chaos) {
		c.w.model.reset(d.pair)
		c.w.net.Reset(d.c.addr, d.s.addr)
	}
}

func tcpDelay(d *draft) {
	d.lasts(10*time.Millisecond, time.Second)
	by := between(d.r, 100*time.Microsecond, 200*time.Millisecond)
	d.say("%s to %s by %v", d.m.name, d.peer.name, by)
	d.f.begin = func(c *chaos) { c.w.net.Delay(d.m.addr, d.peer.addr, by) }
	d.f.end = func(c *chaos) { c.w.net.Delay(d.m.addr, d.peer.addr, 0) }
}

// tcpGarble flips a bit in the header of the next frame, or in the payload of
// the next QP exchange, which has no sum but TCP's.
func tcpGarble(d *draft) {
	g := garble{from: d.m.addr, to: d.peer.addr, exchange: chance(d.r, 0.3), bit: d.r.IntN(64 * 8)}
	d.say("%s to %s, bit %d, of the QP exchange: %v", d.m.name, d.peer.name, g.bit, g.exchange)
	d.lasts(10*time.Millisecond, time.Second)
	end := func() {}
	d.f.begin = func(c *chaos) {
		end = c.w.model.excuse("tcp garbled", d.pair) // bad input ends a session
		c.arm(g)
	}
	d.f.end = func(c *chaos) {
		c.disarm(g)
		end()
	}
}

// On the RDMA network.

func rdmaCut(d *draft) {
	d.lasts(time.Millisecond, 2*time.Second)
	d.f.begin = func(c *chaos) {
		c.cutRDMA(d.c.name, d.s.name, +1)
		c.cutRDMA(d.s.name, d.c.name, +1)
	}
	d.f.end = func(c *chaos) {
		c.cutRDMA(d.c.name, d.s.name, -1)
		c.cutRDMA(d.s.name, d.c.name, -1)
	}
}

func rdmaCutOneWay(d *draft) {
	d.lasts(time.Millisecond, 2*time.Second)
	d.f.begin = func(c *chaos) { c.cutRDMA(d.m.name, d.peer.name, +1) }
	d.f.end = func(c *chaos) { c.cutRDMA(d.m.name, d.peer.name, -1) }
}

func rdmaLoss(d *draft) {
	d.lasts(10*time.Millisecond, 500*time.Millisecond)
	rate := pick(d.r, 0.01, 0.05, 0.3)
	d.say("%v on all paths", rate)
	d.f.begin = func(c *chaos) { c.setLoss(rate) }
	d.f.end = func(c *chaos) { c.setLoss(0) }
}

// rdmaStale has a packet of another QP arrive in the place of one; the QP that
// has lost its own fails soon after.
func rdmaStale(d *draft) {
	d.mistakes(ofAnotherLink)
}

// rdmaAgain does so with an earlier packet of the same QP.
func rdmaAgain(d *draft) { d.mistakes(ofTheSameLink) }

func (d *draft) mistakes(which mistake) {
	d.lasts(50*time.Millisecond, 500*time.Millisecond)
	d.say("to %s", d.m.name)
	n := 1 + d.r.IntN(3)
	d.f.begin = func(c *chaos) {
		c.setMistake(d.m.name, which, n)
	}
	d.f.end = func(c *chaos) {
		c.setMistake(d.m.name, which, 0)
		c.failHit(d.m.name)
	}
}

// Events of devices.

func qpFatal(d *draft) {
	share := pick(d.r, 0.3, 1)
	d.say("%v of the QPs of %s", share, d.m.name)
	d.f.begin = func(c *chaos) {
		c.w.rdma.FailQPs(d.m.name, device, func(uint32) bool { return chance(d.r, share) })
	}
}

// qpEvent is an event about a QP that may not exist, twice.
func qpEvent(d *draft) {
	e := verbs.AsyncEvent{
		Type: pick(d.r, verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr, verbs.EventCommEst,
			verbs.EventQPLastWQEReached),
		QPNum: 0x11 + uint32(d.r.IntN(8)),
	}
	d.say("%v on %s, twice", e, d.m.name)
	d.f.begin = func(c *chaos) {
		c.w.rdma.Raise(d.m.name, device, e)
		c.w.rdma.Raise(d.m.name, device, e)
	}
}

func cqError(d *draft) {
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.w.rdma.FailCQs(d.m.name, device) }
}

// srqError is of a machine whose links share receives; elsewhere it is nothing.
func srqError(d *draft) {
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.w.rdma.FailSRQs(d.m.name, device) }
}

func portFlap(d *draft) {
	d.lasts(100*time.Microsecond, time.Second)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.w.rdma.SetPort(d.m.name, device, 1, false) }
	d.f.end = func(c *chaos) { c.w.rdma.SetPort(d.m.name, device, 1, true) }
}

// portEvent is an event about a port that is as it was, twice and out of order.
func portEvent(d *draft) {
	order := d.r.Perm(3)
	d.say("%s, order %v", d.m.name, order)
	events := []verbs.EventType{verbs.EventPortErr, verbs.EventPortActive, verbs.EventGIDChange}
	d.f.begin = func(c *chaos) {
		for _, i := range append(order, order[0]) {
			c.w.rdma.Raise(d.m.name, device, verbs.AsyncEvent{Type: events[i], Port: 1})
		}
	}
}

func gidChange(d *draft) {
	d.lasts(time.Millisecond, time.Second)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.setGIDs(d.m.name, false) }
	d.f.end = func(c *chaos) { c.setGIDs(d.m.name, true) }
}

func deviceFatal(d *draft) {
	d.lasts(time.Millisecond, time.Second)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.w.rdma.KillDevice(d.m.name, device) }
	d.f.end = func(c *chaos) { c.w.rdma.ReviveDevice(d.m.name, device) }
}

func deviceRemoved(d *draft) {
	d.lasts(time.Millisecond, 2*time.Second)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.w.rdma.RemoveDevice(d.m.name, device) }
	d.f.end = func(c *chaos) { c.w.rdma.AddDevice(d.m.name, device) }
}

// Completions.

func wcError(d *draft) {
	status := pick(d.r, verbs.WCLocLenErr, verbs.WCLocQPOpErr, verbs.WCLocProtErr, verbs.WCWRFlushErr, verbs.WCMWBindErr,
		verbs.WCBadRespErr, verbs.WCRemInvReqErr, verbs.WCRemAccessErr, verbs.WCRemOpErr, verbs.WCRetryExcErr,
		verbs.WCRNRRetryExcErr, verbs.WCFatalErr, verbs.WCGeneralErr)
	send, skip := chance(d.r, 0.5), d.r.IntN(20)
	d.lasts(50*time.Millisecond, 500*time.Millisecond)
	d.say("%v on %s, sends: %v, after %d others", status, d.m.name, send, skip)
	d.f.begin = func(c *chaos) { c.wc(d.m.name, wcFault{send: send, recv: !send, skip: skip, times: 1, status: status}) }
	d.f.end = func(c *chaos) { c.wc(d.m.name, wcFault{}) }
}

func wcLate(d *draft) {
	by := between(d.r, 10*time.Microsecond, 50*time.Millisecond)
	d.lasts(time.Millisecond, 300*time.Millisecond)
	d.say("%s by up to %v", d.m.name, by)
	d.f.begin = func(c *chaos) { c.wc(d.m.name, wcFault{send: true, recv: true, share: 0.3, late: by}) }
	d.f.end = func(c *chaos) { c.wc(d.m.name, wcFault{}) }
}

func wcTwice(d *draft) {
	d.lasts(time.Millisecond, 300*time.Millisecond)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.wc(d.m.name, wcFault{send: true, recv: true, share: 0.3, twice: true}) }
	d.f.end = func(c *chaos) { c.wc(d.m.name, wcFault{}) }
}

// wcLost loses completions, as a CQ does that overruns, and the CQ then says so.
func wcLost(d *draft) {
	d.lasts(100*time.Microsecond, 20*time.Millisecond)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) {
		c.wc(d.m.name, wcFault{send: true, recv: true, share: 0.2, lost: true})
	}
	d.f.end = func(c *chaos) {
		c.wc(d.m.name, wcFault{})
		c.w.rdma.FailCQs(d.m.name, device)
	}
}

func wcAtArm(d *draft) {
	d.lasts(time.Millisecond, 300*time.Millisecond)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) { c.wc(d.m.name, wcFault{send: true, recv: true, share: 0.3, atArm: true}) }
	d.f.end = func(c *chaos) { c.wc(d.m.name, wcFault{}) }
}

// drainHangs loses flush completions: what waits for them waits for ever.
func drainHangs(d *draft) {
	d.lasts(time.Millisecond, 200*time.Millisecond)
	d.say("%s", d.m.name)
	d.f.begin = func(c *chaos) {
		c.wc(d.m.name, wcFault{send: true, recv: true, share: 0.3, lost: true, flushes: true})
		c.w.rdma.FailQPs(d.m.name, device, func(uint32) bool { return true })
	}
	d.f.end = func(c *chaos) { c.wc(d.m.name, wcFault{}) }
}

// callRefused fails a verbs call or two, and takes the QPs away first so that
// there are some.
func callRefused(d *draft) {
	verb := pick(d.r, "ibv_modify_qp INIT", "ibv_modify_qp RTR", "ibv_modify_qp RTS", "ibv_modify_qp ERR", "ibv_modify_qp RESET",
		"ibv_create_qp", "ibv_reg_mr", "ibv_post_send", simverbs.Doorbell, "ibv_post_recv", "ibv_query_port", "ibv_query_gid_table", "ibv_query_device",
		"ibv_get_device_list", "ibv_open_device", "ibv_req_notify_cq", "ibv_create_cq", "ibv_alloc_pd", "ibv_create_comp_channel")
	errno := pick(d.r, syscall.EIO, syscall.ENOMEM, syscall.EINVAL, syscall.EAGAIN, syscall.ETIMEDOUT)
	times, kick := 1+d.r.IntN(2), chance(d.r, 0.7)
	d.lasts(10*time.Millisecond, time.Second)
	d.say("%s on %s: %v, %d times, QPs failed: %v", verb, d.m.name, errno, times, kick)
	d.f.begin = func(c *chaos) {
		c.refuse(d.m.name, verb, errno, times)
		if kick {
			c.w.rdma.FailQPs(d.m.name, device, func(uint32) bool { return true })
		}
	}
	d.f.end = func(c *chaos) { c.refuse(d.m.name, verb, 0, 0) }
}

// Whole machines and processes.

// pause is a process that is stopped for a while: its kernel answers, its
// device goes on, and it takes nothing in.
func pause(d *draft) {
	d.lasts(time.Millisecond, 1500*time.Millisecond)
	d.say("%s", d.m.name)
	end := func() {}
	d.f.begin = func(c *chaos) {
		end = c.excuseCut("paused", d.f.last, c.pairsOf(d.m)...)
		for _, o := range c.others(d.m) {
			c.w.net.Hold(d.m.addr, o.addr)
			c.w.net.Hold(o.addr, d.m.addr)
		}
		c.holdCompletions(d.m.name, d.f.last)
	}
	d.f.end = func(c *chaos) {
		for _, o := range c.others(d.m) {
			c.w.net.Heal(d.m.addr, o.addr)
			c.w.net.Heal(o.addr, d.m.addr)
		}
		end()
	}
}

// hostCut is a cable that is pulled, and put in again.
func hostCut(d *draft) {
	d.lasts(10*time.Millisecond, 2*time.Second)
	d.say("%s", d.m.name)
	end := func() {}
	d.f.begin = func(c *chaos) {
		end = c.excuseCut("host cut", d.f.last, c.pairsOf(d.m)...)
		for _, o := range c.others(d.m) {
			c.w.net.Cut(d.m.addr, o.addr)
			c.w.net.Cut(o.addr, d.m.addr)
			c.cutRDMA(d.m.name, o.name, +1)
			c.cutRDMA(o.name, d.m.name, +1)
		}
	}
	d.f.end = func(c *chaos) {
		for _, o := range c.others(d.m) {
			c.w.net.Heal(d.m.addr, o.addr)
			c.w.net.Heal(o.addr, d.m.addr)
			c.cutRDMA(d.m.name, o.name, -1)
			c.cutRDMA(o.name, d.m.name, -1)
		}
		end()
	}
}

func serverKilled(d *draft) {
	d.lasts(time.Millisecond, 500*time.Millisecond)
	d.say("%s", d.s.name)
	d.restarts(func(i *incarnation) { i.kill() })
}

func serverStopped(d *draft) {
	d.lasts(10*time.Millisecond, 500*time.Millisecond)
	d.say("%s", d.s.name)
	d.restarts(func(i *incarnation) { i.w.leaving.Go(i.stop) })
}

// restarts ends a server in one way or another, and boots it again.
func (d *draft) restarts(how func(*incarnation)) {
	end := func() {}
	d.f.begin = func(c *chaos) {
		s := c.w.servers[d.pair.server]
		if s.incarnation == nil {
			return // it is down already
		}
		end = c.w.model.excuse(d.f.kind, c.pairsOf(d.s)...)
		how(s.incarnation)
		s.incarnation = nil
	}
	d.f.end = func(c *chaos) {
		if s := c.w.servers[d.pair.server]; s.incarnation == nil {
			s.boot()
		}
		end()
	}
}

func clientCloses(d *draft) {
	d.f.begin = func(c *chaos) {
		end := c.w.model.excuse("client closes", d.pair)
		c.w.leaving.Go(func() {
			c.w.ways[d.pair].close()
			end()
		})
	}
}
