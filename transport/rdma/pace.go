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

	// safetyTick bounds a sleep, for devices that lose an arm (case 35).
	safetyTick = 10 * time.Millisecond
)

// pace decides when a poller spins, yields and sleeps. It is a pure core:
// times are given, from any fixed start.
type pace struct {
	spin  time.Duration // since the last completion; negative: for ever
	last  time.Duration // of the last completion, or of the end of a sleep
	ran   time.Duration // when others could run last
	empty int           // polls without a completion, since the clock was read
}

func newPace(mode PollMode, spin time.Duration) pace {
	switch mode {
	case EventsOnly:
		spin = 0
	case Busy:
		spin = -1
	}
	return pace{spin: spin}
}

// nothing says what to do after an empty poll. The clock is read seldom.
func (p *pace) nothing(clock func() time.Duration) action {
	if p.spin == 0 {
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

// worked says that something was polled, and that others could run since.
func (p *pace) worked() { p.last, p.empty = 0, 0 }
