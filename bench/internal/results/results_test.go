package results

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedianIsPerFigure(t *testing.T) {
	got := Median([]Sample{{Calls: 1, PacerP99: 5, P50: 3, P99: 10}, {Calls: 2, PacerP99: 4, P50: 1, P99: 30}, {Calls: 3, PacerP99: 6, P50: 2, P99: 20}})
	require.Equal(t, Sample{Calls: 6, PacerP99: 5, P50: 2, P99: 20}, got)
	got = Median([]Sample{
		{ClientLinks: Crossings{Posts: 1, Completions: 9}}, {ClientLinks: Crossings{Posts: 3, Completions: 7}}, {ClientLinks: Crossings{Posts: 2, Completions: 8}},
	})
	require.Equal(t, Sample{ClientLinks: Crossings{Posts: 2, Completions: 8}}, got)
}

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		q, want float64
		values  []float64
	}{
		{0.5, 7, []float64{7}},
		{0.5, 2, []float64{3, 1}},
		{0.5, 3, []float64{9, 3, 1}},
		{0.5, 2.5, []float64{4, 1, 3, 2}},
		{0, 1, []float64{2, 1}},
		{1, 2, []float64{2, 1}},
		{0.9, 4, []float64{4, 3, 2, 1}},
		{0.9, 9.5, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
	} {
		before := slices.Clone(test.values)
		require.Equal(t, test.want, Quantile(test.values, test.q), "%v of %v", test.q, test.values)
		require.Equal(t, before, test.values, "they stay in order")
	}
	require.Equal(t, 1.5, Median([]Sample{{P50: 2}, {P50: 1}}).P50)
}

func TestCrossings(t *testing.T) {
	c := Crossings{Posts: 2, Posted: 6, Polls: 0.5, Completions: 2}
	require.Equal(t, []float64{3, 4, 2.5}, []float64{c.PerPost(), c.PerPoll(), c.Total()})
	require.Zero(t, Crossings{}.PerPost()+Crossings{}.PerPoll())
}
