package simverbs

import (
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// wait polls until n completions are there or a minute of the bubble's time has passed.
func (e *end) wait(n int) []verbs.WC {
	e.t.Helper()
	wcs := make([]verbs.WC, 64)
	got := []verbs.WC{}
	for start := time.Now(); len(got) < n && time.Since(start) < time.Minute; {
		k, err := e.cq.Poll(wcs)
		require.NoError(e.t, err)
		if got = append(got, wcs[:k]...); k == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	require.Len(e.t, got, n)
	return got
}

// idle expects no completion.
func (e *end) idle(why ...string) {
	e.t.Helper()
	n, err := e.cq.Poll(make([]verbs.WC, 1))
	require.NoError(e.t, err)
	require.Zero(e.t, n, why)
}

func (e *end) send(id uint64, n uint32) {
	e.t.Helper()
	_, err := e.qp.PostSend([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		Addr: e.mr.Addr(), Length: n, LKey: e.mr.LKey()}})
	require.NoError(e.t, err)
}

func (e *end) recv(id uint64, n uint32) {
	e.t.Helper()
	_, err := e.qp.PostRecv([]verbs.RecvWR{{ID: id, Addr: e.mr.Addr(), Length: n, LKey: e.mr.LKey()}})
	require.NoError(e.t, err)
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, cfg Config, test func(t *testing.T, f *Fabric)) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFabric(cfg)
		f.Watch(t)
		test(t, f)
	})
}

func TestPeerGoneIsRetryExceeded(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		require.NoError(t, b.qp.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
		a.recv(1, 64)
		a.recv(2, 64)
		a.send(3, 64)
		a.send(4, 64)
		start := time.Now()
		got := a.wait(4)
		require.Equal(t, []uint64{3, 1, 2, 4}, ids(got))
		require.Equal(t, verbs.WCRetryExcErr, got[0].Status)
		for _, wc := range got[1:] {
			require.Equal(t, verbs.WC{ID: wc.ID, Status: verbs.WCWRFlushErr, QPNum: a.qp.Num()}, wc)
		}
		// Timeout 10 is 4.2 ms, seven attempts.
		require.InDelta(t, 29.4, float64(time.Since(start).Microseconds())/1000, 1)
	})
}

func TestNotReadyWaitsForTheReceive(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		a.send(1, 100)
		b.recv(2, 100)
		start := time.Now()
		require.Equal(t, uint32(100), b.wait(1)[0].ByteLen)
		require.GreaterOrEqual(t, time.Since(start), 6*time.Millisecond)
		require.Equal(t, verbs.WCSuccess, a.wait(1)[0].Status)
	})
}

// TestRNRRetries: each retry takes its time, on rxe the same for every code.
func TestRNRRetries(t *testing.T) {
	for retries, want := range []time.Duration{0, 6 * time.Millisecond, 12 * time.Millisecond} {
		inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
			a, b := newEnd(t, f, "a", 8), newEnd(t, f, "b", 8)
			a.init()
			b.init()
			a.connect(b, 10, 6, uint8(retries))
			b.connect(a, 10, 6, uint8(retries))
			start := time.Now()
			a.send(1, 8)
			require.Equal(t, verbs.WCRNRRetryExcErr, a.wait(1)[0].Status)
			require.InDelta(t, want, time.Since(start), float64(200*time.Microsecond))
		})
	}
}

// TestTimersEndWithTheLife: a wait that began before RESET does not end the
// one that began after.
func TestTimersEndWithTheLife(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		a.send(1, 8) // not ready: 6 ms
		time.Sleep(3 * time.Millisecond)
		for _, e := range []*end{a, b} {
			require.NoError(t, e.qp.Modify(&verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
			e.init()
		}
		a.connect(b, 10, 6, 3)
		b.connect(a, 10, 6, 3)
		a.send(2, 8) // until 9 ms
		b.recv(3, 8)
		time.Sleep(5 * time.Millisecond)
		b.idle()
		require.Equal(t, []uint64{2}, ids(a.wait(1)))
		require.Equal(t, []uint64{3}, ids(b.wait(1)))
	})
}

func ids(wcs []verbs.WC) (ids []uint64) {
	for _, wc := range wcs {
		ids = append(ids, wc.ID)
	}
	return ids
}

// TestSlotsAreFreeWhenPolled: under the Spec model an unsignaled send holds
// its slot until a later completion was polled.
func TestSlotsAreFreeWhenPolled(t *testing.T) {
	inBubble(t, Config{Model: Spec}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 4)
		for i := range uint64(4) {
			b.recvNumber(i)
		}
		for i := range uint64(3) {
			a.number(i, 0)
		}
		a.number(3, verbs.SendSignaled)
		_, err := a.qp.PostSend([]verbs.SendWR{{ID: 4, Opcode: verbs.OpSend}})
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.Equal(t, []uint64{3}, ids(a.wait(1)))
		for i := range uint64(4) {
			a.number(i, 0)
		}
	})
}

