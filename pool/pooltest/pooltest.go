// Package pooltest makes tests fail for memory that was not given back.
package pooltest

import (
	"runtime/debug"
	"testing"
	"time"

	"github.com/verbena-rpc/verbena/pool"
)

// grace is how long goroutines that the test stopped have to release what
// they hold.
const grace = 2 * time.Second

// Check watches the pool until the test and its other cleanups are over. The
// test fails if a buffer or arena allocated meanwhile is not released then, or
// if released memory was written to; the message names the allocation site.
//
// Call it first, so that its cleanup runs last, and not in parallel tests: a
// Watch sees the whole process.
func Check(t testing.TB) {
	t.Helper()
	w := pool.StartWatch()
	t.Cleanup(func() {
		t.Helper()
		for end := time.Now().Add(grace); w.Live() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// Forgets says that sync.Pool drops items at random, as it does under the race
// detector: what counts allocations has to allow for more.
func Forgets() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return true
		}
	}
	return false
}
