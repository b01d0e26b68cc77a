package verbstest

import (
	"encoding/binary"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// newSRQ makes a shared receive queue for at least depth receives. Those of a
// side are destroyed after its QPs.
func (s *side) newSRQ() verbs.SRQ {
	s.t.Helper()
	srq, err := s.pd.CreateSRQ(verbs.SRQCaps{MaxWR: depth, MaxSGE: 1})
	require.NoError(s.t, err)
	s.srqs = append(s.srqs, srq)
	return srq
}

// sharing are n pairs of QPs in RTS, those of b with one shared receive queue.
func sharing(t *testing.T, rig Rig, n int, p path) (a, b *side, srq verbs.SRQ, xs, ys []*qp) {
	t.Helper()
	a, b = openBoth(t, rig)
	srq = b.newSRQ()
	for range n {
		x, y := a.newQP(verbs.RC), b.newQPFor(verbs.QPInit{Type: verbs.RC, SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq, Caps: b.caps()})
		connect(x, y, p)
		xs, ys = append(xs, x), append(ys, y)
	}
	return a, b, srq, xs, ys
}

// share posts receives.
func (s *side) share(srq verbs.SRQ, wrs ...verbs.RecvWR) {
	s.t.Helper()
	n, err := srq.PostRecv(wrs)
	require.NoError(s.t, err)
	require.Equal(s.t, len(wrs), n)
}

// testSRQ: whichever QP a message comes to takes the oldest receive, and the
// completion says which QP that was.
func testSRQ(t *testing.T, rig Rig) {
	a, b, srq, xs, ys := sharing(t, rig, 3, patient)
	next := uint64(0)
	for range 5 {
		var wrs []verbs.RecvWR
		for i := range depth {
			wrs = append(wrs, b.recvWR(next+uint64(i), 8*i, 8))
		}
		b.share(srq, wrs...)
		for i := range depth {
			binary.LittleEndian.PutUint64(a.mem, next)
			x, y := xs[i*i%3], ys[i*i%3]
			x.send(a.sendWR(next, 8))
			a.waitOK(1)
			wc := b.waitOK(1)[0]
			require.Equal(t, next, wc.ID, "in the order of posting")
			require.Equal(t, verbs.WCRecv, wc.Opcode)
			require.Equal(t, uint32(8), wc.ByteLen)
			require.Equal(t, y.Num(), wc.QPNum)
			require.Equal(t, next, binary.LittleEndian.Uint64(b.landed(8*i, 8)))
			next++
		}
	}
	b.share(srq, b.recvWR(1, 0, 64))
	wr := a.oneSided(2, verbs.OpWriteImm, 8, b)
	wr.Imm = 77
	xs[1].send(wr)
	wc := b.waitOK(1)[0]
	require.Equal(t, verbs.WCRecvRDMAImm, wc.Opcode, "takes one as well")
	require.Equal(t, ys[1].Num(), wc.QPNum)
	a.waitOK(1)
}

// testSRQDatagram: of another type of QP, with an RC QP in the same queue.
func testSRQDatagram(t *testing.T, rig Rig) {
	a, b, srq, xs, _ := sharing(t, rig, 1, patient)
	x, y := a.newQP(verbs.UD), b.newQPFor(verbs.QPInit{Type: verbs.UD, SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq, Caps: b.caps()})
	connect(x, y, path{})
	ah := hold(t, verbs.AH.Destroy)(a.pd.CreateAH(a.to(b)))
	b.share(srq, b.recvWR(1, 0, 256), b.recvWR(2, 256, 256))
	wr := a.sendWR(3, 32)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah.Handle(), y.Num(), qkey
	sent := a.fill(9, 32)
	x.send(wr)
	a.waitOK(1)
	wc := b.waitOK(1)[0]
	require.Equal(t, y.Num(), wc.QPNum)
	require.Equal(t, sent, b.landed(40, 32), "behind the GRH")
	xs[0].send(a.sendWR(4, 32))
	a.waitOK(1)
	require.Equal(t, uint64(2), b.waitOK(1)[0].ID)
	require.Equal(t, sent, b.landed(256, 32))
}

// testSRQEmpty: senders wait until there is a receive, or give up.
func testSRQEmpty(t *testing.T, rig Rig) {
	a, b, srq, xs, _ := sharing(t, rig, 2, stubborn)
	sent := a.fill(3, 100)
	for i, x := range xs {
		x.send(a.sendWR(uint64(i), 100))
	}
	time.Sleep(10 * time.Millisecond) // the peer says that it is not ready
	require.Empty(t, a.poll())
	b.share(srq, b.recvWR(2, 0, 100))
	a.waitOK(1)
	b.waitOK(1)
	require.Equal(t, sent, b.landed(0, 100))
	require.Empty(t, a.poll(), "one receive, one message")
	b.share(srq, b.recvWR(2, 0, 100))
	a.waitOK(1)
	b.waitOK(1)
}

func testSRQEmptyGivesUp(t *testing.T, rig Rig) {
	p := patient
	p.rnrRetry = 0
	a, _, _, xs, ys := sharing(t, rig, 1, p)
	xs[0].send(a.sendWR(2, 8))
	require.Equal(t, verbs.WCRNRRetryExcErr, a.wait(1)[0].Status)
	xs[0].inErr()
	require.Equal(t, verbs.RTS, ys[0].state(), "the peer does not know")
}

// testSRQLimit: one event for each arming, when fewer than the limit are left.
func testSRQLimit(t *testing.T, rig Rig) {
	a, b, srq, xs, _ := sharing(t, rig, 2, patient)
	take := func(n int) {
		for i := range n {
			xs[i%2].send(a.sendWR(1, 8))
			a.waitOK(1)
			b.waitOK(1)
		}
	}
	post := func(n int) {
		for range n {
			b.share(srq, b.recvWR(1, 0, 64))
		}
	}
	require.ErrorIs(t, srq.Arm(srq.Caps().MaxWR+1), syscall.EINVAL)
	require.ErrorIs(t, srq.Arm(-1), syscall.EINVAL)
	post(8)
	require.NoError(t, srq.Arm(4))
	take(4)
	require.Empty(t, b.limits(), "4 are left")
	take(1)
	require.Equal(t, srq, b.event(verbs.EventSRQLimitReached).SRQ)
	take(2)
	require.Empty(t, b.limits(), "the event has disarmed it")
	post(7)
	take(7)
	require.Empty(t, b.limits(), "still")
	post(7)
	require.NoError(t, srq.Arm(2))
	require.NoError(t, srq.Arm(7), "the later one holds")
	take(2)
	require.Equal(t, srq, b.event(verbs.EventSRQLimitReached).SRQ)
	require.NoError(t, srq.Arm(6))
	require.NoError(t, srq.Arm(0))
	take(4)
	require.Empty(t, b.limits(), "disarmed")
}

// limits are the limit events that come within a while.
func (s *side) limits() (es []verbs.AsyncEvent) {
	s.t.Helper()
	time.AfterFunc(20*time.Millisecond, s.dev.Interrupt)
	for {
		e, err := s.dev.AsyncEvent()
		if err != nil {
			require.ErrorIs(s.t, err, verbs.ErrInterrupted)
			return es
		}
		if e.Type == verbs.EventSRQLimitReached {
			es = append(es, e)
		}
	}
}

// testSRQOutlivesQP: a QP in ERR flushes its sends and leaves the receives to
// the others; it comes back, and takes from the queue again.
func testSRQOutlivesQP(t *testing.T, rig Rig) {
	a, b, srq, xs, ys := sharing(t, rig, 2, stubborn)
	ys[0].send(b.sendWR(50, 8)) // waits for a receive of xs[0]
	for i := range uint64(4) {
		b.share(srq, b.recvWR(i, 0, 64))
	}
	ys[0].move(verbs.Err)
	if rig.Quirks.NoLastWQE == "" {
		require.Equal(t, ys[0].Num(), b.event(verbs.EventQPLastWQEReached).QPNum)
	}
	flushed(t, b.wait(1), []uint64{50})
	time.Sleep(5 * time.Millisecond)
	require.Empty(t, b.poll(), "no receive is flushed")
	xs[1].send(a.sendWR(60, 8))
	a.waitOK(1)
	wc := b.waitOK(1)[0]
	require.Equal(t, uint64(0), wc.ID)
	require.Equal(t, ys[1].Num(), wc.QPNum)

	for _, q := range []*qp{xs[0], ys[0]} {
		if q.state() != verbs.Err {
			q.move(verbs.Err)
		}
		q.move(verbs.Reset)
	}
	connect(xs[0], ys[0], patient)
	xs[0].send(a.sendWR(61, 8))
	a.waitOK(1)
	wc = b.waitOK(1)[0]
	require.Equal(t, uint64(1), wc.ID)
	require.Equal(t, ys[0].Num(), wc.QPNum)
}

// testSRQDestroyedQP: nor does one that is destroyed under way take any along.
func testSRQDestroyedQP(t *testing.T, rig Rig) {
	a, b, srq, xs, ys := sharing(t, rig, 2, patient)
	for i := range uint64(2) {
		b.share(srq, b.recvWR(i, 0, 64))
	}
	require.NoError(t, ys[0].Destroy())
	b.qps = b.qps[1:]
	for i := range uint64(2) {
		xs[1].send(a.sendWR(9, 8))
		a.waitOK(1)
		require.Equal(t, i, b.waitOK(1)[0].ID)
	}
}

// testSRQShortReceive: the error is the QP's, and the others go on.
func testSRQShortReceive(t *testing.T, rig Rig) {
	a, b, srq, xs, ys := sharing(t, rig, 2, patient)
	b.share(srq, b.recvWR(1, 0, 16), b.recvWR(2, 64, 64))
	copy(b.landed(16, 4), "safe")
	xs[0].send(a.sendWR(3, 17))
	sent := a.wait(1)[0]
	status(t, sent.Status, verbs.WCRemInvReqErr, verbs.WCRemOpErr, rig.Quirks.ShortRecvIsOpErr)
	got := b.wait(1)[0]
	require.Equal(t, uint64(1), got.ID)
	require.Equal(t, ys[0].Num(), got.QPNum)
	status(t, got.Status, verbs.WCLocLenErr, verbs.WCLocQPOpErr, rig.Quirks.ShortRecvIsOpErr)
	ys[0].inErr()
	require.Equal(t, "safe", string(b.landed(16, 4)), "behind the receive")
	require.Equal(t, verbs.RTS, ys[1].state())
	xs[1].send(a.sendWR(4, 17))
	a.waitOK(1)
	require.Equal(t, uint64(2), b.waitOK(1)[0].ID)
}

func testSRQFull(t *testing.T, rig Rig) {
	a, b, srq, xs, ys := sharing(t, rig, 1, patient)
	caps := srq.Caps()
	require.GreaterOrEqual(t, caps.MaxWR, depth)
	require.GreaterOrEqual(t, caps.MaxSGE, 1)
	wrs := make([]verbs.RecvWR, caps.MaxWR+5)
	for i := range wrs {
		wrs[i] = b.recvWR(uint64(i), 0, 64)
	}
	n, err := srq.PostRecv(wrs)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Equal(t, caps.MaxWR, n, "err belongs to wrs[n]")
	n, err = srq.PostRecv(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	xs[0].send(a.sendWR(1, 8))
	a.waitOK(1)
	require.Equal(t, uint64(0), b.waitOK(1)[0].ID)
	b.share(srq, wrs[caps.MaxWR])

	require.Zero(t, ys[0].Caps().MaxRecvWR)
	n, err = ys[0].PostRecv(wrs[:1])
	require.ErrorIs(t, err, syscall.EINVAL, "it has no queue of its own")
	require.Zero(t, n)
}

func testSRQObjects(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	attr, err := a.dev.Query()
	require.NoError(t, err)
	require.Positive(t, attr.MaxSRQ)
	require.Positive(t, attr.MaxSRQWR)
	require.Positive(t, attr.MaxSRQSGE)
	for _, caps := range []verbs.SRQCaps{{}, {MaxWR: -1}, {MaxWR: 1, MaxSGE: -1}, {MaxWR: attr.MaxSRQWR + 1}, {MaxWR: 1, MaxSGE: attr.MaxSRQSGE + 1}} {
		_, err := a.pd.CreateSRQ(caps)
		var failed *verbs.Error
		require.True(t, errors.As(err, &failed), "%+v: %v", caps, err)
		require.Equal(t, "ibv_create_srq", failed.Op)
		require.NotEmpty(t, failed.Hint)
	}

	srq := a.newSRQ()
	init := verbs.QPInit{Type: verbs.RC, SendCQ: a.cq, RecvCQ: a.cq, SRQ: b.newSRQ(), Caps: a.caps()}
	_, err = a.pd.CreateQP(init)
	require.ErrorIs(t, err, syscall.EINVAL, "of another device")
	pd := hold(t, verbs.PD.Dealloc)(a.dev.AllocPD())
	init.SRQ = srq
	_, err = pd.CreateQP(init)
	require.ErrorIs(t, err, syscall.EINVAL, "of another PD")

	q := a.newQPFor(init)
	require.ErrorIs(t, srq.Destroy(), syscall.EBUSY, "under a QP")
	require.NoError(t, q.Destroy())
	a.qps = nil
	require.ErrorIs(t, a.pd.Dealloc(), syscall.EBUSY, "under an SRQ")
	require.NoError(t, srq.Arm(1), "as good as before")
	a.share(srq, a.recvWR(1, 0, 8))
	require.NoError(t, srq.Destroy())
	a.srqs = nil
	for _, err := range []error{srq.Destroy(), srq.Arm(1)} {
		require.ErrorIs(t, err, syscall.EBADF, "it is gone")
	}
	_, err = srq.PostRecv([]verbs.RecvWR{a.recvWR(1, 0, 8)})
	require.ErrorIs(t, err, syscall.EBADF)
	_, err = a.pd.CreateQP(init)
	require.Error(t, err)
	require.Positive(t, srq.Caps().MaxWR)
}

// testSRQConcurrent: several goroutines post while the queue is emptied; each
// receive is taken once.
func testSRQConcurrent(t *testing.T, rig Rig) {
	const posters, each = 4, 30
	a, b, srq, xs, _ := sharing(t, rig, 2, stubborn)
	stop := make(chan struct{})
	failures := make(chan error, posters)
	var posting sync.WaitGroup
	for p := range posters {
		posting.Go(func() {
			for i := 0; i < each; {
				n, err := srq.PostRecv([]verbs.RecvWR{b.recvWR(uint64(p*each+i), 64*p, 64)})
				if i += n; err == nil {
					continue
				}
				if !errors.Is(err, syscall.ENOMEM) {
					failures <- err
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond): // it is full
				}
			}
		})
	}
	defer posting.Wait()
	defer close(stop)
	var got []uint64
	for range posters * each / 2 {
		for _, x := range xs {
			x.send(a.sendWR(1, 8))
		}
		a.waitOK(2)
		got = append(got, ids(b.waitOK(2))...)
	}
	require.ElementsMatch(t, span(0, posters*each), got)
	require.Empty(t, failures)
}
