package tcp

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport"
)

// TestRoomLimits: in any order of taking, giving, giving up and waiting, no
// class exceeds its share, nobody waits while there is room, and in the end
// all room is back.
func TestRoomLimits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var r room
		type holding struct {
			class transport.Class
			bytes int
		}
		var held []holding
		check := func() {
			var used [3]amount
			for _, h := range held {
				used[h.class].add(amount{1, h.bytes})
			}
			require.Equal(rt, used, r.used)
			require.LessOrEqual(rt, used[transport.Small].frames, smallFrames)
			require.LessOrEqual(rt, used[transport.Small].bytes, smallBytes)
			require.LessOrEqual(rt, used[transport.Bulk].bytes, bulkBytes)
			require.LessOrEqual(rt, used[transport.Bulk].frames, bulkFrames)
			require.LessOrEqual(rt, used[transport.Control].frames, controlFrames)
		}
		done, cancel := context.WithCancel(context.Background())
		cancel()
		for range rapid.IntRange(0, 400).Draw(rt, "steps") {
			if len(held) > 0 && rapid.IntRange(0, 3).Draw(rt, "give") == 0 {
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				var back [3]amount
				back[held[i].class] = amount{1, held[i].bytes}
				held = append(held[:i], held[i+1:]...)
				r.give(&back)
			} else {
				h := holding{
					transport.Class(rapid.IntRange(0, 2).Draw(rt, "class")),
					rapid.SampledFrom([]int{0, 64, 4096, MaxPayload}).Draw(rt, "bytes"),
				}
				fits := r.fits(h.class, h.bytes)
				err := r.take(done, h.class, h.bytes)
				require.Equal(rt, fits, err == nil, "%+v: %v", h, err)
				if err == nil {
					held = append(held, h)
				}
			}
			check()
		}
		for _, h := range held {
			var back [3]amount
			back[h.class] = amount{1, h.bytes}
			r.give(&back)
		}
		require.Zero(rt, r.used)
		for _, w := range r.waiting {
			require.Empty(rt, w)
		}
	})
}

// TestRoomOrder: within a class, who came first is served first, and neither
// class waits for the other, however many of it wait (case 29).
func TestRoomOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r room
		for range bulkFrames {
			require.NoError(t, r.take(t.Context(), transport.Bulk, 0))
		}
		for range smallFrames {
			require.NoError(t, r.take(t.Context(), transport.Small, 0))
		}
		served := make(chan int, 8)
		for i, class := range []transport.Class{transport.Bulk, transport.Small, transport.Small, transport.Bulk} {
			go func() {
				if r.take(t.Context(), class, 0) == nil {
					served <- i
				}
			}()
			synctest.Wait()
		}
		var order []int
		for _, class := range []transport.Class{transport.Bulk, transport.Small, transport.Bulk, transport.Small} {
			var back [3]amount
			back[class] = amount{1, 0}
			r.give(&back)
			synctest.Wait()
			require.Len(t, served, 1)
			order = append(order, <-served)
		}
		require.Equal(t, []int{0, 1, 3, 2}, order)
	})
}
