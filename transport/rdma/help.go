package rdma

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport"
)

const (
	// helpPolls is how many polls a caller makes before it looks at the clock.
	helpPolls = 16

	// helpTime bounds one call of Help where pollers are busy, so that its
	// caller can look whether it still wants to wait.
	helpTime = yieldEvery

	// restTime is how long the goroutine of a poller leaves the CQ to callers
	// before it looks again: a caller that comes and goes does not wake it.
	restTime = 100 * time.Microsecond
)

// Help polls for a caller who waits. See transport.Helper.
func (l *link) Help(done *transport.Signal, waiting *atomic.Int32) bool {
	p := l.ep.poller
	limit := helpTime
	switch p.dev.cfg.Poll {
	case EventsOnly:
		return false
	case Adaptive:
		limit = p.dev.cfg.Spin
	}
	p.helpers.Add(1)
	defer func() {
		if p.helpers.Add(-1) == 0 && (!done.IsSet() || waiting.Load() > 1) {
			p.resume()
		}
	}()
	for start := time.Now(); ; {
		if l.dead() != nil || p.hasWork.Load() {
			return false
		}
		turns := 0
		for range helpPolls {
			if p.turn.TryLock() {
				if !p.stopped { // else the CQ may be gone
					p.poll()
				}
				p.turn.Unlock()
				turns++
			}
			if done.IsSet() {
				return true
			}
		}
		if turns == 0 {
			runtime.Gosched() // who has the turn may wait for this processor
		}
		if time.Since(start) > limit {
			runtime.Gosched()
			return p.dev.cfg.Poll == Busy
		}
	}
}

// rest leaves the CQ to the callers who poll, while nobody else waits.
func (p *poller) rest() {
	p.resting.Reset(restTime)
	select {
	case <-p.vacant:
		p.resting.Stop()
	case <-p.resting.C:
	}
}

// resume ends a rest.
func (p *poller) resume() {
	select {
	case p.vacant <- struct{}{}:
	default:
	}
}
