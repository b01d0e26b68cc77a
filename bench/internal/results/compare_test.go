package results

import (
	"cmp"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Against tables of the exact test.
func TestMannWhitney(t *testing.T) {
	low, high := []float64{1, 2, 3, 4, 5}, []float64{6, 7, 8, 9, 10}
	require.InDelta(t, 2.0/252, mannWhitney(low, high), 1e-12)
	require.InDelta(t, 2.0/252, mannWhitney(high, low), 1e-12)
	require.InDelta(t, 0.1, mannWhitney([]float64{1, 2, 3}, []float64{4, 5, 6}), 1e-12)
	require.InDelta(t, 0.2, mannWhitney([]float64{1, 2, 4}, []float64{3, 5, 6}), 1e-12)
	require.InDelta(t, 1, mannWhitney([]float64{1, 4}, []float64{2, 3}), 1e-12)
	require.InDelta(t, 1, mannWhitney([]float64{7, 7, 7}, []float64{7, 7}), 1e-12)
}

// It is what trying all ways in which the values could have fallen gives.
func TestMannWhitneyIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Map(rapid.IntRange(0, 6), func(n int) float64 { return float64(n) })
		a := rapid.SliceOfN(value, 1, 6).Draw(t, "a")
		b := rapid.SliceOfN(value, 1, 6).Draw(t, "b")
		ranks, sum := doubledRanks(a, b)
		total := 0
		for _, r := range ranks {
			total += r
		}
		far := func(s int) int { return abs(s*len(ranks) - total*len(a)) }
		all, extreme := 0, 0
		for set := range 1 << len(ranks) {
			if bits.OnesCount(uint(set)) != len(a) {
				continue
			}
			s := 0
			for i, r := range ranks {
				if set>>i&1 == 1 {
					s += r
				}
			}
			all++
			if far(s) >= far(sum) {
				extreme++
			}
		}
		require.InDelta(t, float64(extreme)/float64(all), mannWhitney(a, b), 1e-9)
		require.InDelta(t, mannWhitney(a, b), mannWhitney(b, a), 1e-9, "it does not matter which is old")
	})
}

func TestTooFewRounds(t *testing.T) {
	for n, tooFew := range map[int]bool{1: true, 3: true, 4: false, 5: false} {
		require.Equal(t, tooFew, Difference{N: n, M: n}.TooFew(), "%d rounds", n)
	}
	_, err := Compare(nil, []float64{1})
	require.Error(t, err)
	_, err = Compare(make([]float64, MaxRounds+1), []float64{1})
	require.Error(t, err)
}

// The direction is that of the ranks, whatever the medians are.
func TestCompareGoesByRanks(t *testing.T) {
	old, now := []float64{1, 1, 1, 5, 5, 5, 5}, []float64{5, 5, 5, 5, 9, 9, 9}
	d, err := Compare(old, now)
	require.NoError(t, err)
	require.Equal(t, d.Old, d.New)
	require.True(t, d.Clear())
	require.True(t, d.Higher)
	d, err = Compare(now, old)
	require.NoError(t, err)
	require.False(t, d.Higher)
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Map(rapid.IntRange(0, 6), func(n int) float64 { return float64(n) })
		a := rapid.SliceOfN(value, 1, 6).Draw(t, "a")
		b := rapid.SliceOfN(value, 1, 6).Draw(t, "b")
		wins := 0 // of a over b, pair by pair
		for _, x := range a {
			for _, y := range b {
				wins += cmp.Compare(x, y)
			}
		}
		require.Equal(t, wins > 0, above(a, b))
	})
}
