package tcp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// looks is what while sees that comes after so long; and for how long it looked.
func looks(s *spin, after time.Duration) (found bool, took time.Duration) {
	start := time.Now()
	found = s.while(func() bool {
		time.Sleep(time.Microsecond)
		return time.Since(start) >= after
	})
	return found, time.Since(start)
}

func TestSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s spin
		require.True(t, s.begin())
		found, took := looks(&s, 20*time.Microsecond)
		require.True(t, found)
		require.Equal(t, 20*time.Microsecond, took)

		spun := 0
		const waits = 100_000
		for range waits { // a peer that is slow
			if s.begin() {
				found, took = looks(&s, time.Second)
				require.False(t, found)
				require.LessOrEqual(t, took, spinTime+time.Microsecond)
				spun++
			}
		}
		require.Greater(t, spun, waits/maxDecline/2, "it is tried again")
		require.Less(t, spun, 2*waits/maxDecline, "and seldom")

		for !s.begin() {
		}
		found, _ = looks(&s, time.Microsecond)
		require.True(t, found)
		require.True(t, s.begin(), "it was worth it")
	})
}
