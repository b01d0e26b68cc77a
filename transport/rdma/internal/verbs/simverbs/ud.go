package simverbs

import (
	"encoding/binary"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// onUnreliable is the UC responder: what it cannot take is gone, and nobody
// is told.
func (q *queuePair) onUnreliable(p *packet) {
	if !q.receives() {
		return
	}
	q.expected = (p.psn + 1) & psnMask
	write := p.wr.Opcode == verbs.OpWrite || p.wr.Opcode == verbs.OpWriteImm
	needsRecv := p.wr.Opcode != verbs.OpWrite
	switch {
	case needsRecv && q.noRecv():
		return
	case write && len(p.data) > 0 && !q.takeWrite(p):
		return
	case p.wr.Opcode == verbs.OpWriteImm:
		q.received(p, verbs.WCRecvRDMAImm)
	case !write:
		if _, own := q.scatter(p.data); own == verbs.WCSuccess {
			q.received(p, verbs.WCRecv)
		}
	}
}

// grhBytes is what a UD receive holds before the payload.
const grhBytes = 40

// qkeyOwn in a WR's Q_Key asks for that of the QP.
const qkeyOwn = 1 << 31

// address fills in where a datagram goes.
func (q *queuePair) address(p *packet, w *sendWQE) verbs.WCStatus {
	a := q.dev.nic.ahs[w.wr.AH]
	if a == nil || a.pd != q.pd {
		return verbs.WCLocQPOpErr
	}
	p.to, p.qpn, p.av, p.qkey = a.dst, w.wr.RemoteQPN, &a.attr, w.wr.RemoteQKey
	if p.qkey&qkeyOwn != 0 {
		p.qkey = q.attr.QKey
	}
	if int(w.wr.Length) > q.port().attr.ActiveMTU.Bytes() {
		if q.dev.f.cfg.Model == Spec {
			return verbs.WCLocLenErr
		}
		p.to = blackHole // rxe completes it and sends nothing
	}
	return verbs.WCSuccess
}

// onDatagram is the UD responder.
func (q *queuePair) onDatagram(p *packet) {
	if !q.receives() || p.qkey != q.attr.QKey || q.noRecv() {
		return
	}
	r := q.recvs().front()
	n := uint32(grhBytes + len(p.data))
	if n > r.Length {
		q.failResponder(verbs.WCSuccess, verbs.WCLocLenErr)
		return
	}
	mem := q.dev.nic.memory(q.pd, r.LKey, r.Addr, n, verbs.AccessLocalWrite)
	if mem == nil {
		q.failResponder(verbs.WCSuccess, verbs.WCLocProtErr)
		return
	}
	writeGRH(mem[:grhBytes], p)
	copy(mem[grhBytes:], p.data)
	q.received(p, verbs.WCRecv)
}

// writeGRH writes the network header of RoCE v2 where the GRH would be: IPv6
// in all 40 bytes, IPv4 in the last 20 of them.
func writeGRH(b []byte, p *packet) {
	clear(b)
	src := p.src.dev.nic.ports[p.av.Port-1].gid(int(p.av.SGIDIndex))
	if src == nil {
		return
	}
	from, to := src.GID.Addr(), p.av.DGID.Addr()
	const udp, udpAndBTH = 17, 8 + 12 + 8 + 4 // with DETH and ICRC
	if from.Is4() && to.Is4() {
		ip := b[20:]
		ip[0], ip[1], ip[8], ip[9] = 0x45, p.av.TrafficClass, p.av.HopLimit, udp
		binary.BigEndian.PutUint16(ip[2:], uint16(20+udpAndBTH+len(p.data)))
		copy(ip[12:], from.AsSlice())
		copy(ip[16:], to.AsSlice())
		return
	}
	binary.BigEndian.PutUint32(b, 6<<28|uint32(p.av.TrafficClass)<<20|p.av.FlowLabel&(1<<20-1))
	binary.BigEndian.PutUint16(b[4:], uint16(udpAndBTH+len(p.data)))
	b[6], b[7] = udp, p.av.HopLimit
	gid := src.GID
	copy(b[8:], gid[:])
	copy(b[24:], p.av.DGID[:])
}
