package rdma

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// nullCQ and nullQP take sends and receives and complete what they are told to,
// at no cost worth speaking of: what is left is the link's.
type nullCQ struct {
	verbs.CQ
	wcs []verbs.WC // for the next poll
}

func (c *nullCQ) Poll(wcs []verbs.WC) (int, error) {
	n := copy(wcs, c.wcs)
	c.wcs = c.wcs[n:]
	return n, nil
}

type nullQP struct {
	verbs.QP
	signaled []uint64 // sends that have not completed
}

func (q *nullQP) PostSend(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			q.signaled = append(q.signaled, wrs[i].ID)
		}
	}
	return len(wrs), nil
}

func (q *nullQP) PostRecv(wrs []verbs.RecvWR) (int, error) { return len(wrs), nil }

// nullLink is a link without a device, to a peer that grants without end.
func nullLink(b testing.TB) (*link, *nullCQ, *nullQP) {
	cq, qp := &nullCQ{}, &nullQP{}
	cfg := Config{}.withDefaults(&verbs.DeviceAttr{})
	d := &device{cfg: cfg}
	p := &poller{dev: d, cq: cq, table: make([]atomic.Pointer[endpoint], 1)}
	arena, err := pool.NewArena(cfg.memory())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, arena.Close()) })
	ep := &endpoint{dev: d, poller: p, qp: qp}
	split, end := cfg.split()
	all := region{arena.Bytes(), 0, 1}
	ep.send = newSendRing(cfg.SQDepth, all.cut(end, credit.Reserve*linkFrame), all.cut(0, split), nil, &cfg, 256)
	ep.recv.add(all.mem[split:end], 0, 1, cfg.RQDepth, cfg.SlotSize, wrid.Make(wrid.Recv, 0, 0, 0))
	_, err = ep.recv.post(qp)
	require.NoError(b, err)
	l := newLink(ep, 1, &wire.QP{Depth: uint32(cfg.RQDepth)}, &wire.QP{Depth: 1024, Slot: uint32(cfg.SlotSize)})
	l.window = credit.NewWindow(1<<31 - 1)
	ep.link.Store(l)
	p.table[0].Store(ep)
	return l, cq, qp
}

// BenchmarkFrames is what a link costs per frame without a device: so many
// CALLs arrive in a poll with the completions of earlier sends, and the
// receiver answers each, within the batch or after it. Of the operation
// nothing is left out but the device's work and the peer's.
func BenchmarkFrames(b *testing.B) {
	for _, batch := range []int{1, 16} {
		for _, late := range []bool{false, true} {
			b.Run(fmt.Sprintf("batch=%d/late=%v", batch, late), func(b *testing.B) { benchFrames(b, batch, late) })
		}
	}
	b.Run("nothing", func(b *testing.B) {
		l, _, _ := nullLink(b)
		for b.Loop() {
			l.ep.poller.round()
		}
	})
}

func benchFrames(b *testing.B, batch int, late bool) {
	l, cq, qp := nullLink(b)
	r := &l.ep.recv
	call := wire.Header{Kind: wire.Call, Flags: wire.End, Epoch: 1, Length: 64, Total: 64, Lane: transport.LaneID}
	for slot := range r.all {
		call.Put(r.mem[slot])
	}
	p := &nullPeer{link: l, late: late}
	l.receiver = p
	wcs := make([]verbs.WC, 0, pollBatch)
	next := uint32(0)
	b.ReportAllocs()
	for n := 0; n < b.N; n += batch {
		wcs = wcs[:0]
		for _, id := range qp.signaled {
			wcs = append(wcs, verbs.WC{ID: id})
		}
		qp.signaled = qp.signaled[:0]
		for range batch {
			slot := next % uint32(len(r.all))
			wcs = append(wcs, verbs.WC{ID: r.all[slot].ID, ByteLen: wire.HeaderSize + 64})
			next++
		}
		cq.wcs = wcs
		l.ep.poller.round()
		for ; p.owed > 0; p.owed-- {
			if err := p.answer(); err != nil {
				b.Fatal(err)
			}
		}
	}
	require.NoError(b, l.dead())
}

// nullPeer answers CALLs.
type nullPeer struct {
	link *link
	land [64]byte
	late bool
	owed int // answers after the batch
}

func (p *nullPeer) Take(h *wire.Header, payload []byte) error {
	copy(p.land[:], payload)
	return p.Frame(h)
}

func (p *nullPeer) Land(h *wire.Header) ([]byte, error) { return p.land[:h.Length], nil }
func (p *nullPeer) Closed(error)                        {}

func (p *nullPeer) Frame(*wire.Header) error {
	if p.late {
		p.owed++
		return nil
	}
	return p.answer()
}

func (p *nullPeer) answer() error {
	s, err := p.link.Reserve(context.Background(), transport.Small, 64)
	if err != nil {
		return err
	}
	copy(s.Payload, p.land[:])
	h := wire.Header{Kind: wire.Reply, Flags: wire.End, Lane: transport.LaneID, Total: 64}
	if err := p.link.Commit(s, &h); err != nil {
		return err
	}
	p.link.Flush()
	return nil
}
