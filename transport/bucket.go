package transport

import "time"

// Frames of the session itself that a peer may send: far above what set-up
// and keepalive need, far below what would cost something.
const (
	floodRate  = 64   // a second
	floodBurst = 128  // at once
	floodLimit = 4096 // beyond the rate before the link is closed
)

// bucket limits the rate of something. It is a pure core; the zero value is full.
type bucket struct {
	used float64 // tokens
	last time.Time
	over int // refusals since the bucket was last half empty
}

// take takes a token if there is one.
func (b *bucket) take(now time.Time) bool {
	if !b.last.IsZero() {
		b.used = max(0, b.used-floodRate*now.Sub(b.last).Seconds())
	}
	b.last = now
	if b.used <= floodBurst/2 {
		b.over = 0
	}
	if b.used+1 > floodBurst {
		b.over++
		return false
	}
	b.used++
	return true
}

// drowned says that the peer does not mean to stop.
func (b *bucket) drowned() bool { return b.over > floodLimit }
