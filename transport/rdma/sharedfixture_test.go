package rdma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
)

// sharing is small with few receives for all.
var sharing = Config{SQDepth: 16, RQDepth: 8, SlotSize: 512, Warm: -1, Dedicated: -1, SharedSlots: 32, Poll: EventsOnly}

// duo is a link with both its receivers.
type duo struct {
	links [2]transport.Link
	sinks [2]*sink
	sent  int
}

func newDuo(t *testing.T, fabrics [2]*Fabric, ends [2]end) *duo {
	t.Helper()
	links, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	d := &duo{links: links, sinks: [2]*sink{newSink(), newSink()}}
	for i, l := range links {
		l.Start(d.sinks[i])
	}
	return d
}

// talk requires that frames pass both ways, each once.
func (d *duo) talk(t *testing.T) {
	t.Helper()
	for range 20 {
		for _, l := range d.links {
			require.NoError(t, send(l, d.sent, 8))
		}
		d.sent++
	}
	for _, s := range d.sinks {
		s.await(t, d.sent)
		for i, b := range s.got {
			require.NoError(t, checkFill(b, i))
		}
	}
}

func (d *duo) close() {
	for _, l := range d.links {
		l.Close(nil)
	}
	for _, l := range d.links {
		<-l.Done()
	}
}

// freeSends is how many of the send slots are free.
func freeSends(s *sharedSends) int {
	var free []uint32
	for slot, ok := s.free.Pop(); ok; slot, ok = s.free.Pop() {
		free = append(free, slot)
	}
	for _, slot := range free {
		s.free.Push(slot)
	}
	s.serve()
	return len(free)
}

// complete requires that each slot of the pools is posted, or free.
func complete(t *testing.T, fabrics [2]*Fabric) {
	t.Helper()
	for _, f := range fabrics {
		for _, d := range f.devices {
			for _, p := range d.pollers {
				shared := p.shared.Load()
				if shared == nil {
					continue
				}
				settles(t, shared.slots, func() int {
					p.turn.Lock()
					defer p.turn.Unlock()
					return shared.outstanding
				}, "slots posted")
				settles(t, p.sends.n, func() int { return freeSends(p.sends) }, "send slots free")
				require.EqualValues(t, p.sends.n/2, p.sends.above.Load(), "of these, beyond half")
				p.turn.Lock()
				own := len(shared.owners)
				p.turn.Unlock()
				d.mu.Lock()
				require.LessOrEqual(t, own, len(d.endpoints))
				d.mu.Unlock()
			}
		}
	}
}

// settles requires a count to come to be what it should: the last completions may be on
// their way, and few receives wait until the poller has nothing else to do.
func settles(t *testing.T, want int, count func() int, what string) {
	t.Helper()
	n := count()
	for range 1000 {
		if n == want {
			break
		}
		time.Sleep(time.Millisecond)
		n = count()
	}
	require.Equal(t, want, n, what)
}
