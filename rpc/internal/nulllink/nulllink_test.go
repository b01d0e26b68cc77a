package nulllink_test

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/rpc/internal/nulllink"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

const (
	senders = 8
	each    = 5000
)

// end answers each CALL, and checks that the frames of a sender come in order, each
// with its payload, from one goroutine at a time.
type end struct {
	t      *testing.T
	link   transport.Link
	inside atomic.Bool
	next   [senders]uint64
	all    sync.WaitGroup // that have still to come
	closed chan error
}

func newEnd(t *testing.T, link transport.Link) *end {
	e := &end{t: t, link: link, closed: make(chan error, 1)}
	e.all.Add(senders * each)
	return e
}

func (e *end) Take(h *wire.Header, payload []byte) error {
	if e.inside.Swap(true) {
		e.t.Error("two deliver at once")
	}
	defer e.inside.Store(false)
	sender := h.Method
	if h.Call != e.next[sender] || binary.LittleEndian.Uint64(payload) != h.Call {
		e.t.Errorf("frame %d of sender %d, with %x, instead of %d", h.Call, sender, payload, e.next[sender])
	}
	e.next[sender] = h.Call + 1
	e.all.Done()
	if h.Kind == wire.Call {
		return e.send(wire.Reply, sender, h.Call)
	}
	return nil
}

func (e *end) send(kind wire.Kind, sender, n uint64) error {
	slot, err := e.link.Reserve(context.Background(), transport.Small, 8)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(slot.Payload, n)
	if err := e.link.Commit(slot, &wire.Header{Kind: kind, Method: sender, Call: n}); err != nil {
		return err
	}
	e.link.Flush()
	return nil
}

func (*end) Land(*wire.Header) ([]byte, error) { panic("frames are in memory") }
func (*end) Frame(*wire.Header) error          { panic("frames are in memory") }
func (e *end) Closed(err error)                { e.closed <- err }

// Whoever sends, and whoever delivers meanwhile, nothing is lost, doubled, passed by
// another, or left waiting.
func TestManySenders(t *testing.T) {
	a, b := nulllink.Pair()
	asks, answers := newEnd(t, a), newEnd(t, b)
	a.Start(asks)
	b.Start(answers)
	for sender := range uint64(senders) {
		go func() {
			for n := range uint64(each) {
				if n%64 == sender {
					slot, err := a.Reserve(context.Background(), transport.Small, 8)
					if err == nil {
						a.Discard(slot)
					}
				}
				if err := asks.send(wire.Call, sender, n); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for _, e := range []*end{answers, asks} {
		come := make(chan struct{})
		go func() { e.all.Wait(); close(come) }()
		select {
		case <-come:
		case <-time.After(30 * time.Second):
			t.Fatal("frames are left")
		}
	}
	require.Eventually(t, func() bool { // it is counted when all has been delivered
		s := a.Info().Stats
		return s.FramesSent == senders*each && s.FramesReceived == senders*each
	}, 10*time.Second, time.Millisecond)
	a.Close(nil)
	<-a.Done()
	<-b.Done()
	require.NoError(t, <-asks.closed)
	require.Error(t, <-answers.closed, "the other end has gone")
}
