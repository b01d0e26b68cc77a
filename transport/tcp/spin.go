package tcp

import (
	"runtime"
	"time"
)

const (
	// spinTime is for how long a helper looks again whether something has come
	// before he sleeps: longer than a peer takes that is awake and answers at once.
	// To be woken takes two switches, and an interrupt where the processor sleeps
	// too, on either side.
	spinTime = 50 * time.Microsecond

	// yieldEvery bounds how long helpers who never sleep keep a P from other
	// goroutines.
	yieldEvery = 500 * time.Microsecond
)

// spin says whether it is worth to look again. After a time in vain it is not for
// twice as many waits as the time before, up to maxDecline, so that a peer which is
// slow, or has no processor while one here is kept busy, costs next to nothing.
type spin struct {
	skip    int // waits without
	decline int // how many there were after the last time in vain; 0: that was not
	yielded time.Time
}

// begin says whether to look again before this wait.
func (s *spin) begin() bool {
	if s.skip > 0 {
		s.skip--
		return false
	}
	return true
}

// while calls look until that finds something, or it was in vain.
func (s *spin) while(look func() bool) (found bool) {
	start := time.Now()
	if start.Sub(s.yielded) > yieldEvery {
		s.yielded = start
		runtime.Gosched()
	}
	for found = look(); !found && time.Since(start) < spinTime; {
		found = look()
	}
	s.decline = min(2*s.decline+1, maxDecline)
	if found {
		s.decline = 0
	}
	s.skip = s.decline
	return found
}
