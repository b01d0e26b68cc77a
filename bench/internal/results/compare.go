package results

import (
	"fmt"
	"math"
	"slices"
)

// MaxRounds is how many rounds of one cell Compare takes: it tries every way
// in which they could have fallen.
const MaxRounds = 100

// Alpha is the chance below which a difference is not taken for noise.
const Alpha = 0.05

// Difference of one figure between two sets of rounds.
type Difference struct {
	Old, New float64 // medians
	P        float64 // the chance of a difference at least this clear where there is none
	Higher   bool    // the new rounds rank above the old; medians can be equal, or say the opposite
	N, M     int     // rounds, old and new
}

// Compare asks whether two sets of rounds could come from the same
// distribution, by the Mann-Whitney U test: it looks at ranks alone, so it
// supposes nothing of the distribution, and a single stray round counts little.
func Compare(old, now []float64) (Difference, error) {
	if len(old) == 0 || len(now) == 0 || len(old) > MaxRounds || len(now) > MaxRounds {
		return Difference{}, fmt.Errorf("%d and %d rounds, expected 1 to %d", len(old), len(now), MaxRounds)
	}
	return Difference{
		Old: Middle(old), New: Middle(now), P: mannWhitney(old, now), Higher: above(now, old), N: len(old), M: len(now),
	}, nil
}

// Change is New in Old, less 1.
func (d Difference) Change() float64 { return d.New/d.Old - 1 }

// Clear says whether there is a difference.
func (d Difference) Clear() bool { return d.P < Alpha }

// TooFew says that so few rounds cannot show any difference: even the clearest
// is as likely as Alpha by chance.
func (d Difference) TooFew() bool {
	ways := 1.0 // of choosing d.N out of d.N+d.M
	for i := range d.N {
		ways *= float64(d.M+d.N-i) / float64(i+1)
	}
	return 2/ways >= Alpha
}

// above says whether the ranks of a are higher than those of b.
func above(a, b []float64) bool {
	ranks, sum := doubledRanks(a, b)
	return sum > (len(ranks)+1)*len(a) // what is expected of them
}

// mannWhitney is the two-sided probability of ranks as far from even as those
// of a and b, or further. It is exact, with ties as well.
func mannWhitney(a, b []float64) float64 {
	ranks, sum := doubledRanks(a, b)
	total := 0
	for _, r := range ranks {
		total += r
	}
	// ways[k][s] is in how many ways k of the values have ranks of sum s.
	ways := make([][]float64, len(a)+1)
	for k := range ways {
		ways[k] = make([]float64, total+1)
	}
	ways[0][0] = 1
	for i, r := range ranks {
		for k := min(i+1, len(a)); k > 0; k-- {
			for s := r; s <= total; s++ {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	// The expected sum is total × len(a) / len(ranks), compared without division.
	far := func(s int) int { return abs(s*len(ranks) - total*len(a)) }
	var all, extreme float64
	for s, n := range ways[len(a)] {
		all += n
		if far(s) >= far(sum) {
			extreme += n
		}
	}
	return math.Min(1, extreme/all)
}

// doubledRanks ranks all values, from 2 on in steps of two; equal ones share
// the mean of theirs. sum is that of the ranks of a.
func doubledRanks(a, b []float64) (ranks []int, sum int) {
	all := slices.Sorted(slices.Values(slices.Concat(a, b)))
	rank := map[float64]int{}
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j] == all[i] {
			j++
		}
		rank[all[i]] = i + 1 + j // twice the mean of i+1 … j
		i = j
	}
	for _, v := range all {
		ranks = append(ranks, rank[v])
	}
	for _, v := range a {
		sum += rank[v]
	}
	return ranks, sum
}

func abs(n int) int { return max(n, -n) }
