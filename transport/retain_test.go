package transport_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestRetentionWaits: to a peer that takes everything in and acknowledges
// nothing, a lane that can move sends as much as it may keep; the next sender
// waits, in its own time, until something is acknowledged.
func TestRetentionWaits(t *testing.T) {
	n := overTCP()
	n.Fabric = &fabric{m: newMemory()}
	n.Config.Retain = 5 << 20
	l := serve(t, n)
	c := rawDial(t, n.Carrier, l.addr)
	c.hello(wire.FeatureFastLink)
	c.lane(wire.Header{Kind: wire.Call, Call: 1}, nil) // acknowledges nothing
	s := within(t, l.sessions)
	within(t, s.sink.messages)

	const size = 60 << 10
	reply := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return s.Lane().Send(ctx, wire.Header{Kind: wire.Reply, Call: 1}, make([]byte, size))
	}
	sent := 0
	for ; reply() == nil; sent++ {
		require.Equal(t, wire.Reply, c.next().h.Kind)
	}
	require.Equal(t, (5<<20)/2/size, sent, "half is for whole messages")
	require.ErrorIs(t, reply(), context.DeadlineExceeded)
	require.Equal(t, transport.Retention{Frames: sent, Bytes: sent * size}, s.Transport().Retention)

	c.lane(wire.Header{Kind: wire.Cancel, Call: 1}, nil) // acknowledges all
	within(t, s.sink.messages)
	require.NoError(t, reply())
	require.Equal(t, 1, s.Transport().Retention.Frames)
	c.link.Close(nil)
	within(t, s.Done())
}
