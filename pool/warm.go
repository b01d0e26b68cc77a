package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrWarmClosed is returned by Warm.Get after Close.
var ErrWarmClosed = errors.New("pool: warm pool is closed")

// ConfigError is a field of a configuration that cannot be used.
type ConfigError struct {
	Field  string
	Reason string
}

func (e *ConfigError) Error() string { return "pool: " + e.Field + " " + e.Reason }

// WarmConfig says what a Warm pool holds. Make and Drop are required; both are
// called without a lock, from several goroutines at once, and must not call
// the pool.
type WarmConfig[T any] struct {
	// Size is how many items are kept ready; 0 keeps none, so that every Get
	// makes its own. Each ready item costs what it holds, a QP its rings.
	Size int

	// Make makes an item. Its context ends with the pool and, for an item
	// that Get asked for, with the context of that Get.
	Make func(context.Context) (T, error)

	// Drop destroys an item that the pool owns.
	Drop func(T)

	// RefillRate is how many items per second the background may start to
	// make, 1e-3 to 1e9; 0 is DefaultRefillRate. Higher refills sooner after a burst and
	// takes more from the calls that run meanwhile.
	RefillRate float64

	// RefillDelay is how long a pool that was full waits, from the first item
	// drawn, before it makes another. What the item was drawn for has the
	// processor to itself meanwhile, and a short use ends by Put without a
	// refill. 0: none, at most 1 h. Longer disturbs less, and leaves the pool
	// low for longer.
	RefillDelay time.Duration
}

// DefaultRefillRate is items per second. Creating a QP with its queues and
// registered rings takes about 2.5 ms on rxe, so this is a quarter of a core.
const DefaultRefillRate = 100

func (c *WarmConfig[T]) validate() error {
	switch {
	case c.Size < 0:
		return &ConfigError{"WarmConfig.Size", fmt.Sprintf("is %d; it must not be negative", c.Size)}
	case c.Make == nil:
		return &ConfigError{"WarmConfig.Make", "is nil"}
	case c.Drop == nil:
		return &ConfigError{"WarmConfig.Drop", "is nil"}
	case c.RefillDelay < 0 || c.RefillDelay > time.Hour:
		return &ConfigError{"WarmConfig.RefillDelay", fmt.Sprintf("is %v; it must be 0 to 1h", c.RefillDelay)}
	case c.RefillRate != 0 && !(c.RefillRate >= 1e-3 && c.RefillRate <= 1e9):
		return &ConfigError{"WarmConfig.RefillRate", fmt.Sprintf("is %v; it must be 0, or 1e-3 to 1e9 per second", c.RefillRate)}
	}
	return nil
}

// Warm keeps items that are slow to make, such as QPs in INIT, ready to be
// taken. It owns the ready ones; an item that Get returned is the caller's
// until it is Put back or destroyed.
//
// All methods may be called from any goroutine. A refill is a timer or, while
// Make runs, one goroutine; a full pool has neither. Close order: no refill or
// Get starts any more, those under way are cancelled and waited for, then the
// ready items are dropped.
type Warm[T any] struct {
	cfg    WarmConfig[T]
	ctx    context.Context // ends with Close; every Make sees it
	cancel context.CancelFunc
	start  time.Time

	mu     sync.Mutex // guards what follows
	closed bool
	ready  []T
	pace   pace
	timer  *time.Timer // the next refill, nil if none is due or one is running
	stats  WarmStats

	refilled chan struct{} // closed when the refill that runs has ended; nil if nobody waits

	busy sync.WaitGroup // refills due or running, and Gets that make; added to under mu while !closed
	once sync.Once
}

// WarmStats counts from the start of the pool.
type WarmStats struct {
	Ready      int           // items ready now
	Hits       uint64        // Gets that took a ready item
	Misses     uint64        // Gets that made their own or failed to
	Refills    uint64        // items made in the background
	RefillTime time.Duration // spent in Make for them
	Failures   uint64        // Makes that failed, in the background or in a Get
	LastError  error         // of the latest such failure, nil if none
}

// NewWarm starts a pool, which fills in the background. The caller closes it.
func NewWarm[T any](cfg WarmConfig[T]) (*Warm[T], error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.RefillRate == 0 {
		cfg.RefillRate = DefaultRefillRate
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Warm[T]{
		cfg: cfg, ctx: ctx, cancel: cancel, start: time.Now(),
		ready: make([]T, 0, cfg.Size),
		pace:  pace{size: cfg.Size, interval: time.Duration(float64(time.Second) / cfg.RefillRate)},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refillAfter(0)
	return w, nil
}

// Get returns a ready item, drawn at random so that a bad one is not handed to
// every retry in turn, with hit true; or else makes one on this goroutine. The
// error is ErrWarmClosed, or Make's own.
func (w *Warm[T]) Get(ctx context.Context) (item T, hit bool, err error) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return item, false, ErrWarmClosed
	}
	if n := len(w.ready); n > 0 {
		i := rand.IntN(n)
		item = w.ready[i]
		w.ready[i] = w.ready[n-1]
		clear(w.ready[n-1:])
		w.ready = w.ready[:n-1]
		w.stats.Hits++
		w.refillAfter(w.cfg.RefillDelay)
		w.mu.Unlock()
		return item, true, nil
	}
	w.stats.Misses++
	w.busy.Add(1)
	w.mu.Unlock()
	defer w.busy.Done()
	item, err = w.makeFor(ctx)
	return item, false, err
}

