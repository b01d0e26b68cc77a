package rpc

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport"
)

// idleTime is how long a worker waits for work before it ends: long enough to
// outlast the gaps of steady traffic, short enough to return the stacks of a burst.
const idleTime = time.Second

const (
	// shortRun is how soon after it was told to search a worker must be done with
	// its tasks if it is to take in the next itself. While it runs that one, the
	// link's own goroutine may still leave the link alone, over RDMA for up to
	// 100 µs and over TCP for 10 ms, so that what comes for others, of all sessions
	// on the same poller, waits: for as long as a handler that is always quick, and
	// longer only where one was not for the first time (see method.learn).
	shortRun = 50 * time.Microsecond

	// maxWary is for how many calls at most a long run of a method is remembered.
	maxWary = 1 << 10

	// yieldEvery bounds how long workers that take in their own tasks keep a P
	// from other goroutines.
	yieldEvery = 500 * time.Microsecond
)

// workers runs tasks on goroutines that it keeps. A new goroutine per task
// would grow its stack anew each time.
//
// A task is queued, and a worker is woken for it only if none is searching,
// that is, awake and about to look into the queue. A worker that takes a task
// and leaves others wakes the next before it runs its own. Thus a task never
// waits for one that blocks, while few workers run many short ones without
// waking anybody.
//
// A worker that is out of tasks when no other has any helps the lane of the
// session that it served last to take in what arrives, until it is told to
// search, or helping is not worth while. So where one task follows another, none
// is handed from goroutine to goroutine. One worker helps at a time: it is at the
// top of the idle stack, so that the next task is its own, and until it searches
// no other may help. A worker whose tasks took longer than shortRun just sleeps.
// A lane that it does not come back to is roused, unless the worker ends, and so
// is the lane that it helps when the task that it is to search for is of another
// session.
//
// At most limit tasks run at once, at most queueLimit wait beyond those, and of
// one session shareLimit and shareQueue. The tasks of a session wait in order;
// sessions take turns, so that a task waits for those before it in its session
// and for one of every other. All methods may be called from any goroutine and
// do not wait.
type workers[T sized] struct {
	limit, queueLimit      int
	shareLimit, shareQueue int
	runner                 func() func(T) int64 // makes what runs the tasks of one worker
	atRest                 func()               // called when refusing and the last task has ended

	mu        sync.Mutex
	line      fifo[*share[T]] // sessions that may run one more of the tasks that wait, each once
	tasks     atomic.Int32    // that wait or run; changed under mu
	begun     uint64          // tasks that ran or run
	searching int
	count     int          // workers
	idle      []*worker[T] // the last to be idle is at the end and the first to run
	low       int          // fewest idle workers since the last trim
	trimmer   *time.Timer
	refusing  bool
	closed    bool
}

// sized is a task that says how many bytes it holds while it waits.
type sized interface{ size() int }

// share is what one session has of the workers. workers.mu guards it.
type share[T sized] struct {
	maxBytes int64                                                    // of the tasks that wait, and of the replies in the outbox; fixed
	help     func(done *transport.Signal, waiting *atomic.Int32) bool // that of its lane; nil: nothing can be taken in; fixed
	rouse    func()                                                   // that of its lane; fixed

	queue   fifo[T]
	bytes   int64
	running int
	inLine  bool
}

// worker is a goroutine that runs tasks. Whoever takes it from the idle stack
// tells it to search, or to end.
type worker[T sized] struct {
	search transport.Signal
	ends   bool          // set before it is told
	run    func(T) int64 // nil until it has begun; returns when the task was done but for its answer; 0: nobody knows

	helping atomic.Pointer[share[T]] // whose lane it helps
	helped  *share[T]                // whose lane it helped last, and left; of its goroutine

	// Of its goroutine, as clock tells it.
	told    int64 // when it was told to search; 0: never
	ran     int64 // when its last task was done; before told: nobody knows
	yielded int64 // when other goroutines could run, unless they could since
}

// submit has t, of the session with that share, run, or refuses it.
func (w *workers[T]) submit(sh *share[T], t T) bool {
	w.mu.Lock()
	size := int64(t.size())
	if !w.admits(sh, size) {
		w.mu.Unlock()
		return false
	}
	sh.queue.push(t)
	sh.bytes += size
	w.tasks.Add(1)
	w.enlist(sh)
	k := w.rouse()
	w.mu.Unlock()
	w.wake(k, sh)
	return true
}

func (w *workers[T]) admits(sh *share[T], size int64) bool {
	all, own := int(w.tasks.Load()), sh.running+sh.queue.len()
	switch {
	case w.refusing:
		return false
	case all < w.limit && own < w.shareLimit:
		return true // it need not wait for another to end
	}
	return all < w.limit+w.queueLimit && own < w.shareLimit+w.shareQueue && sh.bytes+size <= sh.maxBytes
}

// enlist puts a session in line if it has a task that may run.
func (w *workers[T]) enlist(sh *share[T]) {
	if !sh.inLine && sh.queue.len() > 0 && sh.running < w.shareLimit {
		sh.inLine = true
		w.line.push(sh)
	}
}

