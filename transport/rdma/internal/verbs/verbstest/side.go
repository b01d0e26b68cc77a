package verbstest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

const (
	depth     = 16        // of queues, before rounding
	maxInline = 64        // bytes
	memory    = 512 << 10 // bytes on each side: sends from the first half, receives into the second
	allAccess = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
)

// side is one end of a test: an open device with one of everything. The test
// ends by destroying it in order, and fails if that fails.
type side struct {
	t    *testing.T
	rig  Rig
	end  End
	dev  verbs.Device
	port verbs.PortAttr
	gid  verbs.GIDEntry
	pd   verbs.PD
	ch   verbs.CompChannel
	cq   verbs.CQ // of the channel
	mem  []byte
	mr   verbs.MR
	qps  []*qp
	srqs []verbs.SRQ
}

// hold takes the result of a call that makes an object, and undoes it when
// the test ends.
func hold[T any](t *testing.T, undo func(T) error) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() {
			t.Helper()
			require.NoError(t, undo(v))
		})
		return v
	}
}

func open(t *testing.T, rig Rig, end End) *side {
	t.Helper()
	s := &side{t: t, rig: rig, end: end}
	s.mem = hold(t, (*pool.Arena).Close)(pool.NewArena(memory)).Bytes()
	s.dev = hold(t, verbs.Device.Close)(end.Provider.Open(end.Device))
	s.pd = hold(t, verbs.PD.Dealloc)(s.dev.AllocPD())
	s.mr = hold(t, verbs.MR.Deregister)(s.pd.RegisterMR(s.mem, verbs.AccessLocalWrite|allAccess))
	s.ch = hold(t, verbs.CompChannel.Destroy)(s.dev.CreateCompChannel())
	s.cq = hold(t, verbs.CQ.Destroy)(s.dev.CreateCQ(8*depth, s.ch))
	t.Cleanup(func() {
		for _, q := range s.qps {
			require.NoError(t, q.Destroy())
		}
		for _, srq := range s.srqs {
			require.NoError(t, srq.Destroy())
		}
	})
	var err error
	s.port, err = s.dev.QueryPort(end.Port)
	require.NoError(t, err)
	s.findGID()
	return s
}

func openBoth(t *testing.T, rig Rig) (a, b *side) {
	t.Helper()
	return open(t, rig, rig.A), open(t, rig, rig.B)
}

// findGID looks the end's GID up, as RoCE v2.
func (s *side) findGID() {
	s.t.Helper()
	table, err := s.dev.QueryGIDs(s.end.Port)
	require.NoError(s.t, err)
	i := slices.IndexFunc(table, func(g verbs.GIDEntry) bool {
		return g.GID == s.end.GID && g.Type == verbs.GIDRoCEv2
	})
	require.GreaterOrEqual(s.t, i, 0, "%v has no RoCE v2 entry in %v", s.end.GID, table)
	s.gid = table[i]
}

// poll takes what is in the CQ.
func (s *side) poll() []verbs.WC {
	s.t.Helper()
	wcs := make([]verbs.WC, 64)
	n, err := s.cq.Poll(wcs)
	require.NoError(s.t, err)
	return wcs[:n]
}

// wait polls until n completions have come, and finds no more.
func (s *side) wait(n int) []verbs.WC {
	s.t.Helper()
	var got []verbs.WC
	s.until(func() bool {
		got = append(got, s.poll()...)
		return len(got) >= n
	}, "completions")
	require.Len(s.t, got, n, "%v", got)
	return got
}

// waitOK is wait for successes.
func (s *side) waitOK(n int) []verbs.WC {
	s.t.Helper()
	got := s.wait(n)
	for _, wc := range got {
		require.Equal(s.t, verbs.WCSuccess, wc.Status, "WR %d: %v", wc.ID, wc.Status)
	}
	return got
}

// until waits for a condition, and fails at the deadline.
func (s *side) until(ok func() bool, what string) {
	s.t.Helper()
	for end := time.Now().Add(s.rig.Deadline); !ok(); time.Sleep(50 * time.Microsecond) {
		require.True(s.t, time.Now().Before(end), "no %s within %v", what, s.rig.Deadline)
	}
}

// event waits for an asynchronous event of a type.
func (s *side) event(want verbs.EventType) verbs.AsyncEvent {
	s.t.Helper()
	stop := time.AfterFunc(s.rig.Deadline, s.dev.Interrupt)
	defer stop.Stop()
	for {
		e, err := s.dev.AsyncEvent()
		require.NoError(s.t, err, "waiting for %v", want)
		if e.Type == want {
			return e
		}
	}
}

// fill writes a pattern into the first n bytes of the half for sends.
func (s *side) fill(seed byte, n int) []byte {
	for i := range s.mem[:n] {
		s.mem[i] = seed + byte(i*7>>3)
	}
	return s.mem[:n]
}

// landed is where receives go: n bytes at an offset of the second half.
func (s *side) landed(off, n int) []byte { return s.mem[memory/2+off:][:n] }

func (s *side) landing(off int) uint64 { return s.mr.Addr() + memory/2 + uint64(off) }

// ids are the wr_ids of completions, in order.
func ids(wcs []verbs.WC) []uint64 {
	ids := []uint64{}
	for _, wc := range wcs {
		ids = append(ids, wc.ID)
	}
	return ids
}

// span is the numbers from, from+1, … n of them.
func span(from uint64, n int) []uint64 {
	s := []uint64{}
	for i := range n {
		s = append(s, from+uint64(i))
	}
	return s
}
