package pool

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
)

// ErrArenaClosed is returned by every Close of an Arena after the first.
var ErrArenaClosed = errors.New("pool: arena is closed")

// ArenaError says that memory for an arena could not be had or given back. It
// unwraps to the system's error: errors.Is(err, syscall.ENOMEM).
type ArenaError struct {
	Op   string // "map", "unmap"
	Size int    // bytes
	Err  error
}

func (e *ArenaError) Error() string {
	return fmt.Sprintf("pool: %s arena of %d bytes: %v", e.Op, e.Size, e.Err)
}

// Unwrap returns the cause.
func (e *ArenaError) Unwrap() error { return e.Err }

// Arena is memory outside the Go heap: whole pages of its own, present before
// NewArena returns (registering cold pages is twenty times slower), at an
// address that never changes. So a device may be given it: the collector
// neither moves nor frees it, and no other data shares its pages.
//
// Its owner closes it after the last memory region over it is deregistered and
// the last user of Bytes is gone; a later access faults. The collector never
// closes one: a forgotten Arena leaks until the process ends.
type Arena struct {
	mem    []byte
	closed atomic.Bool
	trace  *trace
}

// NewArena maps an arena of size bytes, rounded up to whole pages. The bytes
// are zero. Pages are populated, not locked: registration locks them and is
// what RLIMIT_MEMLOCK applies to.
func NewArena(size int) (*Arena, error) {
	page := os.Getpagesize()
	if size <= 0 || size > math.MaxInt-page {
		return nil, &ArenaError{Op: "map", Size: size, Err: errors.New("the size must be positive and fit the address space")}
	}
	size = (size + page - 1) / page * page
	mem, err := mapPages(size)
	if err != nil {
		return nil, &ArenaError{Op: "map", Size: size, Err: err}
	}
	arenas.count.Add(1)
	arenas.bytes.Add(int64(size))
	a := &Arena{mem: mem}
	if t := watching.Load(); t != nil {
		a.trace = t.track(fmt.Sprintf("arena of %d bytes", size))
	}
	return a, nil
}

// Bytes returns the whole arena, page-aligned; nil once it is closed.
func (a *Arena) Bytes() []byte {
	if a.closed.Load() {
		return nil
	}
	return a.mem
}

// Close unmaps the arena. Any goroutine may call it, any number of times.
func (a *Arena) Close() error {
	if a.closed.Swap(true) {
		return ErrArenaClosed
	}
	if err := unmapPages(a.mem); err != nil {
		return &ArenaError{Op: "unmap", Size: len(a.mem), Err: err}
	}
	arenas.count.Add(-1)
	arenas.bytes.Add(-int64(len(a.mem)))
	a.trace.forget()
	return nil
}

var arenas struct{ count, bytes atomic.Int64 }

// Statistics is what the package holds at one moment.
type Statistics struct {
	Arenas     int64 // arenas not closed
	ArenaBytes int64 // their size together
}

// Stats returns the present statistics of the process.
func Stats() Statistics {
	return Statistics{Arenas: arenas.count.Load(), ArenaBytes: arenas.bytes.Load()}
}
