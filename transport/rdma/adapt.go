package rdma

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/qpstate"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Bounds of what adapts.
const (
	// minTimeout is 16.8 ms. rxe takes 5 to 8 ms for a retry whatever was asked
	// for (Linux 6.1), and hosts that are busy answer late.
	minTimeout = 12

	// maxTimeout is 0.54 s.
	maxTimeout = 17

	// minRetries of a path whose timeout is long. At most it has those of
	// qpstate.DefaultRetryCnt: 7 means for ever on rxe.
	minRetries = 3

	// patience is about how long a QP goes on in vain: as with the defaults.
	patience = 470 * time.Millisecond
)

// timeoutOf is the time that a code stands for: 4.096 µs * 2^code (InfiniBand
// Architecture Specification, volume 1, section 9.7.6.1.3).
func timeoutOf(code uint8) time.Duration { return 4096 * time.Nanosecond << code }

// adapt chooses timeout and retry count of the next QP on a path from the
// times that sends took to be acknowledged on earlier ones. It estimates as TCP
// does (RFC 6298) over the median of three samples: one that contains a
// retransmission must not count. It is a pure core.
type adapt struct {
	last         [3]time.Duration
	n            int
	srtt, rttvar time.Duration
}

func (a *adapt) sample(rtt time.Duration) {
	a.last[a.n%3] = rtt
	if a.n++; a.n < 3 {
		return
	}
	x, y, z := a.last[0], a.last[1], a.last[2]
	mid := max(min(x, y), min(max(x, y), z))
	if a.n == 3 {
		a.srtt, a.rttvar = mid, mid/2
		return
	}
	a.rttvar += (max(mid-a.srtt, a.srtt-mid) - a.rttvar) / 4
	a.srtt += (mid - a.srtt) / 8
}

// timing is the timeout code and the retry count for the next QP; the defaults
// while too little is known.
func (a *adapt) timing() (timeout, retries uint8) {
	if a.n < 3 {
		return qpstate.DefaultTimeout, qpstate.DefaultRetryCnt
	}
	timeout = minTimeout
	for timeout < maxTimeout && timeoutOf(timeout) < a.srtt+4*a.rttvar {
		timeout++
	}
	tries := (patience + timeoutOf(timeout) - 1) / timeoutOf(timeout)
	return timeout, uint8(min(max(tries-1, minRetries), qpstate.DefaultRetryCnt))
}

// path is what is known of the way from a port to a peer's.
type path struct {
	mu sync.Mutex
	adapt
}

func (p *path) add(rtt time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sample(rtt)
}

func (p *path) next() (timeout, retries uint8) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.timing()
}

// maxPaths bounds what a fabric remembers. Beyond it any path is forgotten.
const maxPaths = 4096

// paths are those of a fabric. Any goroutine may call them.
type paths struct {
	mu sync.Mutex
	by map[pathKey]*path
}

type pathKey struct {
	device string
	port   uint8
	peer   verbs.GID
}

func (p *paths) to(k pathKey) *path {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.by[k]; found != nil {
		return found
	}
	for old := range p.by {
		if len(p.by) < maxPaths {
			break
		}
		delete(p.by, old)
	}
	if p.by == nil {
		p.by = map[pathKey]*path{}
	}
	p.by[k] = &path{}
	return p.by[k]
}

// probeEvery is how many posts pass between two that are timed.
const probeEvery = 16

// probe times a post now and then until it has completed. The flusher posts,
// the poller completes; a probe without a path does nothing.
type probe struct {
	path     *path
	posts    int           // flusher's, since the last one that was timed
	position atomic.Uint32 // of what is timed; valid while at is set
	at       atomic.Int64  // UnixNano of the post, 0: none is timed
}

func (p *probe) posted(position uint32) {
	if p.path == nil {
		return
	}
	if p.posts++; p.posts < probeEvery || p.at.Load() != 0 {
		return
	}
	p.posts = 0
	p.position.Store(position)
	p.at.Store(time.Now().UnixNano())
}

// completed takes in that everything up to a position has completed.
func (p *probe) completed(position uint32) {
	if p.path == nil {
		return
	}
	if at := p.at.Load(); at != 0 && int32(position-p.position.Load()) >= 0 {
		p.path.add(max(0, time.Duration(time.Now().UnixNano()-at)))
		p.at.Store(0)
	}
}
