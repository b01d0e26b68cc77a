package rpc

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport"
)

// helpedShare is the share of a session whose lane has somebody take in what is
// put into arrives, until he is told otherwise; and what was seen of them.
type helpedShare struct {
	share[taskFunc]
	arrives chan func()
	calls   atomic.Int32
	inside  atomic.Int32
	roused  atomic.Int32
	waiting atomic.Int32 // as it was when the last left
}

// helpedWorkers are ten workers, and one session whose lane they may help, in a
// bubble.
func helpedWorkers(t *testing.T) (*workers[taskFunc], *helpedShare) {
	w, h := taskWorkers(10, 10, 10, 10), newHelpedShare()
	t.Cleanup(func() {
		w.close()
		pause()
	})
	return w, h
}

// pause lets who helps see what there is.
func pause() {
	time.Sleep(5 * time.Millisecond)
	synctest.Wait()
}

func newHelpedShare() *helpedShare {
	h := &helpedShare{arrives: make(chan func())}
	h.maxBytes = 100
	h.share.help, h.share.rouse = h.help, func() { h.roused.Add(1) }
	return h
}

func (h *helpedShare) help(done *transport.Signal, waiting *atomic.Int32) bool {
	h.calls.Add(1)
	h.inside.Add(1)
	defer h.inside.Add(-1)
	for !done.IsSet() {
		select {
		case f := <-h.arrives:
			f()
		case <-time.After(time.Millisecond):
		}
	}
	h.waiting.Store(waiting.Load())
	return true
}

// warm has one worker of w help h.
func (h *helpedShare) warm(t *testing.T, w *workers[taskFunc]) {
	t.Helper()
	for range 2 { // what the first does is not known to be short
		require.True(t, w.submit(&h.share, func() {}))
		pause()
	}
	require.EqualValues(t, 1, h.inside.Load())
	require.Equal(t, 1, workersOf(w))
}

// A worker whose tasks are short takes in the next itself, and nobody is woken.
func TestWorkerHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, h := helpedWorkers(t)
		h.warm(t, w)
		for range 10 {
			inside, ran := false, false
			h.arrives <- func() {
				inside = true
				w.submit(&h.share, func() { require.False(t, inside); ran = true })
				inside = false
			}
			pause()
			require.True(t, ran)
			require.EqualValues(t, 1, h.waiting.Load(), "nobody else need be served")
		}
		require.Equal(t, 1, workersOf(w))
	})
}

// A worker whose last tasks took long does not help: others would wait while it
// runs the next.
func TestWorkerOfLongTasksSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, h := helpedWorkers(t)
		for range 10 {
			w.submit(&h.share, func() { time.Sleep(shortRun + 1) })
			pause()
		}
		require.Zero(t, h.calls.Load())
		h.warm(t, w)
	})
}

// What comes besides the task of who helps is run by others, if that blocks.
func TestHelperGetsMoreThanOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, h := helpedWorkers(t)
		h.warm(t, w)
		free := make(chan struct{})
		ran := 0
		h.arrives <- func() {
			w.submit(&h.share, func() { <-free })
			w.submit(&h.share, func() { ran++ })
		}
		pause()
		require.Equal(t, 1, ran)
		require.EqualValues(t, 2, h.waiting.Load(), "somebody goes on in its place")
		require.Zero(t, h.inside.Load(), "somebody helps while a task runs")
		w.submit(&h.share, func() { ran++ })
		synctest.Wait()
		require.Equal(t, 2, ran)
		close(free)
	})
}

// A worker that helps ends when it is trimmed, and at the close.
func TestHelpEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, h := helpedWorkers(t)
		h.warm(t, w)
		time.Sleep(3 * idleTime)
		require.Zero(t, workersOf(w))
		require.Zero(t, h.inside.Load())
		h.warm(t, w)
		w.close()
		pause()
		require.Zero(t, h.inside.Load())
	})
}

// A lane that sleeps until something arrives on it is roused when its helper is
// to run a task of another session, and when its helper does not come back.
func TestHelpedLaneIsRoused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, h := helpedWorkers(t)
		h.warm(t, w)
		h.arrives <- func() { w.submit(&h.share, func() {}) }
		pause()
		require.Zero(t, h.roused.Load(), "it brought the task itself")
		require.EqualValues(t, 1, h.inside.Load())

		other := newHelpedShare()
		w.submit(&other.share, func() {})
		require.EqualValues(t, 1, h.roused.Load())
		pause()
		require.EqualValues(t, 1, other.inside.Load(), "the helper has gone to the other")

		before := other.roused.Load()
		other.arrives <- func() { w.submit(&other.share, func() { time.Sleep(shortRun + 1) }) }
		pause()
		require.Equal(t, before+1, other.roused.Load(), "nobody helps after a long task")
	})
}

