package simverbs

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// sharing is a pair of which b receives from an SRQ.
func sharing(t testing.TB, f *Fabric, depth int) (a, b *end, srq verbs.SRQ) {
	t.Helper()
	a, b = newEnd(t, f, "a", depth), newEnd(t, f, "b", depth)
	require.NoError(t, b.qp.Destroy())
	srq = must[verbs.SRQ](t)(b.pd.CreateSRQ(verbs.SRQCaps{MaxWR: depth, MaxSGE: 1}))
	b.qp = b.shared(srq, depth)
	t.Cleanup(func() {
		require.NoError(t, b.qp.Destroy())
		require.NoError(t, srq.Destroy())
		b.newQP(1)
	})
	a.init()
	b.init()
	a.connect(b, 10, 6, infiniteRNR)
	b.connect(a, 10, 6, infiniteRNR)
	return a, b, srq
}

func (e *end) shared(srq verbs.SRQ, depth int) verbs.QP {
	e.t.Helper()
	return must[verbs.QP](e.t)(e.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, SRQ: srq,
		Caps: verbs.QPCaps{MaxSendWR: depth}}))
}

func (e *end) recvWR(id uint64) verbs.RecvWR {
	return verbs.RecvWR{ID: id, Addr: e.mr.Addr() + 4096, Length: 64, LKey: e.mr.LKey()}
}

// event is the next event that is there.
func (e *end) event() verbs.AsyncEvent {
	e.t.Helper()
	ev, err := e.dev.AsyncEvent()
	require.NoError(e.t, err)
	return ev
}

// TestLimitAboveWhatIsPosted: hardware says so at once, rxe when it takes one.
func TestLimitAboveWhatIsPosted(t *testing.T) {
	for _, model := range []Model{RXE, Spec} {
		inBubble(t, Config{Model: model}, func(t *testing.T, f *Fabric) {
			a, b, srq := sharing(t, f, 8)
			_, err := srq.PostRecv([]verbs.RecvWR{b.recvWR(1)})
			require.NoError(t, err)
			require.NoError(t, srq.Arm(4))
			if model == RXE {
				b.dev.Interrupt()
				_, err := b.dev.AsyncEvent()
				require.ErrorIs(t, err, verbs.ErrInterrupted)
				a.send(2, 8)
			}
			require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: srq}, b.event())
		})
	}
}

// TestLastWQE: hardware says that a QP in ERR takes no receive any more, once.
func TestLastWQE(t *testing.T) {
	inBubble(t, Config{Model: Spec}, func(t *testing.T, f *Fabric) {
		_, b, _ := sharing(t, f, 8)
		for range 2 {
			require.NoError(t, b.qp.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
		}
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QPNum: b.qp.Num()}, b.event())
		b.dev.Interrupt()
		_, err := b.dev.AsyncEvent()
		require.ErrorIs(t, err, verbs.ErrInterrupted)
	})
}

// TestFailSRQs: a queue in error takes what is posted and gives nothing.
func TestFailSRQs(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b, srq := sharing(t, f, 8)
		f.FailSRQs("b", "sim0")
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSRQErr, SRQ: srq}, b.event())
		_, err := srq.PostRecv([]verbs.RecvWR{b.recvWR(1)})
		require.NoError(t, err)
		require.ErrorIs(t, srq.Arm(1), syscall.EINVAL)
		a.send(2, 8)
		time.Sleep(time.Second)
		a.idle("RNR")
		b.idle()
	})
}

// TestSRQOfDeadDevice: it is refused until the device is back, and empty then.
func TestSRQOfDeadDevice(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		_, b, srq := sharing(t, f, 8)
		wr := []verbs.RecvWR{b.recvWR(1)}
		_, err := srq.PostRecv(wr)
		require.NoError(t, err)
		f.KillDevice("b", "sim0")
		_, err = srq.PostRecv(wr)
		require.ErrorIs(t, err, syscall.EIO)
		require.ErrorIs(t, srq.Arm(1), syscall.EIO)
		_, err = b.pd.CreateSRQ(verbs.SRQCaps{MaxWR: 1})
		require.ErrorIs(t, err, syscall.EIO)
		f.ReviveDevice("b", "sim0")
		for range srq.Caps().MaxWR {
			_, err = srq.PostRecv(wr)
			require.NoError(t, err)
		}
	})
}

