package linktest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// helped is a side whose user waits for one frame at a time, and may help.
type helped struct {
	*side
	helper  transport.Helper
	done    transport.Signal
	waiting atomic.Int32
	rand    *rand.Rand
	spare   []uint64 // ids of frames that nobody waits for
}

// unawaited marks the id of a frame that nobody waits for.
const unawaited = 1 << 40

func newHelped(s *side, helper transport.Helper, seed uint64) *helped {
	w := &helped{side: s, helper: helper, rand: rand.New(rand.NewPCG(seed, 0))}
	s.onFrame = func(h *wire.Header) error {
		if h.Call&unawaited != 0 {
			w.spare = append(w.spare, h.Call&^unawaited)
			return nil
		}
		w.done.Set()
		return nil
	}
	return w
}

// wait waits for the next frame, in one of the ways that there are.
func (w *helped) wait() {
	w.waiting.Add(1)
	defer w.waiting.Add(-1)
	if w.rand.IntN(8) > 0 {
		for !w.done.IsSet() && w.helper.Help(&w.done, &w.waiting) {
		}
	}
	woken := w.done.Await()
	if woken == nil {
		return
	}
	select {
	case <-woken:
	case <-time.After(patience):
		w.t.Error("a frame is missing")
	}
}

// testHelped: whoever takes in what arrives, the link or who waits for it, in any
// order, all of it arrives, once and in order, and so does what nobody waits for.
func testHelped(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	helperA, ok := a.Link.(transport.Helper)
	if !ok {
		t.Skip("nobody can help this link")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	asks, answers := newHelped(a, helperA, seed), newHelped(b, b.Link.(transport.Helper), seed+1)
	a.Start(a)
	b.Start(b)
	const rounds, spare = 1000, 300
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range rounds {
			answers.wait()
			if err := b.send(transport.Small, call(uint64(i)), pattern(answers.size(), i)); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for i := range spare {
			if err := b.send(transport.Small, call(uint64(i)|unawaited), pattern(min(100*i, b.MaxPayload()), i)); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Duration(i%3) * 300 * time.Microsecond)
		}
	})
	for i := range rounds {
		require.NoError(t, a.send(transport.Small, call(uint64(i)), pattern(asks.size(), i)))
		asks.wait()
		if i%100 == 99 {
			time.Sleep(time.Duration(asks.rand.IntN(15)) * time.Millisecond)
		}
	}
	wg.Wait()
	next := [2]uint64{}
	for _, got := range a.take(rounds + spare) {
		kind := got.h.Call / unawaited
		id := got.h.Call &^ unawaited
		require.Equal(t, next[kind], id)
		requireSame(t, pattern(len(got.payload), int(id)), got.payload)
		next[kind]++
	}
	require.Equal(t, [2]uint64{rounds, spare}, next)
	for i, got := range b.take(rounds) {
		require.Equal(t, uint64(i), got.h.Call)
		requireSame(t, pattern(len(got.payload), i), got.payload)
	}
}

// size is mostly small, and at times more than one read.
func (w *helped) size() int {
	if w.rand.IntN(20) == 0 {
		return w.rand.IntN(w.MaxPayload())
	}
	return w.rand.IntN(200)
}

// testCloseWhileHelped closes either side while users of both help: they learn of
// it, and of the receivers only Closed is called from then on.
func testCloseWhileHelped(t *testing.T, pair Pair) {
	for round := range 8 {
		a, b := newPair(t, pair)
		helperA, ok := a.Link.(transport.Helper)
		if !ok {
			t.Skip("nobody can help this link")
		}
		sides := [2]*helped{newHelped(a, helperA, 1), newHelped(b, b.Link.(transport.Helper), 2)}
		a.Start(a)
		b.Start(b)
		var wg sync.WaitGroup
		for i, w := range sides {
			wg.Go(func() {
				w.waiting.Add(1)
				for n := 0; ; n++ {
					if (n+i)%2 == 0 && w.send(transport.Small, call(uint64(n)), nil) != nil {
						return
					}
					if (n+i)%2 == 1 {
						for !w.done.IsSet() && w.helper.Help(&w.done, &w.waiting) {
						}
						woken := w.done.Await()
						if woken == nil {
							continue
						}
						select {
						case <-woken:
						case <-w.Done():
							return
						}
					}
				}
			})
		}
		time.Sleep(time.Duration(round) * 3 * time.Millisecond)
		if s := sides[round%2]; round < 4 {
			s.Close(nil)
		} else {
			s.Close(errTest)
		}
		sides[round%2].waitClosed()
		sides[1-round%2].waitNotice()
		wg.Wait()
	}
}
