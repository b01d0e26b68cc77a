package quota

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// In any order of taking and giving nobody gets in beyond the limits, or alone,
// nobody is turned away while there is room, and in the end all is back.
func TestLimits(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	rapid.Check(t, func(rt *rapid.T) {
		q := Quota{MaxCount: rapid.IntRange(1, 20).Draw(rt, "count"), MaxBytes: rapid.Int64Range(0, 1000).Draw(rt, "bytes")}
		var held []int
		sum := 0
		for range rapid.IntRange(0, 200).Draw(rt, "steps") {
			if len(held) > 0 && rapid.IntRange(0, 3).Draw(rt, "give") == 0 {
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				q.Give(1, held[i])
				sum -= held[i]
				held = append(held[:i], held[i+1:]...)
			} else {
				n := rapid.SampledFrom([]int{0, 1, 64, 2000}).Draw(rt, "n")
				fits := len(held) == 0 || len(held) < q.MaxCount && int64(sum+n) <= q.MaxBytes
				err := q.Take(over, n)
				require.Equal(rt, fits, err == nil, "%d more to %v", n, held)
				if err == nil {
					held = append(held, n)
					sum += n
				}
			}
			count, bytes := q.Used()
			require.Equal(rt, []int{len(held), sum}, []int{count, bytes})
		}
		q.Give(len(held), sum)
		count, bytes := q.Used()
		require.Zero(rt, count)
		require.Zero(rt, bytes)
	})
}

// Who waits, and who comes later, hears why it ended, and nobody gets in.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := errors.New("first"), errors.New("second")
		q := Quota{MaxCount: 1, MaxBytes: 1}
		require.NoError(t, q.Take(t.Context(), 1))
		waits := make(chan error, 1)
		go func() { waits <- q.Take(t.Context(), 1) }()
		synctest.Wait()
		q.End(first)
		q.End(second)
		require.Equal(t, first, <-waits)
		q.Give(1, 1)
		require.Equal(t, first, q.Take(t.Context(), 1))
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.Equal(t, first, q.Take(over, 1))
	})
}

func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := Quota{MaxCount: 3, MaxBytes: 10}
		take := func(ctx context.Context, n int) <-chan error {
			got := make(chan error, 1)
			go func() { got <- q.Take(ctx, n) }()
			synctest.Wait()
			return got
		}
		require.NoError(t, <-take(t.Context(), 4))
		require.NoError(t, <-take(t.Context(), 4))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		large, small := take(ctx, 5), take(t.Context(), 1)
		require.Empty(t, large)
		require.Empty(t, small, "passed one that came before")
		require.ErrorIs(t, <-large, context.DeadlineExceeded)
		require.NoError(t, <-small, "the next needs less")
		more := take(t.Context(), 1)
		require.Empty(t, more, "three at once")
		q.Give(1, 1)
		require.NoError(t, <-more)
		q.Give(1, 1)
		q.Give(1, 4)
		q.Give(1, 4)
		require.NoError(t, <-take(t.Context(), 10), "something was not given back")
	})
}

// A sender that gives up in its turn does not keep it.
func TestGivesUpInTurn(t *testing.T) {
	q := Quota{MaxCount: 1, MaxBytes: 1}
	done := make(chan struct{})
	for range 8 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 2000 {
				ctx, cancel := context.WithCancel(context.Background())
				go cancel()
				if err := q.Take(ctx, 1); err == nil {
					q.Give(1, 1)
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		}()
	}
	for range 8 {
		<-done
	}
	require.NoError(t, q.Take(context.Background(), 1))
}

// taker is who has taken room, or waits for it.
type taker struct {
	bytes int
	quit  context.CancelFunc
	got   chan error
}

// In any order of taking, giving back and giving up, those wait, and those alone, for
// whom there is no room behind those before them.
func TestWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		q := Quota{MaxCount: 3, MaxBytes: 10}
		var held, waits []*taker
		let := func() {
			for len(waits) > 0 {
				sum := waits[0].bytes
				for _, h := range held {
					sum += h.bytes
				}
				if len(held) > 0 && (len(held) == q.MaxCount || sum > int(q.MaxBytes)) {
					return
				}
				held, waits = append(held, waits[0]), waits[1:]
			}
		}
		pick := func(from *[]*taker) *taker {
			i := rng.IntN(len(*from))
			k := (*from)[i]
			*from = slices.Delete(*from, i, i+1)
			return k
		}
		for range 5000 {
			switch op := rng.IntN(6); {
			case op < 3 && len(waits) < 6:
				ctx, quit := context.WithCancel(t.Context())
				k := &taker{bytes: rng.IntN(13), quit: quit, got: make(chan error, 1)}
				go func() { k.got <- q.Take(ctx, k.bytes) }()
				waits = append(waits, k)
			case op < 5 && len(held) > 0:
				k := pick(&held)
				require.NoError(t, <-k.got)
				k.quit()
				q.Give(1, k.bytes)
			case len(waits) > 0:
				k := pick(&waits)
				k.quit()
				require.ErrorIs(t, <-k.got, context.Canceled)
			}
			let()
			synctest.Wait()
			for _, k := range held {
				require.Len(t, k.got, 1, "waits although there is room")
			}
			for _, k := range waits {
				require.Empty(t, k.got, "does not wait")
			}
		}
		q.End(errors.New("over"))
	})
}

// Room that comes free while somebody begins to wait is his.
func TestFreeMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := Quota{MaxCount: 1, MaxBytes: 1}
		require.NoError(t, q.Take(t.Context(), 1))
		require.NoError(t, q.Take(&asked{t.Context(), sync.OnceFunc(func() { q.Give(1, 1) })}, 1))
	})
}

// asked is a context that does something when its Done is asked for.
type asked struct {
	context.Context
	first func()
}

func (a *asked) Done() <-chan struct{} {
	a.first()
	return a.Context.Done()
}
