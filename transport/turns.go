package transport

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// minOpen is the least that a lane takes in of messages in chunks together, in
// bytes: many of common block sizes, so that none waits for long.
const minOpen = 128 << 20

// openLimit bounds the totals of the messages in chunks that are open at once
// in one direction: begun, and neither complete nor taken back. Both sides
// know it, the sender keeps to it, and the receiver need not hold more.
func openLimit(maxMessage int) int64 { return max(2*int64(maxMessage), minOpen) }

// blockSize is the largest message of common block sizes, 1 MiB and what codecs
// add to it, in bytes. blocksAtOnce of them, or as many bytes of smaller ones,
// are sent at once, and beside them largerAtOnce messages that are larger, so
// that neither wait for long behind the others. More at once would all take
// longer, and each hold memory on both sides until it is complete.
const (
	blockSize    = 1<<20 + 1<<16
	blocksAtOnce = 2
	largerAtOnce = 2
)

// order is the order of messages in chunks: blocks and those that are larger, of
// which few are sent at once, and all that are open at the peer.
type order struct{ blocks, larger, open turns }

func (o *order) init(calls int, maxMessage int) {
	o.blocks.maxCount, o.blocks.maxBytes = calls, blocksAtOnce*blockSize
	o.larger.maxCount, o.larger.maxBytes = largerAtOnce, openLimit(maxMessage)
	o.open.maxCount, o.open.maxBytes = calls, openLimit(maxMessage)
}

// of is where a message waits until it may be sent.
func (o *order) of(bytes int) *turns {
	if bytes <= blockSize {
		return &o.blocks
	}
	return &o.larger
}

func (o *order) end(err error) {
	o.blocks.end(err)
	o.larger.end(err)
	o.open.end(err)
}

// turns lets senders in in turn, in order of arrival, as there is room: for
// messages in chunks, of which the peer takes in so many at once, and for frames
// of which a copy is kept. Any goroutine may call it; the limits are set before.
// Who finds room and nobody waiting takes no lock.
//
// After end nobody gets in any more.
type turns struct {
	maxCount int
	maxBytes int64

	used  atomic.Uint64 // count << countShift | bytes, and full
	queue atomic.Int32  // of waiting; written with mu held

	mu      sync.Mutex
	waiting []*turn // oldest first
	ended   error
}

// Parts of turns.used: 25 bits for the count, and 38 for bytes, 256 GiB.
const (
	full       = 1 << 63 // there is no room for anybody
	countShift = 38
	bytesMask  = 1<<countShift - 1
)

type turn struct {
	bytes int
	ready chan struct{} // closed when it has come, or never will
	err   error
}

// take waits for a turn until ctx is done.
func (t *turns) take(ctx context.Context, bytes int) error {
	if t.queue.Load() == 0 && t.enter(bytes) {
		return nil
	}
	return t.wait(ctx, bytes)
}

func (t *turns) wait(ctx context.Context, bytes int) error {
	t.mu.Lock()
	if err := t.ended; err != nil {
		t.mu.Unlock()
		return err
	}
	w := &turn{bytes: bytes, ready: make(chan struct{})}
	t.set(append(t.waiting, w)) // who gives from now on looks, so look once more
	t.grant()
	if over(ctx) {
		defer t.mu.Unlock()
		return t.leave(w, ctx.Err())
	}
	t.mu.Unlock()

	select {
	case <-w.ready:
		return w.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leave(w, ctx.Err())
}

// leave gives up waiting, because of err, unless the turn has come. Callers hold mu.
func (t *turns) leave(w *turn, err error) error {
	i := slices.Index(t.waiting, w)
	if i < 0 {
		return w.err
	}
	t.set(slices.Delete(t.waiting, i, i+1))
	t.grant() // the next may need less
	return err
}

// over says that ctx is done, as it is where somebody takes only what is free.
func over(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// give ends so many turns.
func (t *turns) give(count, bytes int) {
	t.used.Add(-(uint64(count)<<countShift + uint64(bytes)))
	if t.queue.Load() > 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.grant()
	}
}

// end lets all fail who wait, and who come later.
func (t *turns) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = err
	t.used.Or(full)
	for _, w := range t.waiting {
		w.err = err
		close(w.ready)
	}
	t.set(nil)
}

func (t *turns) set(waiting []*turn) {
	t.waiting = waiting
	t.queue.Store(int32(len(waiting)))
}

func (t *turns) grant() {
	for len(t.waiting) > 0 && t.enter(t.waiting[0].bytes) {
		close(t.waiting[0].ready)
		t.set(slices.Delete(t.waiting, 0, 1))
	}
}

// enter takes room, if there is enough or nobody has any.
func (t *turns) enter(bytes int) bool {
	for {
		used := t.used.Load()
		count, all := used>>countShift, int64(used&bytesMask)+int64(bytes)
		if count != 0 && (count >= uint64(t.maxCount) || all > t.maxBytes) {
			return false // count has the bit full too
		}
		if t.used.CompareAndSwap(used, used+1<<countShift+uint64(bytes)) {
			return true
		}
	}
}
