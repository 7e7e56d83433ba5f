package skew

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/report"
)

// A Verdict is how a frontend and an engine work together.
type Verdict string

// Verdicts, the best first.
const (
	Works        Verdict = "works"
	WorksWithout Verdict = "works without" // and some features fail
	RequestsFail Verdict = "requests fail"
	DoesNotStart Verdict = "does not start"
)

// signs are short, for the cells of a table.
var signs = map[Verdict]string{Works: "yes", WorksWithout: "part", RequestsFail: "FAIL", DoesNotStart: "EXIT"}

// A Feature is a part of what frontend and engine do together.
type Feature string

// Features in the order in which they are tried.
const (
	Plain      Feature = "plain"      // a completion
	LogProbs   Feature = "logprobs"   // with log-probabilities
	Structured Feature = "structured" // with a constraint on the answer
	LoRA       Feature = "lora"       // of an adapter that is loaded at run time
	Statistics Feature = "statistics" // a metric that the frontend reads out of the engine's statistics
)

// Features are all of them.
var Features = []Feature{Plain, LogProbs, Structured, LoRA, Statistics}

// A Cell is the result of a pair.
type Cell struct {
	Frontend string  `json:"frontend"` // line, with [Python] if it is not vllm-rs
	Engine   string  `json:"engine"`   // line
	Verdict  Verdict `json:"verdict"`
	// Without are the features that fail where plain completions work.
	Without []Feature `json:"without,omitempty"`
	// Reason is why, in the words of the frontend, and Fields are those of the messages that are the cause, "Struct.field".
	Reason string   `json:"reason,omitempty"`
	Fields []string `json:"fields,omitempty"`
	// Real is set if the released engine was measured too, with the same verdict. Otherwise only the player of its line was.
	Real bool `json:"real,omitempty"`
}

// Python is behind the line of a frontend that is the Python client of a release, as its API server has it.
const Python = " Python"

// String is the cell as a sentence.
func (c Cell) String() string {
	name := "vllm-rs " + c.Frontend
	if line, is := strings.CutSuffix(c.Frontend, Python); is {
		name = "the Python client " + line
	}
	text := fmt.Sprintf("%s before an engine of %s: %s", name, c.Engine, c.Verdict)
	for i, f := range c.Without {
		text += []string{" ", ", "}[min(i, 1)] + string(f)
	}
	if len(c.Fields) > 0 {
		text += ", because of " + strings.Join(c.Fields, ", ")
	}
	if c.Reason != "" {
		text += " (" + c.Reason + ")"
	}
	return text
}

// A Table has a cell for each frontend and engine.
type Table struct {
	Schema    string   `json:"schema"`
	Frontends []string `json:"frontends"` // releases, "0.33.0"
	Engines   []string `json:"engines"`   // releases
	Cells     []Cell   `json:"cells"`     // by frontend, then by engine
}

// Schema is that of the JSON form.
const Schema = "vllm-vcr/compat-skew/1"

// Path is that of the table in the repository of this program.
const Path = "internal/upstream/skew/table.json"

//go:embed table.json
var tableText []byte

// Measured returns the table of this build.
var Measured = sync.OnceValue(func() *Table {
	t := new(Table)
	if err := json.Unmarshal(tableText, t); err != nil {
		panic(err) // a test reads it
	}
	return t
})

// index is where the cell of two lines is, below 0 if there is none.
func (t *Table) index(frontend, engine string) int {
	return slices.IndexFunc(t.Cells, func(c Cell) bool { return c.Frontend == frontend && c.Engine == engine })
}

// Merge returns the table with cells that were measured since. A measurement of real engines has no LoRA, so what is known of it stays.
func (t *Table) Merge(measured []Cell) *Table {
	merged := *t
	merged.Cells = slices.Clone(t.Cells)
	for _, c := range measured {
		at := merged.index(c.Frontend, c.Engine)
		if at < 0 {
			merged.Cells = append(merged.Cells, c)
			continue
		}
		was := &merged.Cells[at]
		agrees := was.Verdict == c.Verdict && slices.Equal(was.Without, c.Without)
		if c.Real && slices.Equal(was.Without, []Feature{LoRA}) {
			agrees = c.Verdict == Works
		}
		if agrees && (c.Real || was.Real) {
			was.Real = true
			continue
		}
		*was = c
	}
	return &merged
}

func (t *Table) row(frontend string) (cells []Cell) {
	for _, c := range t.Cells {
		if c.Frontend == frontend {
			cells = append(cells, c)
		}
	}
	return cells
}

