package simverbs

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// TestAbandoned: a life counts that ends before its work has completed and the
// completions have been polled, and no other.
func TestAbandoned(t *testing.T) {
	toErr := &verbs.QPAttr{State: verbs.Err}
	toReset := &verbs.QPAttr{State: verbs.Reset}
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		a.recv(1, 8)
		require.NoError(t, a.qp.Modify(toErr, verbs.AttrState))
		a.wait(1)
		require.NoError(t, a.qp.Modify(toReset, verbs.AttrState))
		require.Zero(t, f.Stats().Abandoned)

		b.recv(2, 8)
		require.NoError(t, b.qp.Modify(toErr, verbs.AttrState))
		require.NoError(t, b.qp.Modify(toReset, verbs.AttrState))
		require.EqualValues(t, 1, f.Stats().Abandoned, "a completion was not polled")

		a, _ = pair(t, f, 8)
		a.recv(1, 8)
		require.NoError(t, a.qp.Modify(toReset, verbs.AttrState))
		require.EqualValues(t, 2, f.Stats().Abandoned, "a receive had no completion")
	})
}

// TestFailQPs: those that are meant go to ERR and say so.
func TestFailQPs(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		a.recv(1, 8)
		f.FailQPs("a", "sim0", func(qpn uint32) bool { return qpn == a.qp.Num() })
		e, err := a.dev.AsyncEvent()
		require.NoError(t, err)
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QPNum: a.qp.Num()}, e)
		require.Equal(t, verbs.WCWRFlushErr, a.wait(1)[0].Status)
		attr, err := b.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.RTS, attr.State)

		f.FailCQs("b", "sim0")
		e, err = b.dev.AsyncEvent()
		require.NoError(t, err)
		require.Equal(t, verbs.EventCQErr, e.Type)
		require.Equal(t, verbs.CQ(b.cq), e.CQ)
	})
}

// TestRevived: a device that died works again, for those who open it and those
// who have it open.
func TestRevived(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, _ := pair(t, f, 8)
		f.KillDevice("a", "sim0")
		_, err := a.dev.QueryPort(1)
		require.Error(t, err)
		f.ReviveDevice("a", "sim0")
		_, err = a.dev.QueryPort(1)
		require.NoError(t, err)
		again, err := f.Provider("a").Open("sim0")
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}

// TestPacketInAnothersPlace: another message arrives in the place of one, which counts as
// arrived (case 9).
func TestPacketInAnothersPlace(t *testing.T) {
	stale := true
	cfg := Config{Faults: Faults{OnPacket: func(p Packet, _ *rand.Rand) (v Verdict) {
		if stale && !p.Answer {
			stale = false
			v.Stale = []byte("old")
		}
		return v
	}}}
	inBubble(t, cfg, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		b.recv(1, 8)
		b.recv(2, 8)
		a.send(3, 8)
		require.Equal(t, verbs.WCSuccess, a.wait(1)[0].Status)
		require.EqualValues(t, 3, b.wait(1)[0].ByteLen)
		require.Equal(t, "old", string(b.mem[:3]))
		a.send(4, 8)
		require.EqualValues(t, 8, b.wait(1)[0].ByteLen)
	})
}
