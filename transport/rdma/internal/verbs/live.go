package verbs

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Object is a verbs object that exists: created and not yet destroyed.
type Object struct {
	Kind  string // "device", "PD", "MR", "CQ", "channel", "AH", "SRQ", "QP"
	Name  string // as in Error.Object: "rxe0", "QP 0x11"
	Stack string // where it was created; "" unless TraceLive was on
}

func (o Object) String() string {
	s := o.Kind
	if o.Name != "" {
		s += " (" + o.Name + ")"
	}
	if o.Stack != "" {
		s += " created at\n" + o.Stack
	}
	return s
}

// live is the registry of objects of all providers in this process. Objects
// are made and destroyed on the control path, where a lock costs nothing.
var live = struct {
	trace atomic.Bool

	mu      sync.Mutex
	next    uint64
	objects map[uint64]tracked
}{objects: map[uint64]tracked{}}

type tracked struct {
	kind, name string
	pcs        []uintptr
}

// TraceLive sets whether objects tracked from now on remember the stack that
// created them.
func TraceLive(on bool) { live.trace.Store(on) }

// Track enters an object that a provider has created. The provider calls
// release once the object is destroyed; further calls do nothing.
func Track(kind, name string) (release func()) {
	t := tracked{kind: kind, name: name}
	if live.trace.Load() {
		pcs := make([]uintptr, 32)
		t.pcs = pcs[:runtime.Callers(2, pcs)]
	}
	live.mu.Lock()
	defer live.mu.Unlock()
	live.next++
	id := live.next
	live.objects[id] = t
	return func() {
		live.mu.Lock()
		defer live.mu.Unlock()
		delete(live.objects, id)
	}
}

// Live lists the objects that exist, in the order of their creation.
func Live() []Object {
	live.mu.Lock()
	ids := make([]uint64, 0, len(live.objects))
	for id := range live.objects {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, cmp.Compare)
	found := make([]tracked, len(ids))
	for i, id := range ids {
		found[i] = live.objects[id]
	}
	live.mu.Unlock()

	objects := make([]Object, len(found))
	for i, t := range found {
		objects[i] = Object{Kind: t.kind, Name: t.name, Stack: t.stack()}
	}
	return objects
}

func (t tracked) stack() string {
	if len(t.pcs) == 0 {
		return ""
	}
	var b strings.Builder
	frames := runtime.CallersFrames(t.pcs)
	for {
		f, more := frames.Next()
		fmt.Fprintf(&b, "\t%s\n\t\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}
