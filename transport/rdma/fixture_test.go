package rdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// end is one side of a test: a provider and the address of its device.
type end struct {
	provider verbs.Provider
	addr     net.Addr
}

func tcpAddr(ip string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip), 4000))
}

func simEnds(t testing.TB, cfg simverbs.Config) (*simverbs.Fabric, [2]end) {
	f := simverbs.NewFabric(cfg)
	f.Watch(t)
	return f, [2]end{{f.Provider("a"), tcpAddr("10.8.0.1")}, {f.Provider("b"), tcpAddr("10.8.1.1")}}
}

// realEnds are the two rxe devices of the test VM. Without them the test is
// skipped, or fails where VERBENA_REQUIRE_RDMA is set.
func realEnds(t testing.TB) [2]end { return realEndsOf(t, AutoProvider) }

func realEndsOf(t testing.TB, which Provider) [2]end {
	p := which.provider()
	names, err := p.Devices()
	for _, want := range []string{"rxe0", "rxe1"} {
		if !strings.Contains(strings.Join(names, " "), want) {
			reason := fmt.Sprintf("no RDMA: device %s is not among %v (%v)", want, names, err)
			if os.Getenv("VERBENA_REQUIRE_RDMA") != "" {
				t.Fatal(reason)
			}
			t.Skip(reason)
		}
	}
	return [2]end{{p, tcpAddr("10.8.0.1")}, {p, tcpAddr("10.8.1.1")}}
}

// fabric makes a fabric for one end and checks at the end of the test that it
// closes and leaves nothing.
func (e end) fabric(t testing.TB, cfg Config) *Fabric {
	cfg.Strict = true
	f := NewOn(e.provider, cfg)
	t.Cleanup(func() {
		within(t, "Fabric.Close", func() { require.NoError(t, f.Close()) })
	})
	return f
}

// checkLeaks fails the test if it leaves a verbs object, a goroutine or memory.
// It is called first, so that it looks last.
func checkLeaks(t testing.TB) {
	pooltest.Check(t)
	before := runtime.NumGoroutine()
	objects := len(verbs.Live())
	t.Cleanup(func() {
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if runtime.NumGoroutine() <= before && len(verbs.Live()) <= objects {
				return
			}
		}
		if left := verbs.Live(); len(left) > objects {
			t.Errorf("verbs objects left: %v", left[objects:])
		}
		if n := runtime.NumGoroutine(); n > before {
			buf := make([]byte, 1<<20)
			t.Errorf("%d goroutines more than before:\n%s", n-before, buf[:runtime.Stack(buf, true)])
		}
	})
}

// within fails the test with all stacks if fn takes longer than any machine needs.
func within(t testing.TB, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("%s hangs:\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}

// join connects two halves made at the two ends.
func join(ctx context.Context, fabrics [2]*Fabric, ends [2]end) (links [2]transport.Link, err error) {
	var halves [2]transport.Half
	for i, f := range fabrics {
		if halves[i], err = f.Prepare(ctx, ends[i].addr); err != nil {
			if i == 1 {
				halves[0].Abort()
			}
			return links, err
		}
	}
	offers := [2]wire.QP{halves[0].Offer(), halves[1].Offer()}
	for i, h := range halves {
		if links[i], err = h.Connect(ctx, 0xe10c, offers[1-i]); err != nil {
			if i == 0 {
				halves[1].Abort()
			} else {
				links[0].Close(err)
			}
			return links, err
		}
	}
	return links, nil
}

// closeAll closes fabrics whose links are over.
func closeAll(t testing.TB, fabrics [2]*Fabric) {
	t.Helper()
	for _, f := range fabrics {
		require.NoError(t, f.Close())
	}
}

// pair makes two fabrics and a link between them.
func pair(t testing.TB, ends [2]end, cfg Config) (fabrics [2]*Fabric, links [2]*link) {
	t.Helper()
	fabrics = [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
	made, err := join(context.Background(), fabrics, ends)
	require.NoError(t, err)
	return fabrics, [2]*link{made[0].(*link), made[1].(*link)}
}

// sink is a Receiver that remembers, and can be told to do more.
type sink struct {
	onFrame func(h *wire.Header, payload []byte) error

	mu     sync.Mutex
	landed []byte
	got    [][]byte
	heads  []wire.Header
	closed chan error
	after  int // deliveries after Closed
}

func newSink() *sink { return &sink{closed: make(chan error, 2)} }

func (s *sink) Take(h *wire.Header, payload []byte) error { return linktest.Take(s, h, payload) }

func (s *sink) Land(h *wire.Header) ([]byte, error) {
	s.landed = make([]byte, h.Length)
	return s.landed, nil
}

func (s *sink) Frame(h *wire.Header) error {
	payload := s.landed
	s.landed = nil
	s.mu.Lock()
	s.got = append(s.got, payload)
	s.heads = append(s.heads, *h)
	if len(s.closed) > 0 {
		s.after++
	}
	s.mu.Unlock()
	if s.onFrame != nil {
		return s.onFrame(h, payload)
	}
	return nil
}

func (s *sink) Closed(err error) { s.closed <- err }

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

// await waits until the sink has n frames.
func (s *sink) await(t testing.TB, n int) {
	t.Helper()
	within(t, fmt.Sprintf("waiting for frame %d (has %d)", n, s.count()), func() {
		for s.count() < n {
			select {
			case err := <-s.closed:
				s.closed <- err
				t.Errorf("closed after %d of %d frames: %v", s.count(), n, err)
				return
			case <-time.After(200 * time.Microsecond):
			}
		}
	})
}

// send sends one call frame of n bytes that begin with its number.
func send(l transport.Link, number, n int) error {
	s, err := l.Reserve(context.Background(), transport.Small, n)
	if err != nil {
		return err
	}
	fill(s.Payload, number)
	err = linktest.Commit(l, s, &wire.Header{Kind: wire.Call, Lane: transport.LaneID, Seq: uint32(number), Call: uint64(number), Total: uint32(n)})
	if err != nil {
		l.Discard(s)
	}
	return err
}

func fill(b []byte, number int) {
	for i := range b {
		b[i] = byte(number + i)
	}
	if len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, uint64(number))
	}
}

func checkFill(b []byte, number int) error {
	want := make([]byte, len(b))
	fill(want, number)
	if !bytes.Equal(b, want) {
		return fmt.Errorf("payload %d is damaged", number)
	}
	return nil
}

// ended waits for the end of a link and returns what its receiver was told.
func ended(t testing.TB, l transport.Link, s *sink) (err error) {
	t.Helper()
	within(t, "the end of a link", func() {
		<-l.Done()
		select {
		case err = <-s.closed:
		default:
			err = errors.New("Done before Closed")
		}
	})
	return err
}
