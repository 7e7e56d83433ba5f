package check

import (
	"context"
	_ "embed"
	"strings"
)

// Check makes one assertion of a golden, an engine or a frontend. It has a file in the package of its suite, a Markdown file of
// the same name with the codes that it reports, and a line in the suite's list.
type Check struct {
	// Name is what patterns and reports call the check. It is unique in its suite.
	Name Assertion
	// Codes explains what the check reports, in Markdown: "## F001 title", what the code means, what to do, and an example.
	// A code that several checks report is explained by the first of them, and what keeps any case from being judged by
	// [UnjudgedCodes].
	Codes string
	// Levels are the parts of the wire that the check judges, the one that gives it its name first; none for a check of goldens.
	Levels []Level
	// Run judges a case on its golden, which is empty where the case has none. An error says why it could not be judged.
	Run func(ctx context.Context, e *Env, g *Golden, c Case) (Outcome, error)
}

// UnjudgedCodes explains the codes of what keeps a case of any suite from being judged.
//
//go:embed unjudged.md
var UnjudgedCodes string

// Explanation is what a person needs to know of a code.
type Explanation struct {
	Code  Code
	Title string // a few words
	Text  string // Markdown: what it means, and what to do
	// Consequence and Level are those of the code, where nothing more is known of a failure; empty for one that is about
	// the inputs of a run. Measured: where a released frontend was measured, that counts.
	Consequence Consequence
	Level       Level
	Measured    bool
}

// Explain reads pages of explanations, each of them a section "## CODE title".
func Explain(pages ...string) []Explanation {
	var all []Explanation
	for _, page := range pages {
		for _, section := range strings.Split("\n"+page, "\n## ")[1:] {
			heading, text, _ := strings.Cut(section, "\n")
			code, title, _ := strings.Cut(heading, " ")
			e := Explanation{Code: Code(code), Title: title, Text: strings.TrimSpace(text)}
			if found := consequenceLine().FindStringSubmatch(e.Text); found != nil {
				e.Consequence, e.Measured, e.Level = Consequence(found[1]), found[2] != "", Level(found[3])
			}
			all = append(all, e)
		}
	}
	return all
}
