package page

import (
	"bytes"
	"math"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Text of files is text on the page, in tables, charts and titles alike.
func TestTextIsEscaped(t *testing.T) {
	const evil = `<script>alert("1")</script>`
	p := Page{Title: evil, Sections: []Section{{
		Title: evil, Text: []string{evil},
		Tables: []Table{{Title: evil, Head: []string{evil}, Rows: [][]string{{evil}}}},
		Charts: []Chart{
			Bars{Title: evil, Y: evil, Groups: []string{evil}, Series: []string{evil}, Values: [][]float64{{1}}},
			Lines{Title: evil, X: evil, Y: evil, Series: []Series{{Name: evil, Points: [][2]float64{{1, 1}}}}},
		},
	}}}
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	require.NotContains(t, b.String(), "<script")
	require.NotRegexp(t, regexp.MustCompile(`(src|href)=|url\(|@import|https?://`), b.String(), "a page needs no other file")
}

// Whatever the values, every mark lies inside of the chart.
func TestAxesHoldTheirValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.SampledFrom([]Scale{Linear, Log, Nines}).Draw(t, "scale")
		most := 1e12
		if scale == Nines {
			most = 100
		}
		values := rapid.SliceOf(rapid.Float64Range(0, most)).Draw(t, "values")
		a := newAxis(scale, values, 10, 110)
		require.NotEmpty(t, a.ticks)
		require.Less(t, len(a.ticks), 400)
		for _, v := range values {
			at := a.at(v)
			require.False(t, math.IsNaN(at) || at < 10-1e-6 || at > 110+1e-6, "%v at %v", v, at)
		}
		for _, v := range a.ticks {
			at := a.at(v)
			require.False(t, math.IsNaN(at) || at < 10-1e-6 || at > 110+1e-6, "tick %v at %v", v, at)
		}
	})
}

func TestChartsOfNothing(t *testing.T) {
	for _, c := range []Chart{
		Bars{}, Lines{}, Bars{Groups: []string{"a"}, Series: []string{"b"}, Values: [][]float64{{0}}, Scale: Log},
		Lines{ScaleX: Nines, ScaleY: Log, Series: []Series{{Points: [][2]float64{{100, 0}, {math.NaN(), 1}}}}},
	} {
		require.NotContains(t, string(c.SVG()), "NaN")
		require.NotContains(t, string(c.SVG()), "Inf")
	}
}

func TestNumber(t *testing.T) {
	for want, v := range map[string]float64{"0": 0, "0.25": 0.25, "3": 3, "12.5": 12.5, "999": 999, "1.5k": 1500, "2.05M": 2_051_180, "100M": 1e8} {
		require.Equal(t, want, Number(v))
	}
}