func TestUnknownGID(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := newEnd(t, f, "a", 8), newEnd(t, f, "b", 8)
		a.init()
		b.gid.GID[15] = 99
		start := time.Now()
		err := a.qp.Modify(rtr(a, b))
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Equal(t, time.Second, time.Since(start))
	})
}

// TestUnroutedGIDs (case 45): set-up with a link-local or RoCE v1 GID works,
// traffic does not.
func TestUnroutedGIDs(t *testing.T) {
	for index := range 3 {
		inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
			a, b := newEnd(t, f, "a", 8), newEnd(t, f, "b", 8)
			for _, e := range []*end{a, b} {
				gids, err := e.dev.QueryGIDs(1)
				require.NoError(t, err)
				e.gid = gids[index]
				e.init()
			}
			a.connect(b, 10, 1, 1)
			b.connect(a, 10, 1, 1)
			b.recvNumber(1)
			a.number(1, 0)
			require.Equal(t, verbs.WCRetryExcErr, a.wait(1)[0].Status)
		})
	}
}

// TestStalePacket: an RC packet says nothing of who sent it. One of an earlier
// connection is taken in if its PSN fits (case 15).
func TestStalePacket(t *testing.T) {
	inBubble(t, Config{Latency: time.Millisecond}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		a.number(1, 0)
		time.Sleep(10 * time.Microsecond)
		for _, e := range []*end{a, b} {
			require.NoError(t, e.qp.Modify(&verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
			e.init()
		}
		a.connect(b, 10, 1, 1)
		b.connect(a, 10, 1, 1)
		b.recvNumber(2)
		require.Equal(t, []uint64{2}, ids(b.wait(1)))
		require.Equal(t, uint64(1), binary.LittleEndian.Uint64(b.mem[4096+16:]))
	})
}

func TestDrain(t *testing.T) {
	inBubble(t, Config{Latency: time.Millisecond}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		b.recvNumber(1)
		b.recvNumber(2)
		a.number(1, verbs.SendSignaled)
		require.NoError(t, a.qp.Modify(&verbs.QPAttr{State: verbs.SQD, EnSQDNotify: true}, verbs.AttrState|verbs.AttrEnSQDNotify))
		a.number(2, verbs.SendSignaled)
		attr, err := a.qp.Query()
		require.NoError(t, err)
		require.True(t, attr.SQDraining)
		e, err := a.dev.AsyncEvent()
		require.NoError(t, err)
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSQDrained, QPNum: a.qp.Num()}, e)
		require.Equal(t, []uint64{1}, ids(a.wait(1)), "what is posted in SQD waits")
		require.NoError(t, a.qp.Modify(&verbs.QPAttr{State: verbs.RTS}, verbs.AttrState))
		require.Equal(t, []uint64{2}, ids(a.wait(1)))
	})
}

// TestReadLimit: no more READs are with the peer than max_rd_atomic says, and
// a fence waits for all of them.
func TestReadLimit(t *testing.T) {
	var reads, most int
	var sawSend bool
	cfg := Config{Latency: time.Millisecond, Faults: Faults{OnPacket: func(p Packet, _ *rand.Rand) Verdict {
		switch {
		case p.From == "b":
			reads--
		case p.Opcode == verbs.OpRead:
			reads++
			most = max(most, reads)
		default:
			sawSend = true
			if reads != 0 {
				most = 99
			}
		}
		return Verdict{}
	}}}
	inBubble(t, cfg, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 32)
		b.recvNumber(0)
		var wrs []verbs.SendWR
		for i := range uint64(20) {
			wrs = append(wrs, verbs.SendWR{ID: i, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, Addr: a.mr.Addr(),
				Length: 8, LKey: a.mr.LKey(), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		}
		wrs = append(wrs, verbs.SendWR{ID: 20, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendFence})
		_, err := a.qp.PostSend(wrs)
		require.NoError(t, err)
		for i, wc := range a.wait(21) {
			require.Equal(t, verbs.WC{ID: uint64(i), Opcode: wc.Opcode, ByteLen: wc.ByteLen, QPNum: a.qp.Num()}, wc)
		}
		require.Equal(t, 16, most)
		require.True(t, sawSend)
	})
}

// TestUnreliableLoses: what arrives without a receive for it is gone.
func TestUnreliableLoses(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := newEnd(t, f, "a", 8), newEnd(t, f, "b", 8)
		for _, e := range []*end{a, b} {
			require.NoError(t, e.qp.Destroy())
			e.newQPOf(verbs.UC, 8)
			e.init()
		}
		for _, e := range []struct{ from, to *end }{{a, b}, {b, a}} {
			attr, _ := rtr(e.from, e.to)
			e.from.modify(*attr, av)
			e.from.modify(verbs.QPAttr{State: verbs.RTS, SQPSN: 5}, verbs.AttrSQPSN)
		}
		a.number(1, verbs.SendSignaled)
		b.recvNumber(2)
		a.number(3, verbs.SendSignaled)
		require.Equal(t, []uint64{1, 3}, ids(a.wait(2)))
		require.Equal(t, []uint64{2}, ids(b.wait(1)))
		require.Equal(t, uint64(3), binary.LittleEndian.Uint64(b.mem[4096+16:]))
	})
}