// Tasks come from who helps and from others at once: each runs, and one worker
// helps at most.
func TestHelpersTakeTurns(t *testing.T) {
	const sources, each = 3, 3000
	w, h := taskWorkers(4, sources*each, 4, sources*each), newHelpedShare()
	h.maxBytes = sources * each
	defer w.close()
	var ran sync.WaitGroup
	var most, helped atomic.Int32
	submit := func() { w.submit(&h.share, ran.Done) }
	h.share.help = func(done *transport.Signal, _ *atomic.Int32) bool {
		if h.inside.Add(1) > 1 {
			most.Store(2)
		}
		defer h.inside.Add(-1)
		helped.Add(1)
		for range 100 {
			select {
			case f := <-h.arrives:
				f()
			default:
			}
			if done.IsSet() {
				return true
			}
		}
		return rand.N(4) > 0
	}
	ran.Add(sources * each)
	for source := range sources {
		go func() {
			for range each {
				if source > 0 {
					submit()
				} else {
					select {
					case h.arrives <- submit:
					case <-time.After(100 * time.Microsecond):
						submit()
					}
				}
				if rand.N(8) == 0 {
					time.Sleep(rand.N(100 * time.Microsecond))
				}
			}
		}()
	}
	ran.Wait()
	require.Zero(t, most.Load(), "two helped at once")
	require.NotZero(t, helped.Load())
}

// A worker helps after handlers that return soon, and never after those that block.
func TestServerHelpsAfterShortHandlers(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		helps bool
	}{{0, true}, {shortRun / 2, true}, {2 * shortRun, false}, {time.Second / 2, false}} {
		synctest.Test(t, func(t *testing.T) {
			r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
				time.Sleep(c.takes)
				return req, nil
			})
			defer r.close()
			for range 3 {
				_, err := r.echo(t.Context(), "hello")
				require.NoError(t, err)
				synctest.Wait()
			}
			require.Equal(t, c.helps, r.remote.helped.Load() > 0, c.takes.String())
		})
	}
}

// While a handler that has run for long lately runs, the lane is not left to who
// runs it, for as many calls as that is worth.
func TestServerIsWaryOfSlowHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *rig
		var roused int32 // before the handler ran
		r = join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			roused = r.remote.roused.Load()
			text, fails := strings.CutSuffix(string(*req), " and fail")
			takes, err := time.ParseDuration(text)
			require.NoError(t, err)
			time.Sleep(takes)
			if fails {
				return nil, errNobody
			}
			return req, nil
		})
		defer r.close()
		calls := func(n int, takes string, foreseen bool) {
			t.Helper()
			for range n {
				before := r.remote.roused.Load()
				_, _ = r.echo(t.Context(), takes)
				synctest.Wait()
				require.Equal(t, foreseen, roused > before)
			}
		}
		calls(100, "0s", false)
		for _, long := range []string{"1ms", "1ms and fail"} {
			calls(1, long, false)
			calls(int(time.Millisecond/shortRun), "0s", true)
			calls(100, "0s", false)
		}
		calls(1, "1ms", false)
		calls(5, "0s", true)
		calls(1, "500us", true)
		calls(15, "0s", true) // what is left of the first: the second is worth less
		calls(100, "0s", false)
		calls(1, "1h", false)
		calls(maxWary, "0s", true)
		calls(100, "0s", false)
	})
}

// What others may have to wait for runs that were not foreseen is shortRun per
// call at most.
func TestWaryIsEnough(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const most = int64(maxWary * shortRun)
		m := new(method)
		lost, last := int64(0), int64(0)
		for calls := range rapid.IntRange(1, 5000).Draw(rt, "calls") {
			took := int64(0)
			if rapid.IntRange(0, 20).Draw(rt, "slow") == 0 {
				took = rapid.Int64Range(1, 2*most).Draw(rt, "took")
			}
			foreseen := m.isWary()
			m.learn(took)
			if !foreseen {
				last = min(took, most)
				lost += last
			}
			require.LessOrEqual(rt, lost-last, int64(calls)*int64(shortRun))
		}
	})
}
