// Package linktest holds the conformance suite for links: whatever implements
// transport.Link passes it.
package linktest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

const (
	// patience is a deadline that only a hang exceeds, under emulation too.
	patience = 60 * time.Second

	// moment is how long a call is watched that is expected to wait.
	moment = 100 * time.Millisecond
)

// Pair makes two links that are connected to each other and not started. a is
// the side that connected. What else it makes it releases in t.Cleanup, after
// the links are done; the suite closes the links.
type Pair func(t *testing.T) (a, b transport.Link)

// Run runs the suite.
func Run(t *testing.T, pair Pair) {
	for _, test := range []struct {
		name  string
		run   func(*testing.T, Pair)
		watch bool // the pool: too slow for tests that move many bytes
	}{
		{"Sizes", testSizes, true},
		{"Refer", testRefer, true},
		{"Order", testOrder, false},
		{"Concurrent", testConcurrent, false},
		{"Helped", testHelped, false},
		{"Stats", testStats, true},
		{"ReserveWaits", testReserveWaits, false},
		{"ReserveNow", testReserveNow, true},
		{"ReserveNowBesideWaiters", testReserveNowBesideWaiters, false},
		{"ReserveTooLarge", testReserveTooLarge, true},
		{"Discard", testDiscard, true},
		{"ControlPasses", testControlPasses, false},
		{"SmallPassesBulk", testSmallPassesBulk, false},
		{"CloseRegular", testCloseRegular, true},
		{"CloseError", testCloseError, true},
		{"CloseInsideReceiver", testCloseInsideReceiver, true},
		{"CloseWhileBlocked", testCloseWhileBlocked, false},
		{"CloseUnderLoad", testCloseUnderLoad, false},
		{"CloseWhileHelped", testCloseWhileHelped, false},
		{"CloseUnstarted", testCloseUnstarted, true},
		{"ReceiverError", testReceiverError, true},
	} {
		before := usage()
		t.Run(test.name, func(t *testing.T) {
			if test.watch {
				pooltest.Check(t)
			}
			test.run(t, pair)
		})
		requireReleased(t, before)
	}
}

// resources are what a link must not leave behind.
type resources struct{ goroutines, files int }

func usage() resources {
	files, _ := os.ReadDir("/proc/self/fd") // none on other systems
	return resources{runtime.NumGoroutine(), len(files)}
}

