package rpc

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func isDone(ctx context.Context) bool { return isClosed(ctx.Done()) }

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Whether anybody has asked for Done or not, the context says the same.
func TestContext(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for _, c := range []struct {
			name     string
			deadline bool
			do       func(*callContext)
			want     error
		}{
			{"no deadline", false, func(*callContext) { time.Sleep(time.Hour) }, nil},
			{"in time", true, func(*callContext) { time.Sleep(time.Second - 1) }, nil},
			{"deadline", true, func(*callContext) { time.Sleep(time.Second) }, context.DeadlineExceeded},
			{"ended", false, (*callContext).end, context.Canceled},
			{"ended in time", true, (*callContext).end, context.Canceled},
			{"ended, then deadline", true, func(c *callContext) { c.end(); time.Sleep(time.Hour) }, context.Canceled},
			{"ended twice", true, func(c *callContext) { c.end(); c.end() }, context.Canceled},
		} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx := &callContext{}
					want := time.Time{}
					if c.deadline {
						ctx.timed, ctx.deadline = true, clock()+int64(time.Second)
						want = time.Now().Add(time.Second)
					}
					defer ctx.end()
					if waits {
						require.False(t, isDone(ctx))
					}
					c.do(ctx)
					synctest.Wait()
					require.Equal(t, c.want, ctx.Err())
					require.Equal(t, c.want != nil, isDone(ctx))
					require.Equal(t, c.want, ctx.Err())
					require.Nil(t, ctx.Value("key"))
					at, ok := ctx.Deadline()
					require.Equal(t, c.deadline, ok)
					require.True(t, want.Equal(at))
				})
			})
		}
	}
}

// A context that was over its deadline stays so when the call ends.
func TestContextStaysOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, look := range []func(*callContext){func(c *callContext) { _ = c.Err() }, func(c *callContext) { c.Done() }} {
			ctx := &callContext{timed: true, deadline: clock() + int64(time.Second)}
			look(ctx)
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, context.DeadlineExceeded, ctx.Err())
			ctx.end()
			require.Equal(t, context.DeadlineExceeded, ctx.Err())
		}
	})
}

// Contexts that a handler derives end with it and cost no goroutine.
func TestDerivedContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := &callContext{}
		before := runtime.NumGoroutine()
		var derived []context.Context
		for range 10 {
			d, cancel := context.WithCancel(context.WithValue(ctx, "key", 1)) //lint:ignore SA1029 any key will do
			defer cancel()
			derived = append(derived, d)
		}
		require.Equal(t, before, runtime.NumGoroutine())
		ctx.end()
		for _, d := range derived {
			require.ErrorIs(t, d.Err(), context.Canceled)
		}
	})
}

// A handler may keep its context and look at it from anywhere: it stays over.
func TestKeptContexts(t *testing.T) {
	var mu sync.Mutex
	var kept []context.Context
	r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		if err := ctx.Err(); err != nil {
			t.Error(err)
		}
		kept = append(kept, ctx)
		return req, nil
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if _, err := r.echo(t.Context(), "x"); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 100 {
				mu.Lock()
				for _, ctx := range kept {
					_ = isDone(ctx)
				}
				mu.Unlock()
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return r.server.Stats().InFlight == 0 }, 10*time.Second, time.Millisecond)
	for _, ctx := range kept {
		require.ErrorIs(t, ctx.Err(), context.Canceled)
	}
}
