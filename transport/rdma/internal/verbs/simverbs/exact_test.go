package simverbs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// ledger counts the completions of each WR of one end.
type ledger struct {
	*end
	next    uint64
	pending map[uint64]bool
	done    map[uint64]bool
}

func (l *ledger) entry() uint64 {
	l.next++
	l.pending[l.next] = true
	return l.next
}

// book polls, and fails on a completion that is not due.
func (l *ledger) book() {
	wcs := make([]verbs.WC, 16)
	for {
		n, err := l.cq.Poll(wcs)
		require.NoError(l.t, err)
		if n == 0 {
			return
		}
		for _, wc := range wcs[:n] {
			require.True(l.t, l.pending[wc.ID], "WR %d: %v (completed before: %v)", wc.ID, wc.Status, l.done[wc.ID])
			delete(l.pending, wc.ID)
			l.done[wc.ID] = true
		}
	}
}

func (l *ledger) postSome(r *rand.Rand) {
	for range r.IntN(6) {
		id := l.entry()
		wr := verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Addr: l.mr.Addr(), Length: 64, LKey: l.mr.LKey()}
		if r.IntN(20) == 0 {
			wr.LKey++ // fails
		}
		if _, err := l.qp.PostSend([]verbs.SendWR{wr}); err != nil {
			delete(l.pending, id)
		}
	}
	for range r.IntN(6) {
		id := l.entry()
		wr := verbs.RecvWR{ID: id, Addr: l.mr.Addr() + 4096, Length: uint32(64 - r.IntN(20)/19), LKey: l.mr.LKey()} // 1 in 20 too short
		if _, err := l.qp.PostRecv([]verbs.RecvWR{wr}); err != nil {
			delete(l.pending, id)
		}
	}
}

// drain goes by ERR to RESET, after which everything has completed.
func (l *ledger) drain() {
	require.NoError(l.t, l.qp.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
	require.NoError(l.t, l.qp.Modify(&verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
	l.book()
	require.Empty(l.t, l.pending, "without a completion")
}

// TestEachWRCompletesOnce: whatever the network does, and whenever the QPs go
// through ERR (case 2). Under the Spec model, as rxe flushes no receive that
// was posted in ERR.
func TestEachWRCompletesOnce(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
			cfg := Config{Model: Spec, Faults: Faults{Seed: seed + 1}}
			if seed%4 != 0 {
				cfg.Latency, cfg.Doorbell = 5*time.Microsecond, time.Duration(seed%3)*time.Microsecond
				cfg.Faults.Drop, cfg.Faults.Duplicate, cfg.Faults.Delay = 0.1, 0.1, 50*time.Microsecond
			}
			inBubble(t, cfg, func(t *testing.T, f *Fabric) {
				r := rand.New(rand.NewPCG(seed+1, 0))
				a, b := pair(t, f, 32)
				ends := []*ledger{
					{end: a, pending: map[uint64]bool{}, done: map[uint64]bool{}},
					{end: b, pending: map[uint64]bool{}, done: map[uint64]bool{}},
				}
				for range 200 {
					for _, l := range ends {
						l.postSome(r)
						l.book()
					}
					time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
					if r.IntN(20) > 0 {
						continue
					}
					for _, l := range ends {
						l.drain()
					}
					a.init()
					b.init()
					a.connect(b, 10, uint8(r.IntN(3)), uint8(r.IntN(3)))
					b.connect(a, 10, uint8(r.IntN(3)), uint8(r.IntN(3)))
				}
			})
		})
	}
}
