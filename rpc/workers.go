package rpc

import (
	"sync"
	"time"
)

// idleTime is how long a worker waits for work before it ends: long enough to
// outlast the gaps of steady traffic, short enough to return the stacks of a burst.
const idleTime = time.Second

// workers runs tasks on goroutines that it keeps. A new goroutine per task
// would grow its stack anew each time; a channel for all would be a lock that
// all wait for.
//
// At most limit tasks run at once, at most queueLimit wait, in order. All
// methods may be called from any goroutine and do not wait.
type workers struct {
	limit, queueLimit int

	mu      sync.Mutex
	queue   fifo[task]
	idle    []*worker // the last to be idle is at the end and the first to run
	low     int       // fewest idle workers since the last trim
	trimmer *time.Timer
	running int // workers, idle ones included
	closed  bool
}

type task interface{ run() }

// worker is a goroutine that runs tasks. Whoever takes it from the idle stack
// sends it one task, or nil to end it.
type worker struct {
	next chan task // capacity 1
}

// submit has t run, or refuses it.
func (w *workers) submit(t task) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch n := len(w.idle); {
	case w.closed:
		return false
	case n > 0:
		next := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.low = min(w.low, n-1)
		next.next <- t
	case w.running < w.limit:
		w.running++
		go (&worker{next: make(chan task, 1)}).loop(w, t)
	case w.queue.len() < w.queueLimit:
		w.queue.push(t)
	default:
		return false
	}
	return true
}

// loop runs t and what comes after it. Should a task end the goroutine
// (runtime.Goexit), another carries on.
func (k *worker) loop(w *workers, t task) {
	defer func() {
		if t != nil {
			go func() { k.loop(w, k.wait(w)) }()
		}
	}()
	for t != nil {
		t.run()
		t = k.wait(w)
	}
}

// wait returns the next task, or nil if the worker is to end.
func (k *worker) wait(w *workers) task {
	if t := w.after(k); t != nil {
		return t
	}
	return <-k.next
}

// after is the next task for k. Without one, k is idle and waits for k.next.
func (w *workers) after(k *worker) task {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue.len() > 0 {
		return w.queue.pop()
	}
	if w.closed {
		w.running--
		k.next <- nil
		return nil
	}
	w.idle = append(w.idle, k)
	if w.trimmer == nil {
		w.low = 0
		w.trimmer = time.AfterFunc(idleTime, w.trim)
	}
	return nil
}

// trim ends the workers at the bottom of the stack that had no work since the
// last time, and comes again while any is idle.
func (w *workers) trim() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.release(w.low)
	w.low = len(w.idle)
	w.trimmer = nil
	if w.low > 0 {
		w.trimmer = time.AfterFunc(idleTime, w.trim)
	}
}

// close ends the idle workers, and the others once their tasks and the queue
// are done. Nothing can be submitted any more.
func (w *workers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.release(len(w.idle))
	w.low = 0
	if w.trimmer != nil {
		w.trimmer.Stop()
		w.trimmer = nil
	}
}

// release ends the n workers that have been idle longest.
func (w *workers) release(n int) {
	for _, k := range w.idle[:n] {
		k.next <- nil
	}
	w.running -= n
	rest := copy(w.idle, w.idle[n:])
	clear(w.idle[rest:])
	w.idle = w.idle[:rest]
}

// fifo is a queue that grows to what it held at most and keeps that.
type fifo[T any] struct {
	ring        []T  // its length is a power of two
	first, last uint // counts of pops and pushes
}

func (q *fifo[T]) len() int { return int(q.last - q.first) }

func (q *fifo[T]) push(v T) {
	if q.len() == len(q.ring) {
		q.grow()
	}
	q.ring[q.last&uint(len(q.ring)-1)] = v
	q.last++
}

func (q *fifo[T]) pop() T {
	var zero T
	at := &q.ring[q.first&uint(len(q.ring)-1)]
	v := *at
	*at = zero
	q.first++
	return v
}

func (q *fifo[T]) grow() {
	bigger := make([]T, max(16, 2*len(q.ring)))
	for i := range uint(q.len()) {
		at := q.first + i
		bigger[at&uint(len(bigger)-1)] = q.ring[at&uint(len(q.ring)-1)]
	}
	q.ring = bigger
}
