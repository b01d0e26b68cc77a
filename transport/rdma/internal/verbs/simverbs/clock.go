package simverbs

import (
	"container/heap"
	"time"
)

// clock runs functions later, under the fabric's lock, in the order of their
// times and for equal times in the order they were given. One timer serves
// all; when nothing is due there is none, and no goroutine ever.
type clock struct {
	due   dueHeap
	seq   uint64
	timer *time.Timer
	wake  time.Time // when timer fires, if it is set
}

type dueCall struct {
	at  time.Time
	seq uint64
	run func()
}

type dueHeap []dueCall

func (h dueHeap) Len() int      { return len(h) }
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h dueHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h *dueHeap) Push(x any) { *h = append(*h, x.(dueCall)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = dueCall{}
	*h = old[:len(old)-1]
	return last
}

// after runs fn under f.mu once d has passed. f.mu is held.
func (f *Fabric) after(d time.Duration, fn func()) {
	c := &f.clock
	c.seq++
	heap.Push(&c.due, dueCall{at: time.Now().Add(d), seq: c.seq, run: fn})
	f.setTimer()
}

// setTimer makes the timer fire for the first due call. f.mu is held.
func (f *Fabric) setTimer() {
	c := &f.clock
	if len(c.due) == 0 {
		return
	}
	first := c.due[0].at
	switch {
	case c.timer == nil:
		c.timer = time.AfterFunc(time.Until(first), f.tick)
	case c.wake.IsZero() || first.Before(c.wake):
		c.timer.Reset(time.Until(first))
	default:
		return
	}
	c.wake = first
}

func (f *Fabric) tick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.clock
	c.wake = time.Time{}
	for now := time.Now(); len(c.due) > 0 && !c.due[0].at.After(now); {
		heap.Pop(&c.due).(dueCall).run()
	}
	f.setTimer()
}