// Lines are those of the frontends.
func (t *Table) Lines() (frontends []string) {
	for _, c := range t.Cells {
		if !slices.Contains(frontends, c.Frontend) {
			frontends = append(frontends, c.Frontend)
		}
	}
	return frontends
}

// Bytes is the table as its file.
func (t *Table) Bytes() ([]byte, error) { return jsonout.Bytes(t) }

// Difference is a sentence for each cell of another table that differs in its verdict, its features or its fields.
func (t *Table) Difference(other *Table) (sentences []string) {
	for _, c := range other.Cells {
		var was Cell
		if at := t.index(c.Frontend, c.Engine); at >= 0 {
			was = t.Cells[at]
		}
		if was.Verdict != c.Verdict || !slices.Equal(was.Without, c.Without) || !slices.Equal(was.Fields, c.Fields) {
			sentences = append(sentences, fmt.Sprintf("%s (before: %s)", c, was.Verdict))
		}
	}
	return sentences
}

// Text writes the table, and below it each cause once.
func (t *Table) Text(w io.Writer) error {
	var b bytes.Buffer
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	t.grid(func(i int, cells []string) { fmt.Fprintln(tab, strings.Join(cells, "\t")) })
	_ = tab.Flush()
	fmt.Fprintf(&b, "\n%s\n", legend)
	for _, c := range t.causes() {
		fmt.Fprintf(&b, "  %s\n", c)
	}
	_, err := w.Write(b.Bytes())
	return err
}

const legend = "yes: works; part: works without some features; FAIL: requests fail; EXIT: the frontend exits; * the released engine was measured too"

// Markdown writes the same as a table and a list.
func (t *Table) Markdown(w io.Writer) error {
	var b bytes.Buffer
	t.grid(func(i int, cells []string) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(cells)))
		}
	})
	fmt.Fprintf(&b, "\n%s.\n\n", legend)
	for _, c := range t.causes() {
		fmt.Fprintf(&b, "- %s\n", c)
	}
	_, err := w.Write(b.Bytes())
	return err
}

//go:embed page
var pages embed.FS

var page = report.NewPageTemplate(pages, nil, "page/*.html")

// HTML writes one page that needs nothing else.
func (t *Table) HTML(w io.Writer) error {
	type row struct {
		Line  string
		Cells []Cell
	}
	data := struct {
		*Table
		Columns []string
		Rows    []row
	}{Table: t}
	for _, line := range t.Lines() {
		cells := t.row(line)
		data.Rows = append(data.Rows, row{line, cells})
		data.Columns = data.Columns[:0]
		for _, c := range cells {
			data.Columns = append(data.Columns, c.Engine)
		}
	}
	return page.Write(w, data)
}

// Sign is the cell in a table.
func (c Cell) Sign() string {
	sign := signs[c.Verdict]
	if c.Real {
		sign += "*"
	}
	return sign
}

// grid calls f with the cells of each row, the heading first.
func (t *Table) grid(f func(i int, cells []string)) {
	for i, line := range t.Lines() {
		cells := t.row(line)
		if i == 0 {
			heading := []string{"frontend \\ engine"}
			for _, c := range cells {
				heading = append(heading, c.Engine)
			}
			f(0, heading)
		}
		row := []string{line}
		for _, c := range cells {
			row = append(row, c.Sign())
		}
		f(i+1, row)
	}
}

// causes are a sentence for each cause of failures, with all pairs that it has.
func (t *Table) causes() (sentences []string) {
	type key struct {
		verdict Verdict
		without string
		cause   string
	}
	var keys []key
	pairs := map[key][]string{}
	for _, c := range t.Cells {
		if c.Verdict == Works {
			continue
		}
		k := key{verdict: c.Verdict, cause: c.Reason}
		if len(c.Fields) > 0 {
			k.cause = strings.Join(c.Fields, ", ")
		}
		for i, f := range c.Without {
			k.without += []string{" ", ", "}[min(i, 1)] + string(f)
		}
		if _, is := pairs[k]; !is {
			keys = append(keys, k)
		}
		pairs[k] = append(pairs[k], strings.ReplaceAll(c.Frontend, " ", "\u00a0")+"→"+c.Engine)
	}
	for _, k := range keys {
		sentences = append(sentences, fmt.Sprintf("%s, %s%s: %s", strings.Join(pairs[k], " "), k.verdict, k.without, k.cause))
	}
	return sentences
}
