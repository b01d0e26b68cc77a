package simverbs

import (
	"bytes"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// carry takes a packet to its port: at once, unless the fabric has latency or
// faults. Fabric.mu is held, here and in all that follows.
func (f *Fabric) carry(p *packet) {
	f.stats.Packets++
	if f.direct {
		f.deliver(p)
		return
	}
	v := f.judge(p)
	if v.Drop {
		return
	}
	if v.Stale != nil {
		p.data = v.Stale
	}
	f.travel(p, f.cfg.Latency+v.Delay)
	if v.Duplicate {
		f.travel(p, f.cfg.Latency+v.Delay)
	}
}

// travel delivers a packet after d. One that is under way owns its bytes, as
// the sender may be gone when it arrives.
func (f *Fabric) travel(p *packet, d time.Duration) {
	if d <= 0 {
		f.deliver(p)
		return
	}
	q := *p
	q.data = bytes.Clone(p.data)
	if p.wr != nil {
		wr := *p.wr
		q.wr = &wr
	}
	if p.av != nil {
		av := *p.av
		q.av = &av
	}
	f.after(d, func() { f.deliver(&q) })
}

// deliver hands a packet to the QP it names, if there is one and a way to it.
func (f *Fabric) deliver(p *packet) {
	if !f.reachable(p) {
		return
	}
	q := p.to.nic.qps[p.qpn]
	switch {
	case q == nil || q.typ != p.typ:
	case p.answer != answerNone:
		q.onAck(p)
	case p.typ == verbs.RC:
		q.onRequest(p)
	case p.typ == verbs.UC:
		q.onUnreliable(p)
	default:
		q.onDatagram(p)
	}
}

func (f *Fabric) reachable(p *packet) bool {
	if p.to == nil || p.to == blackHole {
		return false
	}
	from, to := p.src.dev.nic, p.to.nic
	if from.dead || to.dead || p.to.attr.State != verbs.PortActive {
		return false
	}
	if len(f.cut) > 0 && f.cut[[2]*host{from.host, to.host}] {
		return false
	}
	return p.src.port().attr.State == verbs.PortActive
}

// port is the port that the QP was bound to in INIT. A QP that was RESET has
// none; its packets under way came from the first.
func (q *queuePair) port() *port { return q.dev.nic.ports[max(q.attr.Port, 1)-1] }
