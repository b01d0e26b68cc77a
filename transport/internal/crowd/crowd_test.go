package crowd

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestArrived(t *testing.T) {
	var c Crowd
	require.False(t, c.Here())
	c.Arrived(1)
	require.False(t, c.Here())
	c.Arrived(2)
	require.True(t, c.Here())
	c.Arrived(0)
	require.True(t, c.Here(), "a batch without frames says nothing")
	c.Arrived(1)
	require.False(t, c.Here())
}

// Others run while somebody gives way, and only where there is a crowd.
func TestGiveWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var c Crowd
	var ran atomic.Bool
	go ran.Store(true)
	c.GiveWay()
	require.False(t, ran.Load())
	c.Arrived(2)
	c.GiveWay()
	require.True(t, ran.Load())
}

// Who gave way to somebody that computes does not for a while.
func TestPause(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var c Crowd
	c.Arrived(2)
	var over atomic.Bool
	defer over.Store(true)
	for range 2 {
		go func() {
			for !over.Load() {
			}
		}()
	}
	deadline := time.Now().Add(30 * time.Second)
	for c.paused.Load() == 0 {
		c.GiveWay()
		require.True(t, time.Now().Before(deadline))
	}
	for c.pause.Load() < int64(maxPause) {
		c.GiveWay()
		require.True(t, time.Now().Before(deadline))
	}
	paused := c.paused.Load()
	for range 10 { // each would pause anew
		c.GiveWay()
	}
	require.Equal(t, paused, c.paused.Load())
}

// The pause is long only where it is again and again in vain.
func TestPauseGrows(t *testing.T) {
	var c Crowd
	now := time.Minute
	next := func(after time.Duration) time.Duration {
		now = time.Duration(c.paused.Load()) + after
		c.inVain(now)
		return time.Duration(c.paused.Load()) - now
	}
	c.inVain(now)
	require.Equal(t, int64(now+firstPause), c.paused.Load())
	require.Equal(t, 2*firstPause, next(timeSlice))
	require.Equal(t, 4*firstPause, next(soon*2*firstPause-1))
	require.Equal(t, firstPause, next(soon*4*firstPause))
	for range 20 {
		next(timeSlice)
	}
	require.Equal(t, maxPause, next(timeSlice))
}