// rouse is the worker to wake for what is in line; nil: none.
func (w *workers[T]) rouse() *worker[T] {
	if w.searching > 0 || w.line.len() == 0 {
		return nil
	}
	n := len(w.idle)
	switch {
	case n > 0:
		k := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.low = min(w.low, n-1)
		w.searching++
		return k
	case w.count < w.limit:
		w.count++
		w.searching++
		return new(worker[T])
	}
	return nil
}

// wake sets going what rouse gave, for a task of the session with that share, or
// of any (nil). Who helps the lane of that session sees himself what it brings.
func (w *workers[T]) wake(k *worker[T], sh *share[T]) {
	switch {
	case k == nil:
	case k.run == nil:
		k.run = w.runner()
		go k.loop(w, nil)
	default:
		k.search.Set()
		if helping := k.helping.Load(); helping != nil && helping != sh {
			helping.rouse()
		}
	}
}

// loop runs tasks until the worker is to end. done is the share of the task that
// it has run before. Should a task end the goroutine (runtime.Goexit), another
// carries on.
func (k *worker[T]) loop(w *workers[T], done *share[T]) {
	over := false
	defer func() {
		if !over {
			go k.loop(w, done)
		}
	}()
	for {
		t, sh := w.next(k, done)
		done = sh
		if sh == nil {
			over = true
			return
		}
		k.ran = k.run(t)
	}
}

// next waits for the next task of k, which is searching, or has just run one
// of the share done. The worker is to end if there is no share.
func (w *workers[T]) next(k *worker[T], done *share[T]) (T, *share[T]) {
	w.mu.Lock()
	if done != nil {
		w.tasks.Add(-1)
		done.running--
		w.enlist(done)
		w.searching++
	}
	for {
		if w.line.len() > 0 {
			t, sh := w.dequeue()
			w.searching--
			other := w.rouse()
			w.mu.Unlock()
			w.wake(other, nil)
			return t, sh
		}
		w.searching--
		quiet := w.tasks.Load() == 0
		alone := quiet && w.searching == 0
		rest := quiet && w.refusing
		goOn := !w.closed
		if goOn {
			w.rest(k)
		} else {
			w.count--
		}
		w.mu.Unlock()
		if rest {
			w.atRest()
		}
		if !goOn || !k.wait(w, done, alone) {
			var none T
			return none, nil
		}
		w.mu.Lock()
	}
}

// wait returns when the worker is told to search; false: to end. If it is alone
// it takes in what arrives for the session that it served last.
func (k *worker[T]) wait(w *workers[T], last *share[T], alone bool) bool {
	helps := alone && last != nil && last.help != nil && k.short()
	if left := k.helped; left != nil && (!helps || left != last) {
		k.helped = nil
		left.rouse()
	}
	if helps {
		k.help(w, last)
	}
	k.search.Wait()
	k.told = clock()
	return !k.ends
}

// short says whether the last search was over soon.
func (k *worker[T]) short() bool {
	return k.told != 0 && k.ran >= k.told && k.ran-k.told <= int64(shortRun)
}

func (k *worker[T]) help(w *workers[T], last *share[T]) {
	if k.ran-k.yielded > int64(yieldEvery) {
		k.yielded = k.ran
		runtime.Gosched()
	}
	k.helped = last
	k.helping.Store(last)
	for !k.search.IsSet() && last.help(&k.search, &w.tasks) {
	}
	k.helping.Store(nil)
}

// dequeue takes the next task of the first session in line.
func (w *workers[T]) dequeue() (T, *share[T]) {
	sh := w.line.pop()
	sh.inLine = false
	t := sh.queue.pop()
	sh.bytes -= int64(t.size())
	sh.running++
	w.begun++
	w.enlist(sh)
	return t, sh
}

func (w *workers[T]) rest(k *worker[T]) {
	w.idle = append(w.idle, k)
	if w.trimmer == nil {
		w.low = 0
		w.trimmer = time.AfterFunc(idleTime, w.trim)
	}
}

// oneTask says whether no other task waits or runs: then the worker of the task
// may come to help.
func (w *workers[T]) oneTask() bool { return w.tasks.Load() == 1 }

// busy is how many tasks run or wait, and how many have begun.
func (w *workers[T]) busy() (now int, begun uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(w.tasks.Load()), w.begun
}

// refuse takes in no more tasks.
func (w *workers[T]) refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusing = true
}

// trim ends the workers at the bottom of the stack that had no work since the
// last time, and comes again while any is idle.
func (w *workers[T]) trim() {
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
func (w *workers[T]) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusing, w.closed = true, true
	w.release(len(w.idle))
	w.low = 0
	if w.trimmer != nil {
		w.trimmer.Stop()
		w.trimmer = nil
	}
}

// release ends the n workers that have been idle longest.
func (w *workers[T]) release(n int) {
	for _, k := range w.idle[:n] {
		k.ends = true
		k.search.Set()
	}
	w.count -= n
	rest := copy(w.idle, w.idle[n:])
	clear(w.idle[rest:])
	w.idle = w.idle[:rest]
}
