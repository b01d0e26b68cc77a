package rdma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// lone shares from the second link on.
func lone() Config {
	cfg := sharing
	cfg.Dedicated = 1
	return cfg
}

// deviceOf is the only device of a fabric.
func deviceOf(f *Fabric) *device {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.devices {
		return d
	}
	return nil
}

// The CQ breaks while the first endpoint that shares is made, for which the device
// makes a shared queue: the poller waits for nobody, and the device is opened anew.
func TestPollFailsWhileSharingBegins(t *testing.T) {
	checkLeaks(t)
	sim, ends := simEnds(t, simverbs.Config{})
	h := &hooks{Provider: ends[0].provider}
	ends[0].provider = h
	fabrics, links := pair(t, ends, lone())
	s := newSink()
	links[0].Start(s)
	d := deviceOf(fabrics[0])
	h.createSRQ = func() {
		h.createSRQ = nil
		p := d.pollers[0]
		sim.BreakCQs("a", "sim0")
		p.ch.Wake()
		for d.broken() == nil {
			time.Sleep(time.Millisecond)
		}
		p.sync()
	}
	within(t, "the second link", func() {
		if half, err := fabrics[0].Prepare(context.Background(), ends[0].addr); err == nil {
			half.Abort()
		}
	})
	var event *EventError
	require.ErrorAs(t, ended(t, links[0], s), &event)
	links[1].Close(nil)
	var made [2]transport.Link
	within(t, "a link of the device that was opened anew", func() {
		var err error
		made, err = join(context.Background(), fabrics, ends)
		require.NoError(t, err)
	})
	exchange(t, made)
}

// A handler on the poller asks for statistics meanwhile.
func TestStatsOnPollerWhileSharingBegins(t *testing.T) {
	checkLeaks(t)
	_, ends := simEnds(t, simverbs.Config{})
	h := &hooks{Provider: ends[0].provider}
	ends[0].provider = h
	fabrics, links := pair(t, ends, lone())
	s := newSink()
	asking := make(chan struct{})
	s.onFrame = func(*wire.Header, []byte) error {
		close(asking)
		require.Zero(t, fabrics[0].Stats().LostDrains)
		return nil
	}
	links[0].Start(s)
	h.createSRQ = func() {
		require.NoError(t, send(links[1], 1, 8))
		<-asking
	}
	within(t, "the second link", func() {
		half, err := fabrics[0].Prepare(context.Background(), ends[0].addr)
		require.NoError(t, err)
		half.Abort()
	})
}
