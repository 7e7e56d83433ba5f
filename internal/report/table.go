package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// widest is how many assertions a table has columns for. A suite of more has a
// row for each.
const widest = 12

// table is the cases of one suite, summed up: a row a golden, or a line, and a
// column an assertion.
type table struct {
	Suite   conformance.Suite
	Columns []conformance.Assertion
	Rows    []*row
}

// row is one golden of one line; of a suite without goldens, all of a line.
type row struct {
	Line, Group string
	Gating      bool
	Cells       map[conformance.Assertion]Counts
	Cases       []*Case
	Notes       []string
	Tokens      int
}

// tables sums the cases up, suite by suite, with a row for each run of cases that
// has the same key.
func tables(d *Document, key func(*Case) string) []*table {
	var all []*table
	for i := range d.Cases {
		c := &d.Cases[i]
		at := slices.IndexFunc(all, func(t *table) bool { return t.Suite == c.Suite })
		if at < 0 {
			all = append(all, newTable(c.Suite))
			at = len(all) - 1
		}
		all[at].add(c, key(c))
	}
	if len(all) == 0 {
		all = append(all, newTable(conformance.SuiteReplay))
	}
	return all
}

// newTable makes a table. That of replays has a column for every assertion, so
// that what was not selected is seen.
func newTable(s conformance.Suite) *table {
	t := &table{Suite: s}
	if s == conformance.SuiteReplay {
		t.Columns = conformance.Assertions()
	}
	return t
}

func (t *table) add(c *Case, group string) {
	var current *row
	if n := len(t.Rows); n > 0 && t.Rows[n-1].Line == c.Line && t.Rows[n-1].Group == group {
		current = t.Rows[n-1]
	} else {
		current = &row{Line: c.Line, Group: group, Gating: c.Gating, Cells: map[conformance.Assertion]Counts{}}
		t.Rows = append(t.Rows, current)
	}
	current.Cases = append(current.Cases, c)
	if c.Note != "" && !slices.Contains(current.Notes, c.Note) {
		current.Notes = append(current.Notes, c.Note)
	}
	if c.Assertion == "" {
		return
	}
	if !slices.Contains(t.Columns, c.Assertion) {
		t.Columns = append(t.Columns, c.Assertion)
	}
	if current.Cells[c.Assertion] == nil {
		current.Cells[c.Assertion] = Counts{}
	}
	current.Cells[c.Assertion][c.Verdict]++
	current.Tokens += c.Tokens
}

// severity orders verdicts by what a reader must see first.
var severity = []conformance.Verdict{
	conformance.Fail, conformance.Error, conformance.XPass, conformance.XFail, conformance.Flaky, conformance.Pass, conformance.Skip,
}

// worstOf is the most severe verdict, Skip if there is none.
func worstOf(c Counts) conformance.Verdict {
	for _, v := range severity {
		if c[v] > 0 {
			return v
		}
	}
	return conformance.Skip
}

func totalOf(c Counts) int {
	n := 0
	for _, count := range c {
		n += count
	}
	return n
}

// cellOf sums up the cases of one column: "pass", "pass 4/4", "FAIL", "1 of 4 failed, 2 errors".
func cellOf(c Counts) string {
	total, worst := totalOf(c), worstOf(c)
	if total == 0 {
		return "-"
	}
	word := string(worst)
	if worst.Red() {
		word = strings.ToUpper(word)
	}
	if total == 1 {
		return word
	}
	if !worst.Red() {
		return fmt.Sprintf("%s %d/%d", word, c[worst], total)
	}
	var parts []string
	for _, v := range severity {
		if n := c[v]; n > 0 && v.Red() {
			parts = append(parts, counted(n, v))
		}
	}
	if worst == conformance.Error {
		parts[0] += fmt.Sprintf(" of %d", total)
	} else {
		parts[0] = strings.Replace(parts[0], " ", fmt.Sprintf(" of %d ", total), 1)
	}
	return strings.Join(parts, ", ")
}
