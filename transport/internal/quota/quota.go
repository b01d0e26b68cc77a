// Package quota shares out to those who send how much may be under way at once.
package quota

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Quota bounds the number and the bytes of what is under way: messages in chunks,
// frames of which a copy is kept, frames that wait for a socket. Senders are let in
// in order of arrival; one alone is, however large. Who finds room and nobody
// waiting takes no lock. The limits are set before its first use; any goroutine may
// call the methods.
//
// After End nobody gets in any more.
type Quota struct {
	MaxCount int
	MaxBytes int64

	used  atomic.Uint64 // count << countShift | bytes, and full
	queue atomic.Int32  // of waiting; written with mu held

	mu      sync.Mutex
	waiting []*waiter // oldest first
	ended   error
}

// Parts of Quota.used: 25 bits for the count, and 38 for bytes, 256 GiB.
const (
	full       = 1 << 63 // there is no room for anybody
	countShift = 38
	bytesMask  = 1<<countShift - 1
)

type waiter struct {
	bytes int
	ready chan struct{} // closed when it is let in, or never will be
	err   error
}

// Take waits for room for so many bytes until ctx is done. With a ctx that is over it
// takes what is free at once.
func (q *Quota) Take(ctx context.Context, bytes int) error {
	if q.queue.Load() == 0 && q.enter(bytes) {
		return nil
	}
	return q.wait(ctx, bytes)
}

func (q *Quota) wait(ctx context.Context, bytes int) error {
	q.mu.Lock()
	if err := q.ended; err != nil {
		q.mu.Unlock()
		return err
	}
	select {
	case <-ctx.Done():
		q.mu.Unlock()
		return ctx.Err()
	default:
	}
	w := &waiter{bytes: bytes, ready: make(chan struct{})}
	q.set(append(q.waiting, w)) // who gives from now on looks, so look once more
	q.grant()
	q.mu.Unlock()

	select {
	case <-w.ready:
		return w.err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return w.err
	}
	q.set(slices.Delete(q.waiting, i, i+1))
	q.grant() // the next may need less
	return ctx.Err()
}

// Give gives back what so many took, so many bytes together.
func (q *Quota) Give(count, bytes int) {
	q.used.Add(-(uint64(count)<<countShift + uint64(bytes)))
	if q.queue.Load() > 0 {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.grant()
	}
}

// Used is how many are under way, with how many bytes together.
func (q *Quota) Used() (count, bytes int) {
	used := q.used.Load() &^ full
	return int(used >> countShift), int(used & bytesMask)
}

// End lets all fail with err who wait, and who come later. Only the first call counts.
func (q *Quota) End(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended != nil {
		return
	}
	q.ended = err
	q.used.Or(full)
	for _, w := range q.waiting {
		w.err = err
		close(w.ready)
	}
	q.set(nil)
}

func (q *Quota) set(waiting []*waiter) {
	q.waiting = waiting
	q.queue.Store(int32(len(waiting)))
}

func (q *Quota) grant() {
	for len(q.waiting) > 0 && q.enter(q.waiting[0].bytes) {
		close(q.waiting[0].ready)
		q.set(slices.Delete(q.waiting, 0, 1))
	}
}

// enter takes room, if there is enough or nobody has any.
func (q *Quota) enter(bytes int) bool {
	for {
		used := q.used.Load()
		count, all := used>>countShift, int64(used&bytesMask)+int64(bytes)
		if count != 0 && (count >= uint64(q.MaxCount) || all > q.MaxBytes) {
			return false // count has the bit full too
		}
		if q.used.CompareAndSwap(used, used+1<<countShift+uint64(bytes)) {
			return true
		}
	}
}
