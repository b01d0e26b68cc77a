package pool

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// poison fills memory that nobody may rely on: what Get hands out during
	// a Watch, and what was released. As a length or a pointer it is absurd.
	poison = 0xDB

	// graveyardBytes bounds the released memory that a Watch keeps aside to
	// see whether somebody still writes to it.
	graveyardBytes = 16 << 20

	traceDepth = 8 // frames of a call stack that are kept
)

// watching is nil unless a Watch runs. It is all that debugging costs a Get
// that nobody watches.
var watching atomic.Pointer[tracker]

var watches struct {
	sync.Mutex
	open int // how many Watches share the tracker
}

// Watch is debug mode for as long as it runs: buffers and arenas allocated
// meanwhile are remembered with their call stacks, released memory is poisoned
// and never reused, and double release or use after release panics with the
// sites of allocation and release. It is for tests (see pooltest.Check): a Get
// costs a fresh allocation and a walk of the stack. Watches may overlap; each
// sees everything the process allocates, from every goroutine.
type Watch struct {
	t     *tracker
	since uint64
}

// StartWatch starts a Watch; the caller stops it once.
func StartWatch() *Watch {
	watches.Lock()
	defer watches.Unlock()
	t := watching.Load()
	if t == nil {
		t = &tracker{live: map[*trace]struct{}{}}
		watching.Store(t)
	}
	watches.open++
	t.mu.Lock()
	defer t.mu.Unlock()
	return &Watch{t: t, since: t.seq}
}

// Live counts what was allocated since the Watch started and not released.
func (w *Watch) Live() int {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	n := 0
	for tr := range w.t.live {
		if tr.seq > w.since {
			n++
		}
	}
	return n
}

// Stop ends the Watch. The error lists what is still held, with the call
// stack of each allocation, and writes to released memory; nil if neither.
func (w *Watch) Stop() error {
	watches.Lock()
	defer watches.Unlock()
	if watches.open--; watches.open == 0 {
		watching.Store(nil)
	}
	t := w.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exhume(0)
	faults := t.faults
	t.faults = nil
	for tr := range t.live {
		if tr.seq > w.since {
			faults = append(faults, fmt.Errorf("pool: %s never released\n\tallocated at %s", tr.what, tr.allocated))
		}
	}
	return errors.Join(faults...)
}

// tracker remembers what Watches saw. mu guards all of it, and the released
// field of every trace.
type tracker struct {
	mu         sync.Mutex
	seq        uint64 // traces made so far
	live       map[*trace]struct{}
	graveyard  []grave // oldest first
	graveBytes int
	faults     []error
}

// trace is the life of one allocation. It is never reused, so a stale *Buf
// still tells its own story.
type trace struct {
	t         *tracker
	seq       uint64
	what      string
	allocated stack
	released  stack // empty while live
}

// grave is released memory, poisoned from end to end.
type grave struct {
	mem []byte
	tr  *trace
}

func (t *tracker) track(what string) *trace {
	tr := &trace{t: t, what: what, allocated: callers()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	tr.seq = t.seq
	t.live[tr] = struct{}{}
	return tr
}

func (t *tracker) get(n int) *Buf {
	b := newBuf(n)
	fill(b.buf[:cap(b.buf)])
	b.trace = t.track(fmt.Sprintf("buffer of %d bytes", n))
	return b
}

// release is Buf.Release of a traced buffer.
func (tr *trace) release(b *Buf) {
	tr.t.mu.Lock()
	n := b.refs.Add(-1)
	if n == 0 {
		tr.released = callers()
		delete(tr.t.live, tr)
		tr.t.bury(grave{mem: b.buf[:cap(b.buf)], tr: tr})
	}
	tr.t.mu.Unlock()
	if n < 0 {
		b.misuse("released twice")
	}
}

// forget ends the trace of something that is not a buffer; nil is no trace.
func (tr *trace) forget() {
	if tr == nil {
		return
	}
	tr.t.mu.Lock()
	defer tr.t.mu.Unlock()
	delete(tr.t.live, tr)
}

// describe says what was done wrong with a buffer, with all that is known of
// it; without a trace that is its capacity alone.
func (tr *trace) describe(capacity int, wrong string) string {
	if tr == nil {
		return fmt.Sprintf("buffer with capacity %d %s (a pool.Watch tells the sites)", capacity, wrong)
	}
	tr.t.mu.Lock()
	defer tr.t.mu.Unlock()
	return fmt.Sprintf("%s %s\n\there at %s\n\tallocated at %s\n\treleased at %s",
		tr.what, wrong, callers(), tr.allocated, tr.released)
}

func (t *tracker) bury(g grave) {
	fill(g.mem)
	t.graveyard = append(t.graveyard, g)
	t.graveBytes += len(g.mem)
	t.exhume(graveyardBytes)
}

// exhume looks at the oldest graves and drops them until keep bytes are left.
func (t *tracker) exhume(keep int) {
	for t.graveBytes > keep {
		g := t.graveyard[0]
		t.graveyard[0] = grave{}
		t.graveyard = t.graveyard[1:]
		t.graveBytes -= len(g.mem)
		if at := firstChange(g.mem); at >= 0 {
			t.faults = append(t.faults, fmt.Errorf("pool: %s written at offset %d after release\n\tallocated at %s\n\treleased at %s",
				g.tr.what, at, g.tr.allocated, g.tr.released))
		}
	}
}

// poisoned is compared and copied by the page: under the race detector a loop
// over the bytes of a large buffer takes milliseconds.
var poisoned = bytes.Repeat([]byte{poison}, 4096)

func fill(mem []byte) {
	for len(mem) > 0 {
		mem = mem[copy(mem, poisoned):]
	}
}

// firstChange returns the offset of the first byte that is not poison, or -1.
func firstChange(mem []byte) int {
	for at := 0; at < len(mem); at += len(poisoned) {
		page := mem[at:min(at+len(poisoned), len(mem))]
		if bytes.Equal(page, poisoned[:len(page)]) {
			continue
		}
		return at + slices.IndexFunc(page, func(c byte) bool { return c != poison })
	}
	return -1
}

// stack is a call stack, innermost caller first.
type stack [traceDepth]uintptr

// callers returns the stack of whoever called into the package.
func callers() (s stack) {
	runtime.Callers(2, s[:])
	return s
}

// String lists the frames outside this package as "file.go:12 (pkg.Func)",
// innermost first: the allocating line is often a helper of the culprit.
func (s stack) String() string {
	var sites []string
	frames := runtime.CallersFrames(s[:slices.Index(append(s[:], 0), 0)])
	for {
		f, more := frames.Next()
		if f.Function != "" && !ownFrame(f.Function) {
			_, fn := filepath.Split(f.Function)
			sites = append(sites, fmt.Sprintf("%s:%d (%s)", filepath.Base(f.File), f.Line, fn))
		}
		if !more {
			break
		}
	}
	if len(sites) == 0 {
		return "an unknown site"
	}
	return strings.Join(sites, " < ")
}

const ownPackage = "github.com/verbena-rpc/verbena/pool."

func ownFrame(function string) bool {
	return strings.HasPrefix(function, ownPackage) || strings.HasPrefix(function, "runtime.")
}
