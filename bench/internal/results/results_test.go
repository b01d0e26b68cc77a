package results

import (
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

func TestCrossings(t *testing.T) {
	c := Crossings{Posts: 2, Posted: 6, Polls: 0.5, Completions: 2}
	require.Equal(t, []float64{3, 4, 2.5}, []float64{c.PerPost(), c.PerPoll(), c.Total()})
	require.Zero(t, Crossings{}.PerPost()+Crossings{}.PerPoll())
}
