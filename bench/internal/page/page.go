// Package page writes reports: one HTML file that needs no other, with charts
// as SVG.
package page

import (
	_ "embed"
	"html/template"
	"io"
)

// Page is a report.
type Page struct {
	Title    string
	Sections []Section
}

// Section of a page, from top to bottom as its fields are. All may be empty.
type Section struct {
	Title  string
	Text   []string // paragraphs
	Charts []Chart
	Tables []Table
}

// Table has a row of names and rows of text below it. What is not text is
// right-aligned: the first Left columns are text.
type Table struct {
	Title string
	Left  int
	Head  []string
	Rows  [][]string
}

// Chart is Lines or Bars.
type Chart interface{ SVG() template.HTML }

//go:embed page.html
var source string

var parsed = template.Must(template.New("page").Funcs(template.FuncMap{
	"text": func(t Table, column int) bool { return column < t.Left },
}).Parse(source))

// Write writes the page as HTML.
func (p *Page) Write(w io.Writer) error { return parsed.Execute(w, p) }
