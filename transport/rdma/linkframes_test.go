package rdma

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Frames of the link itself, of all lengths that they have and longer, on devices
// that take all of them inline, the short ones, and none.
func TestFramesOfTheLink(t *testing.T) {
	for _, cfg := range []Config{small, sharing} {
		for _, inline := range []int{0, 96, 16} { // 0: 512
			t.Run(fmt.Sprintf("dedicated=%d/inline=%d", cfg.Dedicated, inline), func(t *testing.T) {
				checkLeaks(t)
				dev := []simverbs.Device{{MaxInline: inline}}
				_, ends := simEnds(t, simverbs.Config{Hosts: []simverbs.Host{{Name: "a", Devices: dev}, {Name: "b", Devices: dev}}})
				_, links := pair(t, ends, cfg)
				s := newSink()
				links[0].Start(newSink())
				links[1].Start(s)
				sent := 0
				for range 5 {
					for kind, n := range map[wire.Kind]int{wire.Ready: 0, wire.Ping: wire.MaxPing, wire.Pong: 63, wire.Close: 300} {
						for _, flags := range []wire.Flags{0, wire.Sum}[:min(n, 1)+1] {
							slot, err := links[0].Reserve(context.Background(), transport.Control, n)
							require.NoError(t, err)
							fill(slot.Payload, sent)
							require.NoError(t, linktest.Commit(links[0], slot, &wire.Header{Kind: kind, Flags: flags}))
							sent++
							s.await(t, sent)
							require.NoError(t, checkFill(s.got[sent-1], sent-1))
							require.Len(t, s.got[sent-1], n)
						}
					}
				}
			})
		}
	}
}

// Callers have all slots of a side, and keep them: it grants credit all the same.
func TestCreditHasASlot(t *testing.T) {
	for _, cfg := range []Config{small, sharing} {
		t.Run(fmt.Sprintf("dedicated=%d", cfg.Dedicated), func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{})
			_, links := pair(t, ends, cfg)
			s := newSink()
			links[0].Start(s)
			links[1].Start(newSink())
			over, cancel := context.WithCancel(context.Background())
			cancel()
			var held []transport.Slot
			for _, class := range []transport.Class{transport.Small, transport.Control} {
				for slot, err := links[0].Reserve(over, class, 8); err == nil; slot, err = links[0].Reserve(over, class, 8) {
					held = append(held, slot)
				}
			}
			require.Greater(t, len(held), 6)
			const n = 50 // six windows
			for i := range n {
				require.NoError(t, send(links[1], i, 8))
			}
			s.await(t, n)
			for _, slot := range held {
				links[0].Discard(slot)
			}
		})
	}
}
