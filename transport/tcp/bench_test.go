package tcp

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// echo answers every call from within the receiver.
type echo struct {
	link transport.Link
	buf  [MaxPayload]byte
	h    wire.Header
}

func (e *echo) Take(h *wire.Header, payload []byte) error { return linktest.Take(e, h, payload) }
func (e *echo) Land(h *wire.Header) ([]byte, error)       { return e.buf[:h.Length], nil }
func (e *echo) Closed(error)                              {}
func (e *echo) Frame(h *wire.Header) error {
	slot, err := e.link.Reserve(context.Background(), transport.Small, int(h.Length))
	if err != nil {
		return err
	}
	copy(slot.Payload, e.buf[:h.Length])
	e.h = wire.Header{Kind: wire.Reply, Lane: transport.LaneID, Call: h.Call, Total: h.Length}
	return linktest.Commit(e.link, slot, &e.h)
}

// caller wakes whoever waits for a reply.
type caller struct {
	buf   [MaxPayload]byte
	ready []chan struct{}
}

func (c *caller) Take(h *wire.Header, payload []byte) error { return linktest.Take(c, h, payload) }
func (c *caller) Land(h *wire.Header) ([]byte, error)       { return c.buf[:h.Length], nil }
func (c *caller) Frame(h *wire.Header) error                { c.ready[h.Call] <- struct{}{}; return nil }
func (c *caller) Closed(error)                              {}

func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("size=%d/callers=%d", size, callers), func(b *testing.B) {
				var c Carrier
				l, err := c.Listen("127.0.0.1:0")
				require.NoError(b, err)
				defer l.Close()
				client, err := c.Dial(b.Context(), l.Addr().String())
				require.NoError(b, err)
				server, err := l.Accept()
				require.NoError(b, err)
				server.Start(&echo{link: server})
				r := &caller{}
				for range callers {
					r.ready = append(r.ready, make(chan struct{}, 1))
				}
				client.Start(r)
				b.ReportAllocs()
				b.SetBytes(int64(size))
				b.ResetTimer()
				done := make(chan struct{})
				for id := range callers {
					go func() {
						h := new(wire.Header)
						for range (b.N + callers - 1) / callers {
							slot, err := client.Reserve(context.Background(), transport.Small, size)
							if err != nil {
								b.Error(err)
								break
							}
							*h = wire.Header{Kind: wire.Call, Lane: transport.LaneID, Call: uint64(id), Total: uint32(size)}
							if err := linktest.Commit(client, slot, h); err != nil {
								b.Error(err)
								break
							}
							<-r.ready[id]
						}
						done <- struct{}{}
					}()
				}
				for range callers {
					<-done
				}
				b.StopTimer()
				s := client.Info().Stats
				b.ReportMetric(float64(s.FramesSent)/float64(s.SendBatches), "frames/write")
				client.Close(nil)
				server.Close(nil)
				<-client.Done()
				<-server.Done()
			})
		}
	}
}
