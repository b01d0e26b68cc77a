package linktest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

var errTest = errors.New("broken by the test")

// requireUnusable: a closed link takes nothing in and says why.
func requireUnusable(t *testing.T, s *side, slot transport.Slot, why error) {
	t.Helper()
	require.ErrorIs(t, s.Commit(slot, call(1)), why)
	s.Discard(slot)
	for _, class := range [...]transport.Class{transport.Small, transport.Bulk, transport.Control} {
		_, err := s.Reserve(t.Context(), class, 1)
		require.ErrorIs(t, err, why)
	}
}

// testCloseRegular closes from many goroutines at once, twice each (case 72).
func testCloseRegular(t *testing.T, pair Pair) {
	a, b := started(t, pair)
	slot, err := a.Reserve(t.Context(), transport.Small, 8)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			a.Close(nil)
			a.Close(errTest) // too late to count
		})
	}
	a.Close(nil)
	requireUnusable(t, a, slot, net.ErrClosed)
	require.NoError(t, a.waitClosed())
	wg.Wait()
	b.waitNotice()
	a.Close(nil)
}

// waitNotice waits until the link has noticed that its peer is gone. Where
// only traffic shows that, there is some.
func (s *side) waitNotice() {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case <-s.Done():
			require.Error(s.t, s.waitClosed(), "the peer closed, not this side")
			return
		case <-time.After(moment):
			ctx, cancel := context.WithTimeout(s.t.Context(), moment)
			if slot, err := s.Reserve(ctx, transport.Control, 0); err == nil {
				if s.Commit(slot, &wire.Header{Kind: wire.Ping}) != nil {
					s.Discard(slot)
				}
			}
			cancel()
		}
	}
	require.FailNow(s.t, "the link has not noticed that its peer is gone")
}

func testCloseError(t *testing.T, pair Pair) {
	a, b := started(t, pair)
	slot, err := a.Reserve(t.Context(), transport.Small, 8)
	require.NoError(t, err)
	a.Close(errTest)
	a.Close(nil)
	requireUnusable(t, a, slot, errTest)
	require.ErrorIs(t, a.waitClosed(), errTest)
	b.waitNotice()
}

// testCloseInsideReceiver closes from Land and from Frame: nothing but Closed
// follows, although more has arrived (case 72).
func testCloseInsideReceiver(t *testing.T, pair Pair) {
	for _, where := range []string{"Land", "Frame"} {
		t.Run(where, func(t *testing.T) {
			a, b := newPair(t, pair)
			calls := 0
			act := func(h *wire.Header) error {
				if h.Kind == wire.Call {
					calls++
					b.Close(nil)
					b.Close(nil)
				}
				return nil
			}
			if where == "Land" {
				b.onLand = act
			} else {
				b.onFrame = act
			}
			a.Start(a)
			for range 8 {
				require.NoError(t, a.send(transport.Small, call(1), pattern(32, 1)))
			}
			b.Start(b)
			require.NoError(t, b.waitClosed())
			require.Equal(t, 1, calls)
			a.waitNotice()
		})
	}
}

// testReceiverError: an error of the receiver closes the link with it.
func testReceiverError(t *testing.T, pair Pair) {
	for _, where := range []string{"Land", "Frame"} {
		t.Run(where, func(t *testing.T) {
			a, b := newPair(t, pair)
			act := func(h *wire.Header) error {
				if h.Kind == wire.Call {
					return errTest
				}
				return nil
			}
			if where == "Land" {
				b.onLand = act
			} else {
				b.onFrame = act
			}
			a.Start(a)
			b.Start(b)
			greet(a, b)
			require.NoError(t, a.send(transport.Small, call(1), pattern(32, 1)))
			require.ErrorIs(t, b.waitClosed(), errTest)
			a.waitNotice()
		})
	}
}

// testCloseWhileBlocked: those who wait for room learn that there will be none.
func testCloseWhileBlocked(t *testing.T, pair Pair) {
	a, _ := newPair(t, pair)
	a.Start(a)
	large := pattern(a.MaxPayload(), 1)
	a.fill(transport.Small, large)
	const waiters = 8
	ends := make(chan error, waiters)
	for range waiters {
		go func() { ends <- a.send(transport.Small, call(1), large) }()
	}
	time.Sleep(moment)
	require.Zero(t, len(ends), "Reserve did not wait")
	a.Close(errTest)
	for range waiters {
		select {
		case err := <-ends:
			require.ErrorIs(t, err, errTest)
		case <-time.After(patience):
			require.FailNow(t, "a sender still waits")
		}
	}
}

