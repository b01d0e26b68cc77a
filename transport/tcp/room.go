package tcp

import (
	"context"
	"slices"
	"sync"

	"github.com/verbena-rpc/verbena/transport"
)

// Room for frames between Reserve and the socket, per link, each class its
// own, so that none waits for another. What is queued here is what a small
// message may have to wait behind, so Bulk gets little: enough to keep a writer
// busy while the next chunks are copied.
const (
	smallFrames   = 256
	smallBytes    = 4 << 20
	bulkFrames    = 128
	bulkBytes     = 512 << 10
	controlFrames = 32 // of their own; their payloads are bounded by their kinds
)

// amount counts frames and their payload bytes.
type amount struct{ frames, bytes int }

func (a *amount) add(b amount) { a.frames += b.frames; a.bytes += b.bytes }
func (a *amount) sub(b amount) { a.frames -= b.frames; a.bytes -= b.bytes }

// room is shared out to senders, in order of arrival within a class. Any
// goroutine may call it.
type room struct {
	mu      sync.Mutex
	err     error // why there will be no more
	used    [3]amount
	waiting [3][]*waiter // oldest first
}

type waiter struct {
	bytes int
	ready chan struct{} // closed when it has its room, or room.err is set
}

// fits says whether a frame of that class may be added now.
func (r *room) fits(c transport.Class, bytes int) bool {
	used := r.used[c]
	switch c {
	case transport.Control:
		return used.frames < controlFrames
	case transport.Bulk:
		return used.frames < bulkFrames && used.bytes+bytes <= bulkBytes
	}
	return used.frames < smallFrames && used.bytes+bytes <= smallBytes
}

// take waits until there is room for a frame or ctx is done.
func (r *room) take(ctx context.Context, c transport.Class, bytes int) error {
	r.mu.Lock()
	if err := r.err; err != nil {
		r.mu.Unlock()
		return err
	}
	if len(r.waiting[c]) == 0 && r.fits(c, bytes) {
		r.used[c].add(amount{1, bytes})
		r.mu.Unlock()
		return nil
	}
	select {
	case <-ctx.Done(): // it takes what is free, at once
		r.mu.Unlock()
		return ctx.Err()
	default:
	}
	w := &waiter{bytes, make(chan struct{})}
	r.waiting[c] = append(r.waiting[c], w)
	r.mu.Unlock()

	select {
	case <-w.ready:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiting[c], w); i >= 0 {
		r.waiting[c] = slices.Delete(r.waiting[c], i, i+1)
		r.grant() // the next may need less
		if r.err != nil {
			return r.err
		}
		return ctx.Err()
	}
	return nil
}

// give returns room.
func (r *room) give(back *[3]amount) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.used {
		r.used[c].sub(back[c])
	}
	r.grant()
}

// grant serves those who wait. Callers hold mu.
func (r *room) grant() {
	if r.err != nil {
		return
	}
	for _, c := range [...]transport.Class{transport.Control, transport.Small, transport.Bulk} {
		for len(r.waiting[c]) > 0 && r.fits(c, r.waiting[c][0].bytes) {
			w := r.waiting[c][0]
			r.waiting[c] = slices.Delete(r.waiting[c], 0, 1)
			r.used[c].add(amount{1, w.bytes})
			close(w.ready)
		}
	}
}

// close makes all who wait, and all who come, fail with err. Only the first
// call counts.
func (r *room) close(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	r.err = err
	for _, ws := range r.waiting {
		for _, w := range ws {
			close(w.ready)
		}
	}
}
