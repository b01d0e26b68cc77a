package pool

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The pace of refills under any order of draws, returns, successes and
// failures: never more items than the size, never faster than the rate, and
// never faster than the back-off after failures.
func TestPaceHoldsRateAndSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := pace{
			size:     rapid.IntRange(0, 5).Draw(t, "size"),
			interval: time.Duration(rapid.IntRange(0, 50).Draw(t, "interval")) * time.Millisecond,
		}
		var (
			ready, failures int
			now             time.Duration
			lastStart       = -p.interval
			earliest        time.Duration // after a failure
		)
		t.Repeat(map[string]func(*rapid.T){
			"tick": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 6000).Draw(t, "ms")) * time.Millisecond
			},
			"wait and begin": func(t *rapid.T) {
				if p.making > 0 || p.room(ready) == 0 {
					t.Skip("none wanted")
				}
				now += p.wait(now)
				if now-lastStart < p.interval || now < earliest {
					t.Fatalf("started at %v: the last at %v, not before %v", now, lastStart, earliest)
				}
				p.begin(now)
				lastStart = now
			},
			"end": func(t *rapid.T) {
				if p.making == 0 {
					t.Skip("none made")
				}
				ok := rapid.Bool().Draw(t, "ok")
				p.end(now, ok)
				if ok {
					ready++
					failures = 0
					return
				}
				backoff := minBackoff
				for range failures {
					backoff = min(2*backoff, maxBackoff)
				}
				failures++
				earliest = now + backoff
			},
			"draw": func(t *rapid.T) {
				if ready == 0 {
					t.Skip("empty")
				}
				ready--
			},
			"put": func(t *rapid.T) {
				if p.room(ready) == 0 {
					t.Skip("full")
				}
				ready++
			},
			"": func(t *rapid.T) {
				if ready+p.making > p.size {
					t.Fatalf("%d ready and %d being made, size %d", ready, p.making, p.size)
				}
				if w := p.wait(now); w < 0 || w > max(p.interval, maxBackoff) {
					t.Fatalf("waits %v", w)
				}
			},
		})
	})
}

func TestPaceBackoffDoublesToItsCap(t *testing.T) {
	p := pace{size: 1}
	var got []time.Duration
	for range 12 {
		p.begin(0)
		p.next = 0
		p.end(0, false)
		got = append(got, p.wait(0)/time.Millisecond)
	}
	require.Equal(t, []time.Duration{10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000}, got)
	p.begin(0)
	p.next = 0
	p.end(0, true)
	p.end(0, false)
	require.Equal(t, minBackoff, p.wait(0), "a success starts over")
}