// testCloseUnderLoad closes either side while many send both ways (case 13).
func testCloseUnderLoad(t *testing.T, pair Pair) {
	for round := range 4 {
		a, b := started(t, pair)
		var wg sync.WaitGroup
		for _, s := range [...]*side{a, b} {
			for range 8 {
				wg.Go(func() {
					for s.send(transport.Small, call(1), pattern(200, 1)) == nil {
					}
				})
			}
		}
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		if round%2 == 0 {
			a.Close(nil)
			a.waitDone()
			b.waitNotice() // it may be out of credit, and so without traffic
		} else {
			b.Close(errTest)
			b.waitDone()
			a.waitNotice()
		}
		wg.Wait()
	}
}

// testCloseUnstarted: a link that never delivered can be closed, and then not
// be started.
func testCloseUnstarted(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	slot, err := a.Reserve(t.Context(), transport.Small, 8)
	require.NoError(t, err)
	a.Close(nil)
	b.Close(errTest)
	requireUnusable(t, a, slot, net.ErrClosed)
	a.waitDone()
	b.waitDone()
	a.Start(a)
	require.Empty(t, a.closed)
}

// testUnsent: whatever a link that dies under load had been given is either
// numbered or told of when it is closed, once and in the order of Commit.
func testUnsent(t *testing.T, pair Pair) {
	for round := range 8 {
		a, b := newPair(t, pair)
		var n recorder
		a.Number(&n)
		var gate sync.RWMutex // no Commit runs during Unsent
		a.onClosed = func() {
			gate.Lock()
			defer gate.Unlock()
			a.Unsent(n.record)
		}
		a.Start(a)
		b.Start(b)
		greet(a, b)
		committed := make(chan uint64, 1)
		go func() {
			sent := uint64(0)
			for {
				slot, err := a.Reserve(t.Context(), transport.Small, 64)
				if err != nil {
					break
				}
				copy(slot.Payload, pattern(64, int(sent)))
				gate.RLock()
				err = a.Commit(slot, call(sent))
				gate.RUnlock()
				if err != nil {
					a.Discard(slot)
					break
				}
				sent++
			}
			committed <- sent
		}()
		time.Sleep(time.Duration(round) * time.Millisecond)
		a.Close(errTest)
		sent := <-committed
		a.waitDone()
		n.mu.Lock()
		require.Len(t, n.calls, int(sent))
		for i, c := range n.calls {
			require.EqualValues(t, i, c)
		}
		n.mu.Unlock()
		b.waitNotice()
	}
}

// recorder are Numbers that remember what was numbered, or was told of.
type recorder struct {
	transport.Sequence
	mu    sync.Mutex
	calls []uint64
}

func (r *recorder) Stamp(h *wire.Header, payload []byte) {
	r.Sequence.Stamp(h, payload)
	if h.Kind.InLane() {
		r.record(h, payload)
	}
}

func (r *recorder) record(h *wire.Header, payload []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !bytes.Equal(payload, pattern(64, int(h.Call))) {
		h.Call = 1 << 63
	}
	r.calls = append(r.calls, h.Call)
}

// testDropped: what Numbers drop does not reach the receiver, and the frames
// behind it do.
func testDropped(t *testing.T, pair Pair) {
	a, b := newPair(t, pair)
	b.Number(&dropper{})
	a.Start(a)
	b.Start(b)
	for i := range uint64(9) {
		require.NoError(t, a.send(transport.Small, call(i), pattern(200, int(i))))
	}
	for i, got := range b.take(5) {
		require.EqualValues(t, 2*i, got.h.Call)
		requireSame(t, pattern(200, 2*i), got.payload)
	}
}

// dropper are Numbers that drop each second call.
type dropper struct{ transport.Sequence }

func (d *dropper) Check(h *wire.Header) (bool, error) { return h.Call%2 == 1, nil }