// TestPlannedSRQFaults: each call can be made to fail.
func TestPlannedSRQFaults(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		_, b, srq := sharing(t, f, 8)
		for verb, call := range map[string]func() error{
			"ibv_create_srq": func() error { _, err := b.pd.CreateSRQ(verbs.SRQCaps{MaxWR: 1}); return err },
			"ibv_modify_srq": func() error { return srq.Arm(1) },
			"ibv_post_srq_recv": func() error {
				n, err := srq.PostRecv([]verbs.RecvWR{b.recvWR(1), b.recvWR(2)})
				require.Equal(t, 1, n)
				return err
			},
			"ibv_destroy_srq": srq.Destroy,
		} {
			n := 1
			if verb == "ibv_post_srq_recv" {
				n = 2
			}
			f.FailCall("b", verb, n, syscall.ENOMEM)
			require.ErrorIs(t, call(), syscall.ENOMEM, verb)
		}
	})
}

// TestSRQKeepsItsMemory: to deregister it under posted receives is a mistake,
// whatever state the QPs are in.
func TestSRQKeepsItsMemory(t *testing.T) {
	f := NewFabric(Config{})
	_, b, srq := sharing(t, f, 8)
	mr := must[verbs.MR](t)(b.pd.RegisterMR(make([]byte, 64), verbs.AccessLocalWrite))
	_, err := srq.PostRecv([]verbs.RecvWR{{ID: 1, Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}})
	require.NoError(t, err)
	require.NoError(t, b.qp.Modify(&verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
	require.NoError(t, mr.Deregister())
	require.Len(t, f.Violations(), 1)
	require.Contains(t, f.Violations()[0], "under 1 receives of SRQ")
}

// TestEachSharedReceiveIsTakenOnce: whatever the network does, and whenever
// QPs go through ERR or are reset, each receive posted is still there or has
// completed, once.
func TestEachSharedReceiveIsTakenOnce(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
			cfg := Config{Model: Model(seed % 2), Faults: Faults{Seed: seed + 1}}
			if seed%4 != 0 {
				cfg.Latency = 5 * time.Microsecond
				cfg.Faults.Drop, cfg.Faults.Duplicate, cfg.Faults.Delay = 0.1, 0.1, 50*time.Microsecond
			}
			inBubble(t, cfg, func(t *testing.T, f *Fabric) {
				r := rand.New(rand.NewPCG(seed+1, 0))
				a, b, srq := sharing(t, f, 16)
				// The second pair is a's and b's, with other QPs.
				c, d := newEnd(t, f, "a", 16), *b
				d.qp = b.shared(srq, 16)
				t.Cleanup(func() { require.NoError(t, d.qp.Destroy()) })
				again := func(x, y *end) {
					for _, e := range []*end{x, y} {
						e.modify(verbs.QPAttr{State: verbs.Reset}, 0)
						e.init()
					}
					x.connect(y, 10, 2, 7)
					y.connect(x, 10, 2, 7)
				}
				again(c, &d)

				left := map[uint64]bool{}
				next := uint64(0)
				wcs := make([]verbs.WC, 64)
				for range 200 {
					for range r.IntN(8) {
						if _, err := srq.PostRecv([]verbs.RecvWR{b.recvWR(next)}); err == nil {
							left[next] = true
							next++
						}
					}
					for _, e := range []*end{a, c} {
						for range r.IntN(4) {
							_, _ = e.qp.PostSend([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, Addr: e.mr.Addr(), Length: 64, LKey: e.mr.LKey()}})
						}
					}
					time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
					n, err := b.cq.Poll(wcs)
					require.NoError(t, err)
					for _, wc := range wcs[:n] {
						require.True(t, left[wc.ID], "receive %d is not posted", wc.ID)
						delete(left, wc.ID)
					}
					pairs := [][2]*end{{a, b}, {c, &d}}
					p := pairs[r.IntN(2)]
					switch r.IntN(20) {
					case 0:
						p[1].modify(verbs.QPAttr{State: verbs.Err}, 0)
						again(p[0], p[1])
					case 1:
						again(p[0], p[1])
					}
				}
				require.Len(t, left, srq.(*sharedQueue).recvs.len(), "neither posted nor completed")
				require.Positive(t, int(next)-len(left))
			})
		})
	}
}