func (w *Warm[T]) makeFor(ctx context.Context) (item T, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	item, err = w.cfg.Make(ctx)

	w.mu.Lock()
	if err != nil {
		w.stats.failed(err)
	}
	closed := w.closed
	w.mu.Unlock()
	if !closed {
		return item, err
	}
	if err == nil {
		w.cfg.Drop(item)
	}
	var none T
	return none, ErrWarmClosed
}

// Fill makes items on this goroutine until there are as many as the pool keeps.
// The error is ErrWarmClosed, Make's own, or that of ctx.
func (w *Warm[T]) Fill(ctx context.Context) error {
	for {
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			return ErrWarmClosed
		}
		if len(w.ready) >= w.cfg.Size {
			w.mu.Unlock()
			return nil
		}
		if w.pace.room(len(w.ready)) == 0 {
			if err := w.awaitRefill(ctx); err != nil {
				return err
			}
			continue
		}
		w.busy.Add(1)
		w.mu.Unlock()
		item, err := w.makeFor(ctx)
		w.busy.Done()
		if err != nil {
			return err
		}
		w.Put(item)
	}
}

// awaitRefill waits for the end of the refill that runs. Called with mu held,
// which it gives up.
func (w *Warm[T]) awaitRefill(ctx context.Context) error {
	if w.refilled == nil {
		w.refilled = make(chan struct{})
	}
	refilled := w.refilled
	w.mu.Unlock()
	select {
	case <-refilled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Put gives an item to the pool, which keeps it if there is room and drops it
// if not, or if the pool is closed.
func (w *Warm[T]) Put(item T) {
	w.mu.Lock()
	room := !w.closed && w.pace.room(len(w.ready)) > 0
	if room {
		w.ready = append(w.ready, item)
	}
	w.mu.Unlock()
	if !room {
		w.cfg.Drop(item)
	}
}

// Stats returns the present statistics.
func (w *Warm[T]) Stats() WarmStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Ready = len(w.ready)
	return s
}

// Close drops the ready items and returns when no Make runs any more, each
// cancelled by its context. Items that are out stay their holders' own.
func (w *Warm[T]) Close() {
	w.once.Do(func() {
		w.mu.Lock()
		w.closed = true
		if w.timer != nil && w.timer.Stop() {
			w.busy.Done() // it will not run
		}
		ready := w.ready
		w.ready = nil
		w.mu.Unlock()

		w.cancel()
		w.busy.Wait()
		for _, item := range ready {
			w.cfg.Drop(item)
		}
	})
}

// refillAfter sets the timer of the next refill, after at least the delay, if
// one is wanted and none is due or running. Called with mu held.
func (w *Warm[T]) refillAfter(delay time.Duration) {
	if w.closed || w.timer != nil || w.pace.room(len(w.ready)) == 0 {
		return
	}
	w.busy.Add(1)
	w.timer = time.AfterFunc(max(delay, w.pace.wait(time.Since(w.start))), w.refill)
}

// refill makes one item, on the timer's goroutine.
func (w *Warm[T]) refill() {
	defer w.busy.Done()
	w.mu.Lock()
	if w.closed || w.pace.room(len(w.ready)) == 0 { // Put was faster
		w.timer = nil
		w.mu.Unlock()
		return
	}
	began := time.Now()
	w.pace.begin(began.Sub(w.start))
	w.mu.Unlock()

	item, err := w.cfg.Make(w.ctx)

	w.mu.Lock()
	w.timer = nil
	if w.refilled != nil {
		close(w.refilled)
		w.refilled = nil
	}
	w.pace.end(time.Since(w.start), err == nil)
	keep := err == nil && !w.closed
	if keep {
		w.ready = append(w.ready, item)
		w.stats.Refills++
		w.stats.RefillTime += time.Since(began)
	} else if err != nil {
		w.stats.failed(err)
	}
	w.refillAfter(0)
	w.mu.Unlock()
	if err == nil && !keep {
		w.cfg.Drop(item)
	}
}

func (s *WarmStats) failed(err error) {
	s.Failures++
	s.LastError = err
}

// Back-off after failed refills in a row: 10 ms doubling up to 5 s, as for
// reconnects, and never faster than the refill rate.
const (
	minBackoff = 10 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// pace decides when the background makes the next item, and for how many there
// is room. Times are since the start of the pool. It knows no clock and no
// lock.
type pace struct {
	size     int
	interval time.Duration // between the starts of two refills
	making   int           // items being made in the background; 0 or 1
	next     time.Duration // no refill starts before
	failures int           // in a row
}

// room returns how many items the pool can still take in.
func (p *pace) room(ready int) int { return max(0, p.size-ready-p.making) }

// wait returns how long to wait before the next refill.
func (p *pace) wait(now time.Duration) time.Duration { return max(0, p.next-now) }

func (p *pace) begin(now time.Duration) {
	p.making++
	p.next = now + p.interval
}

func (p *pace) end(now time.Duration, ok bool) {
	p.making--
	if ok {
		p.failures = 0
		return
	}
	backoff := min(minBackoff<<min(p.failures, 16), maxBackoff)
	p.failures++
	p.next = max(p.next, now+backoff)
}
