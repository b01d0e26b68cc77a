package page

import (
	"fmt"
	"math"
	"strconv"
)

// Scale is how values lie on an axis.
type Scale int

const (
	Linear Scale = iota // from 0
	Log                 // powers of ten; values must be positive
	Nines               // percent: 0, 90, 99, 99.9 … at equal distances
)

// axis maps values to pixels, from at the least to to at the most.
type axis struct {
	scale       Scale
	least, most float64 // transformed
	from, to    float64
	ticks       []float64
}

// maxNines is where 100 % lies, the largest of all: 99.999 % would be there.
const maxNines = 5

func (s Scale) transform(v float64) float64 {
	switch s {
	case Log:
		return math.Log10(v)
	case Nines:
		return min(maxNines, -math.Log10(max(math.Pow10(-maxNines), 1-v/100)))
	}
	return v
}

// newAxis fits values; those that the scale cannot show are left out.
func newAxis(scale Scale, values []float64, from, to float64) axis {
	a := axis{scale: scale, least: math.Inf(1), most: math.Inf(-1), from: from, to: to}
	for _, v := range values {
		if scale.shows(v) {
			t := scale.transform(v)
			a.least, a.most = min(a.least, t), max(a.most, t)
		}
	}
	if a.least > a.most {
		a.least, a.most = 0, 1
	}
	switch scale {
	case Linear:
		a.linear()
	case Log:
		a.log()
	case Nines:
		a.least = 0
		a.most = max(1, a.most)
		for n, v := 0, 0.0; n <= maxNines && float64(n) <= a.most; n++ {
			a.ticks = append(a.ticks, v)
			v = 100 - (100-v)/10
		}
	}
	return a
}

// shows says whether v has a place on the axis.
func (s Scale) shows(v float64) bool {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return false
	}
	return v > 0 || s != Log && v == 0
}

func (a *axis) linear() {
	a.least = 0
	if a.most <= 0 {
		a.most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(a.most/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if a.most/(step*m) <= 5 {
			step *= m
			break
		}
	}
	n := int(math.Ceil(a.most/step - 1e-9))
	for i := range n + 1 {
		a.ticks = append(a.ticks, float64(i)*step)
	}
	a.most = float64(n) * step
}

func (a *axis) log() {
	a.least, a.most = math.Floor(a.least-0.01), math.Ceil(a.most) // the least has a bar, too
	if a.most == a.least {
		a.most++
	}
	for e := a.least; e <= a.most; e++ {
		a.ticks = append(a.ticks, math.Pow(10, e))
		if a.most-a.least <= 2 && e < a.most {
			a.ticks = append(a.ticks, 2*math.Pow(10, e), 5*math.Pow(10, e))
		}
	}
}

// at is the pixel of v.
func (a *axis) at(v float64) float64 {
	if !a.scale.shows(v) {
		return a.from
	}
	return a.from + (a.scale.transform(v)-a.least)/(a.most-a.least)*(a.to-a.from)
}

// label of a tick.
func (a *axis) label(v float64) string {
	if a.scale == Nines {
		if a.scale.transform(v) == maxNines {
			return "max"
		}
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return Number(v)
}

// Number writes v with three digits and a unit of thousands.
func Number(v float64) string {
	switch abs := math.Abs(v); {
	case abs >= 1e9:
		return trim(v/1e9) + "G"
	case abs >= 1e6:
		return trim(v/1e6) + "M"
	case abs >= 1e3:
		return trim(v/1e3) + "k"
	}
	return trim(v)
}

func trim(v float64) string {
	digits := 0
	if abs := math.Abs(v); abs < 10 {
		digits = 2
	} else if abs < 100 {
		digits = 1
	}
	f, _ := strconv.ParseFloat(fmt.Sprintf("%.*f", digits, v), 64)
	return strconv.FormatFloat(f, 'f', -1, 64)
}
