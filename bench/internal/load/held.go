package load

import (
	"runtime"
	"runtime/debug"
)

// Held is what a process holds at one moment. What this system does not tell is 0.
type Held struct {
	Heap       int64 `json:"heap_bytes"` // of live objects
	Stacks     int64 `json:"stack_bytes"`
	Pinned     int64 `json:"pinned_bytes"`   // registered with devices
	Resident   int64 `json:"resident_bytes"` // in memory, what is shared included
	Goroutines int64 `json:"goroutines"`
	Files      int64 `json:"files"` // descriptors that are open
}

// ReadHeld collects garbage, gives free memory back to the system, and is what
// this process holds then, but for Pinned. Pools need two collections to let go.
func ReadHeld() Held {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h := Held{Heap: int64(m.HeapAlloc), Stacks: int64(m.StackInuse), Goroutines: int64(runtime.NumGoroutine())}
	h.Resident, h.Files = processHolds()
	return h
}

// Sub is what is held beyond before.
func (h Held) Sub(before Held) Held {
	return Held{
		Heap: h.Heap - before.Heap, Stacks: h.Stacks - before.Stacks, Pinned: h.Pinned - before.Pinned,
		Resident: h.Resident - before.Resident, Goroutines: h.Goroutines - before.Goroutines, Files: h.Files - before.Files,
	}
}
