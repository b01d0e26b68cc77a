package rdma

import (
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport"
)

// stats count what a link did; the flusher and the poller add to them.
type stats struct {
	framesSent, bytesSent, sendBatches, creditStalls  atomic.Uint64 // flusher
	framesReceived, bytesReceived, recvBatches, stale atomic.Uint64 // poller
	completions, recvsPosted, recvPosts               atomic.Uint64 // poller
}

func (s *stats) read() transport.LinkStats {
	return transport.LinkStats{
		FramesSent:     s.framesSent.Load(),
		FramesReceived: s.framesReceived.Load(),
		BytesSent:      s.bytesSent.Load(),
		BytesReceived:  s.bytesReceived.Load(),
		SendBatches:    s.sendBatches.Load(),
		RecvBatches:    s.recvBatches.Load(),
		Completions:    s.completions.Load(),
		RecvsPosted:    s.recvsPosted.Load(),
		RecvPosts:      s.recvPosts.Load(),
		CreditStalls:   s.creditStalls.Load(),
		Stale:          s.stale.Load(),
	}
}

// lives count what became of QPs. Any goroutine may add.
type lives struct {
	made, recycled timed
	destroyed      atomic.Uint64
}

// timed counts what takes a while.
type timed struct{ n, ns atomic.Int64 }

func (t *timed) add(began time.Time) {
	t.n.Add(1)
	t.ns.Add(int64(time.Since(began)))
}

func (t *timed) read() (n uint64, total time.Duration) {
	return uint64(t.n.Load()), time.Duration(t.ns.Load())
}

// Stats is what a fabric holds at one moment, and what it has counted since it
// was made, closed devices included. Total times divided by their counts are
// means.
type Stats struct {
	QPs         int   // that exist
	Pooled      int   // of these, waiting in INIT
	Sharing     int   // of these, with slots that are shared: Config.Dedicated
	PinnedBytes int64 // registered, quarantine included
	SharedBytes int64 // of these, of slots that are shared

	// Queueing are links now with callers for whom no shared send slot is free. Where
	// there are some for long, Config.SharedSlots is too low for the peers that are slow.
	Queueing int

	// Quarantined are QPs that did not drain in time: destroyed as far as the
	// device let them, their memory kept until the device is closed.
	Quarantined      int
	QuarantinedBytes int64

	PoolHits, PoolMisses uint64 // links whose QP came from the warm pool, or was made on the way
	PoolError            error  // of the latest QP for a pool that could not be made; nil if each could

	Made        uint64        // QPs created, with their rings, taken to INIT and given receives, …
	MakeTime    time.Duration // … which took so long in total: the refills of pools, and the misses
	Recycled    uint64        // lives after which a QP went back to the pool, …
	RecycleTime time.Duration // … from before ERR until it was in INIT again
	Destroyed   uint64        // QPs: after 64 lives, a fault, a refusal of RESET, or for lack of room in the pool
	LostDrains  uint64        // QPs that did not drain in time
	Stale       uint64        // completions of QPs or lives that are over, dropped
	RNR         uint64        // sends given up for want of a receive: a fault of ours, credits forbid it
	Naps, Ticks uint64        // sleeps of pollers, and how many the safety tick ended
}

// Stats returns the present statistics.
func (f *Fabric) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.past
	s.LostDrains, s.Stale, s.RNR = f.lost.Load(), f.stale.Load(), f.rnr.Load()
	s.Made, s.MakeTime = f.lives.made.read()
	s.Recycled, s.RecycleTime = f.lives.recycled.read()
	s.Destroyed = f.lives.destroyed.Load()
	for _, d := range f.devices {
		d.addTo(&s)
	}
	return s
}

// leave adds what a closed device has counted.
func (d *device) leave(past *Stats) {
	var s Stats
	d.addTo(&s)
	past.PoolHits += s.PoolHits
	past.PoolMisses += s.PoolMisses
	past.Naps += s.Naps
	past.Ticks += s.Ticks
}

func (d *device) addTo(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.QPs += len(d.endpoints)
	s.Quarantined += len(d.quarantine)
	for _, r := range d.quarantine {
		s.QuarantinedBytes += int64(r.mr.Len())
		s.PinnedBytes += int64(r.mr.Len())
	}
	for ep := range d.endpoints {
		if ep.shares {
			s.Sharing++
		} else {
			s.PinnedBytes += int64(ep.rings.mr.Len())
		}
	}
	for _, w := range d.warm {
		ws := w.Stats()
		s.Pooled += ws.Ready
		s.PoolHits += ws.Hits
		s.PoolMisses += ws.Misses
		if s.PoolError == nil {
			s.PoolError = ws.LastError
		}
	}
	for _, p := range d.pollers {
		if recvs := p.shared.Load(); recvs != nil {
			shared := recvs.chunks.pinned.Load() + p.sends.chunks.pinned.Load()
			s.SharedBytes += shared
			s.PinnedBytes += shared
			s.Queueing += int(p.sends.waiting.Load())
		}
		s.Naps += p.naps.Load()
		s.Ticks += p.ticks.Load()
	}
}
