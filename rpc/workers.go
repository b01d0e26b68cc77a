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
// At most limit tasks run at once, at most queueLimit wait, and of one session
// shareLimit and shareQueue. The tasks of a session wait in order; sessions
// take turns, so that a task waits for those before it in its session and for
// one of every other. All methods may be called from any goroutine and do not
// wait.
type workers struct {
	limit, queueLimit      int
	shareLimit, shareQueue int

	mu      sync.Mutex
	line    fifo[*share] // sessions with tasks that wait, each once
	queued  int          // tasks that wait
	idle    []*worker    // the last to be idle is at the end and the first to run
	low     int          // fewest idle workers since the last trim
	trimmer *time.Timer
	running int // workers, idle ones included
	closed  bool
}

type task interface {
	run()
	size() int // bytes that it holds while it waits
}

// share is what one session has of the workers. workers.mu guards it.
type share struct {
	maxBytes int64 // of the tasks that wait, and of the replies in the outbox; fixed

	queue   fifo[task]
	bytes   int64
	running int
}

// worker is a goroutine that runs tasks. Whoever takes it from the idle stack
// sends it one task, or nil to end it.
type worker struct {
	next  chan task // capacity 1
	share *share    // of the task that it runs or was sent; guarded by workers.mu
}

// submit has t, of the session with that share, run, or refuses it.
func (w *workers) submit(sh *share, t task) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, may := len(w.idle), sh.running < w.shareLimit
	switch {
	case w.closed:
		return false
	case may && n > 0:
		next := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.low = min(w.low, n-1)
		next.begin(sh)
		next.next <- t
	case may && w.running < w.limit:
		w.running++
		k := &worker{next: make(chan task, 1)}
		k.begin(sh)
		go k.loop(w, t)
	case w.queued < w.queueLimit && sh.queue.len() < w.shareQueue && sh.bytes+int64(t.size()) <= sh.maxBytes:
		w.enqueue(sh, t)
	default:
		return false
	}
	return true
}

func (k *worker) begin(sh *share) {
	k.share = sh
	sh.running++
}

func (w *workers) enqueue(sh *share, t task) {
	if sh.queue.len() == 0 {
		w.line.push(sh)
	}
	sh.queue.push(t)
	sh.bytes += int64(t.size())
	w.queued++
}

// dequeue is the next task for k: of the first session in line that may run
// one more. Those that may not are few: each has shareLimit running.
func (w *workers) dequeue(k *worker) task {
	for range w.line.len() {
		sh := w.line.pop()
		if sh.running >= w.shareLimit {
			w.line.push(sh)
			continue
		}
		t := sh.queue.pop()
		sh.bytes -= int64(t.size())
		w.queued--
		if sh.queue.len() > 0 {
			w.line.push(sh)
		}
		k.begin(sh)
		return t
	}
	return nil
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

// after is the next task for k, which has run one. Without one, k is idle and
// waits for k.next.
func (w *workers) after(k *worker) task {
	w.mu.Lock()
	defer w.mu.Unlock()
	k.share.running--
	k.share = nil
	if t := w.dequeue(k); t != nil {
		return t
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
