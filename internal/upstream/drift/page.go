package drift

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

//go:embed page
var pages embed.FS

var driftPage = report.NewPageTemplate(pages, nil, "page/*.html")

// prefaceData is what the template "preface" shows.
type prefaceData struct {
	Class, Verdict, Summary, Adoption string
	Facts                             []textData
	Layers                            []layerData
}

// layerData is a row of the table of layers, and the rows of what changed in it.
type layerData struct {
	Cells   [][]string
	Changes [][]textData
}

// textData is a text, which may be a link.
type textData struct{ Text, URL string }

// Preface is what comes first in the HTML report: the verdict, the release, each layer, and how the sources differ.
func (r *Report) Preface() template.HTML {
	data := prefaceData{
		Class: map[Verdict]string{None: "pass", Found: "fail"}[r.Result.Verdict], Verdict: strings.ToUpper(string(r.Result.Verdict)),
		Summary: r.Summary(), Adoption: r.adoption(),
	}
	for _, fact := range r.facts() {
		name, commit, isLink := strings.Cut(fact, ": https://")
		if !isLink {
			data.Facts = append(data.Facts, textData{Text: strings.ReplaceAll(fact, "`", "")})
			continue
		}
		data.Facts = append(data.Facts, textData{name + " " + path.Base(commit), "https://" + commit})
	}
	for _, l := range r.Result.Layers {
		one := layerData{Cells: [][]string{
			{string(l.Name)}, {verdictText(l.Verdict)}, {l.Reason}, {l.Compared}, slices.Concat(l.Notes, l.remarkable()),
		}}
		if l.changed() {
			for _, c := range l.Diff.Changes {
				why := c.Reason
				if c.Caution != "" {
					why += " But " + c.Caution
				}
				var row []textData
				for _, text := range []string{string(c.Level), c.Subject, c.What(), wirediff.JoinParties(c.Breaks), why} {
					row = append(row, textData{Text: text})
				}
				one.Changes = append(one.Changes, append(row, textData{c.Where.String(), c.Where.URL}))
			}
		}
		data.Layers = append(data.Layers, one)
	}
	var b strings.Builder
	_ = driftPage.WritePart(&b, "preface", data) // a strings.Builder takes everything
	return template.HTML(b.String())
}

// html writes the HTML report of a check in which no case ran.
func (r *Report) html(w io.Writer) error {
	return report.Page(w, fmt.Sprintf("drift %s: %s", r.Release(), r.Result.Verdict), r.Preface())
}
