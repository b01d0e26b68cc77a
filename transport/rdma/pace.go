package rdma

import "time"

// action is what a poller does after a poll that brought nothing.
type action uint8

const (
	again action = iota // poll
	yield               // let other goroutines run, then poll
	sleep               // arm, poll again, wait for an event
)

const (
	// yieldEvery bounds how long a spinning poller keeps its P from others.
	// Without yields a 1 ms sleeper at GOMAXPROCS=1 ran 19 ms late.
	yieldEvery = 500 * time.Microsecond

	// clockEvery is how many empty polls pass between looks at the clock.
	clockEvery = 16

	// safetyTick bounds a sleep while something is outstanding, for devices
	// that lose an arm (case 35). While nothing happens it doubles up to
	// idleTick: such a loss delays by no more than the time that was quiet.
	safetyTick = 10 * time.Millisecond
	idleTick   = time.Second
)

// pace decides when a poller spins, yields and sleeps. It is a pure core:
// times are given, from any fixed start.
type pace struct {
	spin  time.Duration // since the last completion; negative: for ever
	last  time.Duration // of the last completion, or of the end of a sleep
	ran   time.Duration // when others could run last
	empty int           // polls without a completion, since the clock was read
	tick  time.Duration // bounds the next sleep
}

func newPace(mode PollMode, spin time.Duration) pace {
	switch mode {
	case EventsOnly:
		spin = 0
	case Busy:
		spin = -1
	}
	return pace{spin: spin, tick: safetyTick}
}

// nothing says what to do after an empty poll. Without a connected link there is
// nothing to spin for. The clock is read seldom.
func (p *pace) nothing(links bool, clock func() time.Duration) action {
	if p.spin == 0 || !links {
		return sleep
	}
	if p.empty++; p.empty < clockEvery {
		return again
	}
	p.empty = 0
	now := clock()
	switch {
	case p.last == 0:
		p.last, p.ran = now, now
		return again
	case p.spin > 0 && now-p.last >= p.spin:
		return sleep
	case now-p.ran >= yieldEvery:
		p.ran = now
		return yield
	}
	return again
}

// worked says that something happened, and that others could run since.
func (p *pace) worked() { p.last, p.empty, p.tick = 0, 0, safetyTick }

// quiet says that nothing happened during a sleep.
func (p *pace) quiet() { p.tick = min(2*p.tick, idleTick) }

// untilWhole is the time until the clock shows a multiple of d. What wakes an idle
// process each d does so then, together: to wake costs more than what is done.
func untilWhole(d time.Duration) time.Duration {
	return d - time.Duration(time.Now().UnixNano())%d
}
