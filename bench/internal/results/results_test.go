package results

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedianIsPerFigure(t *testing.T) {
	got := Median([]Sample{{Calls: 1, P50: 3, P99: 10}, {Calls: 2, P50: 1, P99: 30}, {Calls: 3, P50: 2, P99: 20}})
	require.Equal(t, Sample{Calls: 6, P50: 2, P99: 20}, got)
}
