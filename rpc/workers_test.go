package rpc

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type taskFunc func()

func (taskFunc) size() int { return 1 }

func taskWorkers(limit, queueLimit, shareLimit, shareQueue int) *workers[taskFunc] {
	return &workers[taskFunc]{
		limit: limit, queueLimit: queueLimit, shareLimit: shareLimit, shareQueue: shareQueue,
		atRest: func() {},
		runner: func() func(taskFunc) int64 { return func(f taskFunc) int64 { f(); return clock() } },
	}
}

func workersOf(w *workers[taskFunc]) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

func TestWorkersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := taskWorkers(3, 5, 3, 5)
		one := &share[taskFunc]{maxBytes: 100}
		defer w.close()
		var order []int
		var now int32
		free := make(chan struct{})
		accepted := 0
		for i := range 20 {
			if !w.submit(one, taskFunc(func() {
				if n := atomic.AddInt32(&now, 1); n > 3 {
					t.Errorf("%d tasks at once", n)
				}
				<-free
				order = append(order, i) // one at a time: free is unbuffered
				atomic.AddInt32(&now, -1)
			})) {
				continue
			}
			accepted++
		}
		require.Equal(t, 8, accepted)
		synctest.Wait()
		for range accepted {
			free <- struct{}{}
			synctest.Wait()
		}
		require.Equal(t, []int{3, 4, 5, 6, 7}, order[len(order)-5:], "the queue is in order")
	})
}

func TestWorkersAreKeptAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := taskWorkers(100, 0, 100, 0)
		one := &share[taskFunc]{maxBytes: 100}
		run := func(n int) {
			free := make(chan struct{})
			for range n {
				require.True(t, w.submit(one, taskFunc(func() { <-free })))
			}
			synctest.Wait()
			close(free)
			synctest.Wait()
		}
		alive := func() int { return workersOf(w) }
		run(50)
		require.Equal(t, 50, alive())
		run(50)
		require.Equal(t, 50, alive(), "idle workers were not used")
		for range 20 { // 2 are enough for this; the others go
			time.Sleep(idleTime / 4)
			run(2)
		}
		require.Equal(t, 2, alive())
		time.Sleep(3 * idleTime)
		require.Zero(t, alive())
		require.Nil(t, w.trimmer)
		run(1)
		w.close()
		synctest.Wait()
		require.Zero(t, alive())
		require.False(t, w.submit(one, taskFunc(func() {})))
	})
}

func TestWorkersCloseUnderWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := taskWorkers(2, 10, 2, 10)
		one := &share[taskFunc]{maxBytes: 100}
		var ran atomic.Int32
		for range 5 {
			w.submit(one, taskFunc(func() { time.Sleep(time.Second); ran.Add(1) }))
		}
		w.close()
		w.close()
		time.Sleep(time.Minute)
		require.EqualValues(t, 5, ran.Load())
		require.Zero(t, workersOf(w))
	})
}

func TestTaskEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := taskWorkers(1, 10, 1, 10)
		one := &share[taskFunc]{maxBytes: 100}
		defer w.close()
		ran := 0
		for range 5 {
			w.submit(one, taskFunc(func() { ran++; runtime.Goexit() }))
		}
		synctest.Wait()
		require.Equal(t, 5, ran)
	})
}

// Sessions take turns, and none has more than its share, so that a task of
// another waits for one task at most.
func TestWorkersShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := taskWorkers(3, 100, 2, 4)
		defer w.close()
		hog, other := &share[taskFunc]{maxBytes: 100}, &share[taskFunc]{maxBytes: 100}
		order := make(chan string, 20)
		free := make(chan struct{})
		submit := func(sh *share[taskFunc], name string) bool {
			defer synctest.Wait()
			return w.submit(sh, taskFunc(func() {
				<-free
				order <- name
			}))
		}
		taken := 0
		for range 10 {
			if submit(hog, "hog") {
				taken++
			}
		}
		require.Equal(t, 2+4, taken)
		require.Equal(t, 2, workersOf(w))
		require.True(t, submit(other, "other"), "runs at once")
		require.Equal(t, 3, workersOf(w))
		require.True(t, submit(other, "other"))
		require.True(t, submit(other, "other"))
		for range 9 {
			free <- struct{}{}
			synctest.Wait()
			require.LessOrEqual(t, hog.running, 2)
		}
		require.Len(t, order, 9)
		for range 3 { // that run
			<-order
		}
		require.Contains(t, []string{<-order, <-order}, "other")
		require.Zero(t, hog.running+other.running+int(w.tasks.Load())+int(hog.bytes))

		hog.maxBytes = 2
		for want := range 6 {
			require.Equal(t, want < 4, submit(hog, "hog"), "2 run, 2 wait")
		}
		close(free)
		synctest.Wait()
	})
}
