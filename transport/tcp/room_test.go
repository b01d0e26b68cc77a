package tcp

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
)

// TestRoomOrder: within a class, who came first is served first, and neither
// class waits for the other, however many of it wait (case 29).
func TestRoomOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r room
		r.init()
		for range bulkFrames {
			require.NoError(t, r[transport.Bulk].Take(t.Context(), 0))
		}
		for range smallFrames {
			require.NoError(t, r[transport.Small].Take(t.Context(), 0))
		}
		served := make(chan int, 8)
		for i, class := range []transport.Class{transport.Bulk, transport.Small, transport.Small, transport.Bulk} {
			go func() {
				if r[class].Take(t.Context(), 0) == nil {
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
