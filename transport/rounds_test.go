package transport

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Watched is how many sessions of n keepalive looks at.
func Watched(n *Network) int {
	n.rounds.mu.Lock()
	defer n.rounds.mu.Unlock()
	return n.rounds.count
}

// TestRounds: every session is looked at once in a tick, few moments are enough
// for all, and sessions that begin together do not all share one.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			tick  = time.Second
			count = (company + 2) * beats
		)
		n := &Network{}
		all := make([]*Session, count)
		for i := range all {
			s := &Session{network: n, cfg: Config{Keepalive: ticks * tick}}
			s.control = &path{s: s, link: noLink{}}
			all[i] = s
			n.rounds.add(s, s.tickTime())
		}
		// watch is how often sessions are looked at in a tick, and at how many moments.
		watch := func(sessions []*Session) (looks []int, moments int) {
			looks = make([]int, len(sessions))
			for range tick / time.Millisecond {
				for _, s := range sessions {
					s.mu.Lock()
					s.control.heard.Store(1)
					s.control.life = 0
					s.mu.Unlock()
				}
				time.Sleep(time.Millisecond)
				synctest.Wait()
				seen := 0
				for i, s := range sessions {
					if lookedAt(s) {
						looks[i]++
						seen++
					}
				}
				if seen > 0 {
					moments++
					require.LessOrEqual(t, seen, len(sessions)/beats+1, "too many at once")
				}
			}
			return looks, moments
		}
		for range 3 {
			looks, moments := watch(all)
			for _, n := range looks {
				require.Equal(t, 1, n)
			}
			require.LessOrEqual(t, moments, beats)
		}
		for i, s := range all {
			if i%2 == 0 {
				n.rounds.remove(s)
			}
		}
		looks, moments := watch(all)
		for i, n := range looks {
			require.Equal(t, i%2, n)
		}
		require.LessOrEqual(t, moments, beats)
		for i, s := range all {
			if i%2 == 1 {
				n.rounds.remove(s)
			}
		}
		looks, _ = watch(all)
		require.NotContains(t, looks, 1)

		// A session alone is looked at a tick after it began, whenever that was.
		time.Sleep(tick / 3)
		n.rounds.add(all[0], tick)
		time.Sleep(tick - tick/10)
		require.False(t, lookedAt(all[0]))
		time.Sleep(tick / 5)
		require.True(t, lookedAt(all[0]))
		n.rounds.remove(all[0])
	})
}

// TestFewRounds: sessions that have room at one moment of a tick share it, those that
// take the places of others too.
func TestFewRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const few = 60
		n := &Network{}
		all := make([]*Session, few)
		enter := func(i int) {
			all[i] = &Session{network: n, cfg: Config{Keepalive: ticks * time.Second}}
			all[i].control = &path{s: all[i], link: noLink{}}
			all[i].control.heard.Store(1)
			n.rounds.add(all[i], time.Second)
		}
		for i := range all {
			time.Sleep(time.Millisecond)
			enter(i)
		}
		for range 1000 {
			i := rand.IntN(few)
			n.rounds.remove(all[i])
			enter(i)
		}
		for start := time.Now(); !slices.ContainsFunc(all, lookedAt); {
			require.LessOrEqual(t, time.Since(start), time.Second)
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		for i, s := range all {
			require.True(t, lookedAt(s), i)
			n.rounds.remove(s)
		}
	})
}

// noLink has carried nothing.
type noLink struct{ Link }

func (noLink) Info() LinkInfo { return LinkInfo{} }

// lookedAt says that keepAlive has seen what the path has heard.
func lookedAt(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.control.life != 0
}

// TestRoundsMissed: sessions whose beats were missed are looked at at once, each
// once, and go on at their own.
func TestRoundsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Network{}
		all := make([]*Session, 3*beats)
		for i := range all {
			all[i] = &Session{network: n, cfg: Config{Keepalive: ticks * time.Second}}
			all[i].control = &path{s: all[i], link: noLink{}}
			all[i].control.heard.Store(1)
			n.rounds.add(all[i], time.Second)
		}
		n.rounds.mu.Lock()
		n.rounds.began = n.rounds.began.Add(-10 * time.Second) // as if the process had stood still
		n.rounds.mu.Unlock()
		n.rounds.look()
		for i, s := range all {
			require.EqualValues(t, 1, s.control.life, i)
			n.rounds.remove(s)
		}
	})
}
