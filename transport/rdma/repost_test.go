package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// A few receives wait until there are more, or the poller's goroutine finds nothing
// else to do; those of a link that died meanwhile stay as they are (case 7).
func TestFewReceivesWait(t *testing.T) {
	l, cq, _ := nullLink(t)
	l.receiver = &nullPeer{link: l, late: true}
	r, p := &l.ep.recv, l.ep.poller
	some := enough(len(r.all))
	call := wire.Header{Kind: wire.Call, Flags: wire.End, Epoch: 1, Length: 64, Total: 64, Lane: transport.LaneID}
	next := 0
	arrive := func() {
		call.Put(r.mem[next])
		cq.wcs = []verbs.WC{{ID: r.all[next].ID, ByteLen: wire.HeaderSize + 64}}
		next++
		require.Equal(t, 1, p.poll())
	}
	posted := func(posts, receives int) {
		t.Helper()
		s := l.stats.read()
		require.EqualValues(t, []int{posts, receives}, []int{int(s.RecvPosts), int(s.RecvsPosted)})
		require.Equal(t, len(r.all)-next+receives, r.outstanding)
	}
	for range some - 1 {
		arrive()
	}
	posted(0, 0)
	p.poll()
	posted(0, 0) // a caller who polls in vain waits for a reply
	arrive()
	posted(1, some)
	for range 3 {
		arrive()
	}
	posted(1, some)
	p.round()
	posted(2, some+3)
	p.round()
	posted(2, some+3)
	arrive()
	p.round()
	posted(3, some+4)
	arrive()
	l.died.Store(&cause{})
	p.round()
	posted(3, some+4)
	require.Empty(t, p.owing)
}

// nullSRQ takes receives.
type nullSRQ struct{ verbs.SRQ }

func (nullSRQ) PostRecv(wrs []verbs.RecvWR) (int, error) { return len(wrs), nil }

// So it is with shared receives, also those that frames of nobody used.
func TestFewSharedReceivesWait(t *testing.T) {
	l, cq, _ := nullLink(t)
	p := l.ep.poller
	p.dev.fabric = &Fabric{}
	const slots = 64
	s := &sharedRecvs{dev: p.dev, turn: &p.turn, srq: nullSRQ{}, owners: map[uint32]*endpoint{}}
	s.add(make([]byte, slots*512), 0, 1, slots, 512, wrid.Make(wrid.Shared, 0, 0, 0))
	_, err := s.post(s.srq)
	require.NoError(t, err)
	p.shared.Store(s)
	next := 0
	arrive := func() {
		cq.wcs = []verbs.WC{{ID: s.all[next].ID, ByteLen: 8}}
		next++
		require.Equal(t, 1, p.poll())
	}
	for n := range enough(slots) - 1 {
		arrive()
		require.Equal(t, slots-n-1, s.outstanding)
	}
	p.poll()
	require.Equal(t, slots-enough(slots)+1, s.outstanding, "a caller who polls in vain waits for a reply")
	arrive()
	require.Equal(t, slots, s.outstanding)
	arrive()
	require.Equal(t, slots-1, s.outstanding)
	p.round()
	require.Equal(t, slots, s.outstanding)
}

// Where few receives are posted none waits: a peer that counts on them would.
func TestAllReceivesOfAShortQueue(t *testing.T) {
	for depth := 8; depth <= 1024; depth++ {
		held := enough(depth) - 1
		unsaid := depth/2 - 1 // posted, and no CREDIT is due for them
		require.Greater(t, depth-unsaid-held, 4, "a frame of a lane may leave, whatever waits here, of %d", depth)
	}
}
