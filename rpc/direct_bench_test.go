package rpc

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// directEnd is one end of a session that is a function call: what is committed
// is taken in by the sink of the other end before Commit returns. It is what
// BenchmarkDirect measures calls over, without even the transport.
type directEnd struct {
	*fakeEnd
	mu sync.Mutex
}

func directPair() (client, server *directEnd) {
	a, b := fakePair(4096)
	client, server = &directEnd{fakeEnd: a}, &directEnd{fakeEnd: b}
	return client, server
}

func (e *directEnd) Reserve(_ context.Context, _ transport.Class, n int) (transport.Slot, error) {
	buf := pool.Get(n)
	return transport.Slot{Payload: buf.Bytes(), Ref: buf}, nil
}

func (e *directEnd) Commit(s transport.Slot, h *wire.Header) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.other.sink.Message(transport.Message{
		Kind: h.Kind, Flags: h.Flags, Call: h.Call, Method: h.Method, Arg: h.Arg, Payload: s.Ref.(*pool.Buf),
	})
	return nil
}

// BenchmarkDirect is the cost of this package, client and server together.
func BenchmarkDirect(b *testing.B) {
	for name, opts := range map[string][]ServerOption{"worker": nil, "inline": {Inline("/t.B/Echo")}} {
		for _, callers := range []int{1, 256} {
			for _, deadline := range []bool{false, true} {
				what := name + map[bool]string{false: "", true: "/deadline"}[deadline]
				b.Run(what+map[int]string{1: "/1", 256: "/256"}[callers], func(b *testing.B) {
					m := &Method{Name: "/t.B/Echo", Codec: codec.Raw}
					s := NewServer(nil, opts...)
					err := s.Register(&ServiceDesc{Name: "t.B", Methods: []MethodDesc{{m, UnaryBytes(
						func(_ echoFunc, _ context.Context, req []byte) ([]byte, error) { return req, nil },
					)}}}, echoFunc(echo))
					if err != nil {
						b.Fatal(err)
					}
					client, server := directPair()
					server.sink = s.join(server, server, fakeLimits)
					c := newConn(nil)
					cs := newClientSession(c, client, client, fakeLimits)
					c.join(cs)
					client.sink = (*clientSink)(cs)
					defer s.workers.close()
					ctx, cancel := context.Background(), func() {}
					if deadline {
						ctx, cancel = context.WithTimeout(b.Context(), time.Hour)
					}
					defer cancel()
					b.ReportAllocs()
					b.ResetTimer()
					var wg sync.WaitGroup
					for i := range callers {
						wg.Go(func() {
							req, resp := make([]byte, 64), make([]byte, 64)
							for range (b.N + i) / callers {
								if err := Call(ctx, c, m, &req, &resp); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
}
