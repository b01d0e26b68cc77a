package transport_test

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
)

func TestSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s transport.Signal
		for range 3 {
			require.False(t, s.IsSet())
			s.Set()
			require.True(t, s.IsSet())
			require.Nil(t, s.Await())

			woken := s.Await()
			require.NotNil(t, woken)
			require.False(t, s.IsSet())
			s.Cancel()

			go s.Wait()
			synctest.Wait()
			s.Set()
			synctest.Wait()
		}
		require.False(t, s.IsSet())
	})
}

// Two goroutines that set each other's signal in turn: whether one is set before the
// other waits or after, none is lost and none comes twice.
func TestSignalsInTurn(t *testing.T) {
	const rounds = 100_000
	var ping, pong transport.Signal
	turn := 0 // of whose signal was set last
	go func() {
		for i := range rounds {
			ping.Wait()
			turn++
			if i%7 == 0 {
				runtime.Gosched()
			}
			pong.Set()
		}
	}()
	for i := range rounds {
		ping.Set()
		if i%5 == 0 {
			runtime.Gosched()
		}
		for i%3 == 0 && !pong.IsSet() {
			runtime.Gosched()
		}
		pong.Wait()
		if turn != i+1 {
			t.Fatalf("%d turns in round %d", turn, i)
		}
	}
}
