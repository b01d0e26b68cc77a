package simverbs

import (
	"runtime"
	"testing"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// end is one side of a connected pair for the tests of this package.
type end struct {
	t   testing.TB
	dev verbs.Device
	pd  verbs.PD
	ch  verbs.CompChannel
	cq  verbs.CQ
	mem []byte
	mr  verbs.MR
	qp  verbs.QP
	gid verbs.GIDEntry

	sends [64]verbs.SendWR // room for a batch
	recvs [64]verbs.RecvWR
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newEnd(t testing.TB, f *Fabric, host string, depth int) *end {
	t.Helper()
	e := &end{t: t, mem: make([]byte, 1<<20)}
	e.dev = must[verbs.Device](t)(f.Provider(host).Open("sim0"))
	e.pd = must[verbs.PD](t)(e.dev.AllocPD())
	e.ch = must[verbs.CompChannel](t)(e.dev.CreateCompChannel())
	e.cq = must[verbs.CQ](t)(e.dev.CreateCQ(2*depth+2, e.ch))
	all := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	e.mr = must[verbs.MR](t)(e.pd.RegisterMR(e.mem, all))
	e.gid = must[[]verbs.GIDEntry](t)(e.dev.QueryGIDs(1))[3]
	e.newQP(depth)
	t.Cleanup(func() {
		for _, destroy := range []func() error{e.qp.Destroy, e.cq.Destroy, e.ch.Destroy, e.mr.Deregister, e.pd.Dealloc, e.dev.Close} {
			if err := destroy(); err != nil {
				t.Error(err)
			}
		}
	})
	return e
}

func (e *end) newQP(depth int) { e.newQPOf(verbs.RC, depth) }

func (e *end) newQPOf(typ verbs.QPType, depth int) {
	e.t.Helper()
	e.qp = must[verbs.QP](e.t)(e.pd.CreateQP(verbs.QPInit{Type: typ, SendCQ: e.cq, RecvCQ: e.cq,
		Caps: verbs.QPCaps{MaxSendWR: depth, MaxRecvWR: depth, MaxInlineData: 64}}))
}

func (e *end) modify(a verbs.QPAttr, mask verbs.AttrMask) {
	e.t.Helper()
	if err := e.qp.Modify(&a, mask|verbs.AttrState); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) init() {
	e.t.Helper()
	e.modify(verbs.QPAttr{State: verbs.Init, Port: 1,
		Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic},
		verbs.AttrPKeyIndex|verbs.AttrPort|verbs.AttrAccess)
}

func (e *end) connect(p *end, timeout, retry, rnrRetry uint8) {
	e.t.Helper()
	attr, mask := rtr(e, p)
	e.modify(*attr, mask)
	e.modify(verbs.QPAttr{State: verbs.RTS, Timeout: timeout, RetryCnt: retry, RNRRetry: rnrRetry,
		SQPSN: e.qp.Num() * 77, MaxRdAtomic: 16},
		verbs.AttrTimeout|verbs.AttrRetryCnt|verbs.AttrRNRRetry|verbs.AttrSQPSN|verbs.AttrMaxRdAtomic)
}

// rtr are the attributes that connect an RC QP.
func rtr(e, p *end) (*verbs.QPAttr, verbs.AttrMask) {
	return &verbs.QPAttr{
		State: verbs.RTR, PathMTU: verbs.MTU4096, DestQPN: p.qp.Num(), RQPSN: p.qp.Num() * 77,
		MaxDestRdAtom: 16, MinRNRTimer: 12,
		AV: verbs.AHAttr{Global: true, DGID: p.gid.GID, SGIDIndex: uint8(e.gid.Index), HopLimit: 64, Port: 1},
	}, verbs.AttrState | av | verbs.AttrMaxDestRdAtom | verbs.AttrMinRNRTimer
}

func pair(t testing.TB, f *Fabric, depth int) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, f, "a", depth), newEnd(t, f, "b", depth)
	a.init()
	b.init()
	a.connect(b, 10, 6, 3)
	b.connect(a, 10, 6, 3)
	return a, b
}

// BenchmarkSend is one-way messages of 64 bytes in batches of 16, with posting
// of receives and polling of both sides, on one goroutine.
func BenchmarkSend(b *testing.B) {
	const batch = 16
	x, y := pair(b, NewFabric(Config{}), 64)
	sends, recvs, wcs := make([]verbs.SendWR, batch), make([]verbs.RecvWR, batch), make([]verbs.WC, 2*batch)
	for i := range batch {
		sends[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Addr: x.mr.Addr(), Length: 64, LKey: x.mr.LKey()}
		recvs[i] = verbs.RecvWR{ID: uint64(i), Addr: y.mr.Addr() + uint64(i*64), Length: 64, LKey: y.mr.LKey()}
	}
	sends[batch-1].Flags = verbs.SendSignaled
	b.ReportAllocs()
	for n := 0; n < b.N; n += batch {
		if _, err := y.qp.PostRecv(recvs); err != nil {
			b.Fatal(err)
		}
		if _, err := x.qp.PostSend(sends); err != nil {
			b.Fatal(err)
		}
		sent, _ := x.cq.Poll(wcs)
		got, _ := y.cq.Poll(wcs)
		if sent != 1 || got != batch {
			b.Fatal(sent, got)
		}
	}
}

// BenchmarkEcho is 64-byte messages there and back, one goroutine on each side
// that polls and posts what it got in one batch, 64 under way.
func BenchmarkEcho(b *testing.B) {
	const window = 64
	x, y := pair(b, NewFabric(Config{}), window)
	all := make([]verbs.WC, window)
	for i := range all {
		all[i].ID = uint64(i)
	}
	x.receive(all)
	y.receive(all)
	b.ReportAllocs()
	b.ResetTimer()
	x.reply(all)
	done := make(chan struct{})
	go func() {
		defer close(done)
		y.echo(b.N)
	}()
	x.echo(b.N)
	<-done
}

// receive posts a receive for each completion's slot.
func (e *end) receive(wcs []verbs.WC) {
	for i := range wcs {
		e.recvs[i] = verbs.RecvWR{ID: wcs[i].ID, Addr: e.mr.Addr() + wcs[i].ID*64, Length: 64, LKey: e.mr.LKey()}
	}
	if _, err := e.qp.PostRecv(e.recvs[:len(wcs)]); err != nil {
		e.t.Error(err)
	}
}

// reply sends each completion's slot back.
func (e *end) reply(wcs []verbs.WC) {
	for i := range wcs {
		e.sends[i] = verbs.SendWR{ID: wcs[i].ID, Opcode: verbs.OpSend, Addr: e.mr.Addr() + wcs[i].ID*64, Length: 64, LKey: e.mr.LKey()}
	}
	if _, err := e.qp.PostSend(e.sends[:len(wcs)]); err != nil {
		e.t.Error(err)
	}
}

// echo answers n messages.
func (e *end) echo(n int) {
	wcs := make([]verbs.WC, 16)
	for n > 0 {
		got, _ := e.cq.Poll(wcs)
		if got == 0 {
			runtime.Gosched()
			continue
		}
		e.receive(wcs[:got])
		e.reply(wcs[:got])
		n -= got
	}
}
