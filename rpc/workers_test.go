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

func (f taskFunc) run() { f() }

func workersOf(w *workers) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running
}

func TestWorkersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workers{limit: 3, queueLimit: 5}
		defer w.close()
		var order []int
		var now int32
		free := make(chan struct{})
		accepted := 0
		for i := range 20 {
			if !w.submit(taskFunc(func() {
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
		w := workers{limit: 100}
		run := func(n int) {
			free := make(chan struct{})
			for range n {
				require.True(t, w.submit(taskFunc(func() { <-free })))
			}
			close(free)
			synctest.Wait()
		}
		alive := func() int { return workersOf(&w) }
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
		require.False(t, w.submit(taskFunc(func() {})))
	})
}

func TestWorkersCloseUnderWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workers{limit: 2, queueLimit: 10}
		var ran atomic.Int32
		for range 5 {
			w.submit(taskFunc(func() { time.Sleep(time.Second); ran.Add(1) }))
		}
		w.close()
		w.close()
		time.Sleep(time.Minute)
		require.EqualValues(t, 5, ran.Load())
		require.Zero(t, workersOf(&w))
	})
}

func TestTaskEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workers{limit: 1, queueLimit: 10}
		defer w.close()
		ran := 0
		for range 5 {
			w.submit(taskFunc(func() { ran++; runtime.Goexit() }))
		}
		synctest.Wait()
		require.Equal(t, 5, ran)
	})
}