func requireReleased(t *testing.T, before resources) {
	t.Helper()
	var now resources
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		now = usage()
		if now.goroutines <= before.goroutines && now.files <= before.files {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	t.Errorf("before %+v, after %+v\n%s", before, now, stacks)
}

// arrival is a frame as a receiver saw it.
type arrival struct {
	h       wire.Header
	payload []byte
}

// side is one end of a pair. Its receiver keeps all frames.
type side struct {
	transport.Link
	t *testing.T

	onFrame func(*wire.Header) error // set before start; nil: none
	onLand  func(*wire.Header) error

	mu      sync.Mutex
	arrived []arrival
	landed  []byte
	inside  int // calls under way
	closed  []error
	faults  []string
	news    chan struct{} // one token: arrived or closed has grown
}

func (s *side) enter(what string) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inside++; s.inside > 1 {
		s.faults = append(s.faults, what+" while another call runs")
	}
	if len(s.closed) > 0 {
		s.faults = append(s.faults, what+" after Closed")
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inside--
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// Take gives a frame to a receiver that does not distinguish: Land, a copy, and Frame.
func Take(r transport.Receiver, h *wire.Header, payload []byte) error {
	if len(payload) > 0 {
		dst, err := r.Land(h)
		if err != nil {
			return err
		}
		copy(dst, payload)
	}
	return r.Frame(h)
}

func (s *side) Take(h *wire.Header, payload []byte) error { return Take(s, h, payload) }

func (s *side) Land(h *wire.Header) ([]byte, error) {
	defer s.enter("Land")()
	if h.Length == 0 {
		s.faults = append(s.faults, "Land of an empty payload")
	}
	if s.onLand != nil {
		if err := s.onLand(h); err != nil {
			return nil, err
		}
	}
	s.landed = make([]byte, h.Length)
	return s.landed, nil
}

func (s *side) Frame(h *wire.Header) error {
	defer s.enter("Frame")()
	s.mu.Lock()
	s.arrived = append(s.arrived, arrival{*h, s.landed})
	s.mu.Unlock()
	s.landed = nil
	if s.onFrame != nil {
		return s.onFrame(h)
	}
	return nil
}

func (s *side) Closed(err error) {
	defer s.enter("Closed")()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = append(s.closed, err)
}

// newPair makes a pair that is not started and ends with the test, when each
// receiver is held to the rules of the contract.
func newPair(t *testing.T, pair Pair) (a, b *side) {
	t.Helper()
	la, lb := pair(t)
	a = &side{Link: la, t: t, news: make(chan struct{}, 1)}
	b = &side{Link: lb, t: t, news: make(chan struct{}, 1)}
	t.Cleanup(func() {
		for _, s := range [...]*side{a, b} {
			s.Close(nil)
		}
		for _, s := range [...]*side{a, b} {
			s.waitDone()
			s.mu.Lock()
			require.Empty(t, s.faults)
			require.LessOrEqual(t, len(s.closed), 1, "calls of Closed")
			s.mu.Unlock()
		}
	})
	return a, b
}

// started makes a pair over which both sides have heard of each other.
func started(t *testing.T, pair Pair) (a, b *side) {
	t.Helper()
	a, b = newPair(t, pair)
	a.Start(a)
	b.Start(b)
	greet(a, b)
	return a, b
}

func greet(a, b *side) {
	a.t.Helper()
	a.ping()
	b.take(1)
	b.ping()
	a.take(1)
}

func (s *side) ping() {
	s.t.Helper()
	require.NoError(s.t, s.send(transport.Control, &wire.Header{Kind: wire.Ping}, nil))
}

// take waits for n frames and returns them, oldest first.
func (s *side) take(n int) []arrival {
	s.t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		if len(s.arrived) >= n {
			out := s.arrived[:n:n]
			s.arrived = s.arrived[n:]
			s.mu.Unlock()
			return out
		}
		have, closed := len(s.arrived), s.closed
		s.mu.Unlock()
		select {
		case <-s.news:
		case <-late:
			require.FailNow(s.t, "frames are missing", "have %d of %d, closed %v", have, n, closed)
		}
	}
}

// waitClosed waits for the end of the link and returns what Closed was told.
func (s *side) waitClosed() error {
	s.t.Helper()
	s.waitDone()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(s.t, s.closed, 1, "Closed comes before Done, once")
	return s.closed[0]
}

func (s *side) waitDone() {
	s.t.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience):
		require.FailNow(s.t, "the link is not done")
	}
}

func (s *side) send(class transport.Class, h *wire.Header, payload []byte) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	slot, err := s.Reserve(ctx, class, len(payload))
	if err != nil {
		return err
	}
	if len(slot.Payload) != len(payload) {
		return fmt.Errorf("slot of %d bytes, asked for %d", len(slot.Payload), len(payload))
	}
	copy(slot.Payload, payload)
	if err := s.Commit(slot, h); err != nil {
		s.Discard(slot)
		return err
	}
	return nil
}

// fill sends frames of that class until Reserve waits, and returns how many.
func (s *side) fill(class transport.Class, payload []byte) int {
	s.t.Helper()
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(s.t.Context(), moment)
		slot, err := s.Reserve(ctx, class, len(payload))
		cancel()
		if err != nil {
			require.ErrorIs(s.t, err, context.DeadlineExceeded)
			require.Positive(s.t, n, "no room on a fresh link")
			return n
		}
		copy(slot.Payload, payload)
		require.NoError(s.t, s.Commit(slot, call(uint64(n))))
	}
}

// Commit commits and flushes.
func (s *side) Commit(slot transport.Slot, h *wire.Header) error { return Commit(s.Link, slot, h) }

// Commit commits a frame to a link and flushes it.
func Commit(l transport.Link, slot transport.Slot, h *wire.Header) error {
	if err := l.Commit(slot, h); err != nil {
		return err
	}
	l.Flush()
	return nil
}

func call(id uint64) *wire.Header {
	return &wire.Header{Kind: wire.Call, Lane: transport.LaneID, Call: id}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

func requireSame(t *testing.T, want, got []byte) {
	t.Helper()
	if !bytes.Equal(want, got) {
		require.Equal(t, len(want), len(got), "payload length")
		for i := range want {
			require.Equal(t, want[i], got[i], "payload byte %d of %d", i, len(want))
		}
	}
}
