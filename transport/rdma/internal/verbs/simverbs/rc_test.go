package simverbs

import (
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
		// Timeout 10 is 4.2 ms, three attempts.
		require.InDelta(t, 12.6, float64(time.Since(start).Microseconds())/1000, 1)
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

func ids(wcs []verbs.WC) (ids []uint64) {
	for _, wc := range wcs {
		ids = append(ids, wc.ID)
	}
	return ids
}
