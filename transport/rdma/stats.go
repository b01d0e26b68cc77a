package rdma

import (
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
)

// stats count what a link did; the flusher and the poller add to them.
type stats struct {
	framesSent, bytesSent, sendBatches, creditStalls  atomic.Uint64 // flusher
	framesReceived, bytesReceived, recvBatches, stale atomic.Uint64 // poller
}

func (s *stats) read() transport.LinkStats {
	return transport.LinkStats{
		FramesSent:     s.framesSent.Load(),
		FramesReceived: s.framesReceived.Load(),
		BytesSent:      s.bytesSent.Load(),
		BytesReceived:  s.bytesReceived.Load(),
		SendBatches:    s.sendBatches.Load(),
		RecvBatches:    s.recvBatches.Load(),
		CreditStalls:   s.creditStalls.Load(),
		Stale:          s.stale.Load(),
	}
}

// Stats is what a fabric holds at one moment, and what it has counted.
type Stats struct {
	QPs         int   // that exist
	Pooled      int   // of these, waiting in INIT
	Quarantined int   // rings kept aside after a drain that took too long
	PinnedBytes int64 // registered, quarantine included

	PoolHits, PoolMisses uint64 // QPs taken from the warm pool, or made on the spot
	LostDrains           uint64 // QPs that did not drain in time
	Stale                uint64 // completions of QPs or lives that are over, dropped
	RNR                  uint64 // sends that found no receive: a fault of ours, credits forbid it
	Naps, Ticks          uint64 // sleeps of pollers, and how many the safety tick ended
}

// Stats returns the present statistics.
func (f *Fabric) Stats() Stats {
	s := Stats{LostDrains: f.lost.Load(), Stale: f.stale.Load(), RNR: f.rnr.Load()}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.devices {
		d.addTo(&s)
	}
	return s
}

func (d *device) addTo(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.QPs += len(d.endpoints)
	s.Quarantined += len(d.quarantine)
	s.PinnedBytes += int64(len(d.endpoints)+len(d.quarantine)) * int64(d.cfg.depth()*d.cfg.SlotSize)
	for _, w := range d.warm {
		ws := w.Stats()
		s.Pooled += ws.Ready
		s.PoolHits += ws.Hits
		s.PoolMisses += ws.Misses
	}
	for _, p := range d.pollers {
		s.Naps += p.naps.Load()
		s.Ticks += p.ticks.Load()
	}
}
