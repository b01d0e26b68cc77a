package rdma

import (
	"fmt"
	"sync"
	"time"
)

// Limits of a breaker.
const (
	breakerFaults   = 5                // that open it …
	breakerWindow   = 10 * time.Second // … within this time
	breakerPause    = 30 * time.Second // first pause; each in a row doubles it
	breakerMaxPause = 16 * time.Minute
)

// breaker says when a device is better left alone: faults recur on each link
// that is made over it, and each costs a handshake and the QPs of two sides
// (case 8). It opens at the fifth fault in 10 s. After the pause it is on
// probation for as long again: one fault opens it for twice the time, none
// closes it for good.
//
// It is a pure core: times are given, from any fixed start, and do not go back.
type breaker struct {
	recent []time.Duration // faults in the window, oldest first
	pause  time.Duration   // the last one; 0: none, or it is forgotten
	until  time.Duration   // the end of that pause
}

// fault takes in a fault at a time. Those of links that were still alive when
// it opened change nothing.
func (b *breaker) fault(now time.Duration) {
	if b.left(now) > 0 {
		return
	}
	if b.pause > 0 && now >= b.until+b.pause {
		b.pause = 0
	}
	if b.pause > 0 {
		b.open(now, min(2*b.pause, breakerMaxPause))
		return
	}
	for len(b.recent) > 0 && b.recent[0] <= now-breakerWindow {
		b.recent = b.recent[1:]
	}
	if b.recent = append(b.recent, now); len(b.recent) == breakerFaults {
		b.open(now, breakerPause)
	}
}

func (b *breaker) open(now, pause time.Duration) {
	b.pause, b.until, b.recent = pause, now+pause, nil
}

// left is how long it stays open; 0: links may be made.
func (b *breaker) left(now time.Duration) time.Duration { return max(0, b.until-now) }

// breakers are those of a fabric's devices, by name: a device that is opened
// again is not trusted anew. Any goroutine may call them.
type breakers struct {
	start time.Time

	mu       sync.Mutex
	byDevice map[string]*deviceBreaker
}

type deviceBreaker struct {
	breaker
	last error // fault
}

func newBreakers() breakers {
	return breakers{start: time.Now(), byDevice: map[string]*deviceBreaker{}}
}

// note takes in why a link over a device ended.
func (b *breakers) note(device string, err error) {
	if ClassOf(err) == Fault {
		b.fault(device, err)
	}
}

// fault takes in a fault of a device.
func (b *breakers) fault(device string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.byDevice[device]
	if d == nil {
		d = &deviceBreaker{}
		b.byDevice[device] = d
	}
	d.last = err
	d.fault(time.Since(b.start))
}

// check returns a *BreakerError while links over a device are not to be made.
func (b *breakers) check(device string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.byDevice[device]; d != nil {
		if left := d.left(time.Since(b.start)); left > 0 {
			return &BreakerError{Device: device, Left: left, Err: d.last}
		}
	}
	return nil
}

// BreakerError says that a device is left alone because its links kept failing
// by faults of one of the sides, or the device itself. It unwraps to the last of them.
type BreakerError struct {
	Device string
	Left   time.Duration // until links are tried again
	Err    error
}

func (e *BreakerError) Error() string {
	return fmt.Sprintf("rdma: %s: no new link for %v after %d faults within %v, the last: %v",
		e.Device, e.Left.Round(time.Millisecond), breakerFaults, breakerWindow, e.Err)
}

// Unwrap returns the last fault.
func (e *BreakerError) Unwrap() error { return e.Err }
