package page

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
)

// Series has a name for the legend, and a point for each pair of values.
type Series struct {
	Name   string
	Points [][2]float64
}

// Lines draws series over a common axis.
type Lines struct {
	Title, X, Y    string // what is shown, with units
	ScaleX, ScaleY Scale
	Series         []Series
}

// Bars draws groups of bars beside each other, one of each series.
type Bars struct {
	Title, Y string
	Scale    Scale
	Groups   []string
	Series   []string
	Values   [][]float64 // by group, then series; 0: none
	Mark     float64     // where a line is drawn across; 0: nowhere
}

// Pixels of a chart, before it is scaled to the width of the page.
const (
	width, left, right, top, plot, foot = 640.0, 62.0, 20.0, 34.0, 230.0, 44.0
	legendRow, legendColumn             = 18.0, 140.0
	colors                              = 9 // --c0 and so on in page.html
)

// drawing collects the elements of one chart.
type drawing struct {
	strings.Builder
	height float64
}

func (d *drawing) add(format string, args ...any) {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = template.HTMLEscapeString(s)
		}
	}
	fmt.Fprintf(d, format+"\n", args...)
}

func newDrawing(title string, legend []string) *drawing {
	const perRow = 4 // columns that fit
	rows := (len(legend) + perRow - 1) / perRow
	d := &drawing{height: top + plot + foot + float64(rows)*legendRow}
	d.add(`<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, width, d.height, title)
	d.add(`<text class="title" x="0" y="16">%s</text>`, title)
	for i, name := range legend {
		x := left + float64(i%perRow)*legendColumn
		y := top + plot + foot + float64(i/perRow)*legendRow
		d.add(`<rect x="%.1f" y="%.1f" width="10" height="10" rx="2" style="fill:%s"/>`, x, y-2, color(i))
		d.add(`<text x="%.1f" y="%.1f">%s</text>`, x+15, y+7, name)
	}
	return d
}

func color(i int) string { return fmt.Sprintf("var(--c%d)", i%colors) }

func (d *drawing) end() template.HTML {
	d.add(`</svg>`)
	return template.HTML(d.String()) //nolint:gosec // all text went through add
}

// yAxis draws horizontal lines and their values.
func (d *drawing) yAxis(a *axis, label string) {
	for _, v := range a.ticks {
		y := a.at(v)
		d.add(`<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, left, width-right, y, y)
		d.add(`<text class="soft" x="%.1f" y="%.1f" text-anchor="end">%s</text>`, left-6, y+4, a.label(v))
	}
	d.add(`<text class="soft" x="%.1f" y="16" text-anchor="end">%s</text>`, width-right, label)
}

// SVG draws the chart.
func (l Lines) SVG() template.HTML {
	var names []string
	var xs, ys []float64
	for _, s := range l.Series {
		names = append(names, s.Name)
		for _, p := range s.Points {
			xs, ys = append(xs, p[0]), append(ys, p[1])
		}
	}
	d := newDrawing(l.Title, names)
	x, y := newAxis(l.ScaleX, xs, left, width-right), newAxis(l.ScaleY, ys, top+plot, top)
	d.yAxis(&y, l.Y)
	for _, v := range x.ticks {
		d.add(`<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, x.at(v), x.at(v), top, top+plot)
		d.add(`<text class="soft" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x.at(v), top+plot+15, x.label(v))
	}
	d.add(`<text class="soft" x="%.1f" y="%.1f" text-anchor="end">%s</text>`, width-right, top+plot+30, l.X)
	for i, s := range l.Series {
		var line []string
		for _, p := range s.Points {
			if l.ScaleX.shows(p[0]) && l.ScaleY.shows(p[1]) {
				line = append(line, fmt.Sprintf("%.1f,%.1f", x.at(p[0]), y.at(p[1])))
			}
		}
		d.add(`<polyline points="%s" style="stroke:%s"/>`, strings.Join(line, " "), color(i))
		for _, p := range s.Points {
			if l.ScaleX.shows(p[0]) && l.ScaleY.shows(p[1]) {
				d.add(`<circle cx="%.1f" cy="%.1f" r="3" style="fill:%s"><title>%s: %s, %s</title></circle>`,
					x.at(p[0]), y.at(p[1]), color(i), s.Name, x.label(p[0]), Number(p[1]))
			}
		}
	}
	return d.end()
}

// SVG draws the chart.
func (b Bars) SVG() template.HTML {
	values := slices.Concat(b.Values...)
	if b.Mark > 0 {
		values = append(values, b.Mark)
	}
	d := newDrawing(b.Title, b.Series)
	y := newAxis(b.Scale, slices.DeleteFunc(values, func(v float64) bool { return v <= 0 }), top+plot, top)
	d.yAxis(&y, b.Y)
	group := (width - left - right) / float64(max(1, len(b.Groups)))
	bar := group * 0.84 / float64(max(1, len(b.Series)))
	font := 12
	if len(b.Groups) > 8 {
		font = 9
	}
	for g, name := range b.Groups {
		begin := left + float64(g)*group
		d.add(`<text class="soft" style="font-size:%dpx" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, font, begin+group/2, top+plot+15, name)
		for s, series := range b.Series {
			if v := b.Values[g][s]; v > 0 {
				d.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" style="fill:%s"><title>%s, %s: %s</title></rect>`,
					begin+group*0.08+float64(s)*bar, y.at(v), max(1, bar-1), top+plot-y.at(v), color(s), name, series, Number(v))
			}
		}
	}
	if b.Mark > 0 {
		d.add(`<line class="mark" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, left, width-right, y.at(b.Mark), y.at(b.Mark))
	}
	return d.end()
}
