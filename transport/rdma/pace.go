package rdma

import "time"

// action is what a poller does after a turn that brought nothing.
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

	// pollsPerTurn is how many polls a spinning poller makes before it looks at
	// anything else: the clock, other work, callers who would poll.
	pollsPerTurn = 16

	// safetyTick bounds a sleep while something is outstanding, for devices
	// that lose an arm (case 35). While nothing happens it doubles up to
	// idleTick: such a loss delays by no more than the time that was quiet.
	safetyTick = 10 * time.Millisecond
	idleTick   = time.Second
)

// pace decides when a poller spins, yields and sleeps. It is a pure core:
// times are given, from any fixed start.
type pace struct {
	spin time.Duration // since the last completion; negative: for ever
	last time.Duration // of the last completion, or of the end of a sleep
	ran  time.Duration // when others could run last
	tick time.Duration // bounds the next sleep
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

// polls is how many polls the next turn makes while they bring nothing.
// Without a connected link there is nothing to spin for.
func (p *pace) polls(links bool) int {
	if p.spin == 0 || !links {
		return 1
	}
	return pollsPerTurn
}

// nothing says what to do after a turn that brought nothing.
func (p *pace) nothing(links bool, clock func() time.Duration) action {
	if p.spin == 0 || !links {
		return sleep
	}
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
func (p *pace) worked() { p.last, p.tick = 0, safetyTick }

// quiet says that nothing happened during a sleep.
func (p *pace) quiet() { p.tick = min(2*p.tick, idleTick) }
