package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/vllm-vcr/conformance/conformance"
)

// maxFailures is how many failures of a case the text shows; the JSON has all.
const maxFailures = 5

// Text writes a table with a row per golden, what failed and how to run it
// alone, and one verdict line.
func Text(w io.Writer, r *conformance.Report) error {
	var b bytes.Buffer
	table(&b, r)
	for _, result := range r.Results {
		failures(&b, result, r.Flags)
	}
	fmt.Fprintf(&b, "\n%s\n", Verdict(r))
	_, err := w.Write(b.Bytes())
	return err
}

// Verdict is the run's outcome in a line.
func Verdict(r *conformance.Report) string {
	var parts []string
	for _, v := range []conformance.Verdict{conformance.Pass, conformance.Fail, conformance.Error, conformance.Skip} {
		if n := r.Counts[v]; n > 0 || v == conformance.Pass {
			parts = append(parts, counted(n, v))
		}
	}
	return fmt.Sprintf("%s: %s: %s; %d tokens compared in %v",
		strings.ToUpper(string(r.Verdict)), r.Reason, strings.Join(parts, ", "), r.Tokens, r.Duration.Round(time.Millisecond))
}

// counted says how many cases had a verdict: "80 passed", "1 error".
func counted(n int, v conformance.Verdict) string {
	word := "skipped"
	switch {
	case v == conformance.Pass:
		word = "passed"
	case v == conformance.Fail:
		word = "failed"
	case v == conformance.Error && n == 1:
		word = "error"
	case v == conformance.Error:
		word = "errors"
	}
	return fmt.Sprintf("%d %s", n, word)
}

// row is one golden of one line.
type row struct {
	line, golden string
	gating       bool
	cells        map[conformance.Assertion][]conformance.Result
	notes        []string
	tokens       int
}

func table(b *bytes.Buffer, r *conformance.Report) {
	columns := conformance.Assertions()
	var aligned bytes.Buffer
	tw := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "VLLM\tGATE\tGOLDEN")
	for _, c := range columns {
		fmt.Fprintf(tw, "\t%s", strings.ToUpper(string(c)))
	}
	fmt.Fprint(tw, "\tTOKENS\tNOTE\n")
	for _, row := range rows(r) {
		gate := "-"
		if row.gating {
			gate = "yes"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s", row.line, gate, cmp.Or(row.golden, "-"))
		for _, c := range columns {
			fmt.Fprintf(tw, "\t%s", cell(row.cells[c]))
		}
		fmt.Fprintf(tw, "\t%d\t%s\n", row.tokens, oneLine(strings.Join(row.notes, "; ")))
	}
	tw.Flush()
	// Without the padding of the last column, which editors and diffs trip over.
	for line := range strings.Lines(aligned.String()) {
		fmt.Fprintln(b, strings.TrimRight(line, " \n"))
	}
}

func rows(r *conformance.Report) []*row {
	var all []*row
	for _, result := range r.Results {
		c := result.Case
		var current *row
		if n := len(all); n > 0 && all[n-1].line == c.Line.Name && all[n-1].golden == c.Golden.ID {
			current = all[n-1]
		} else {
			current = &row{line: c.Line.Name, golden: c.Golden.ID, gating: c.Gating, cells: map[conformance.Assertion][]conformance.Result{}}
			all = append(all, current)
		}
		if result.Note != "" && !slices.Contains(current.notes, result.Note) {
			current.notes = append(current.notes, result.Note)
		}
		if c.Assertion == "" {
			continue
		}
		current.cells[c.Assertion] = append(current.cells[c.Assertion], result)
		current.tokens += result.Tokens
	}
	return all
}

// cell sums up the cases of one column: "pass", "pass 4/4", "FAIL 1/4".
func cell(results []conformance.Result) string {
	if len(results) == 0 {
		return "-"
	}
	counts := map[conformance.Verdict]int{}
	for _, r := range results {
		counts[r.Verdict]++
	}
	worst := conformance.Skip
	for _, v := range []conformance.Verdict{conformance.Pass, conformance.Error, conformance.Fail} {
		if counts[v] > 0 {
			worst = v
		}
	}
	word := string(worst)
	if worst == conformance.Fail || worst == conformance.Error {
		word = strings.ToUpper(word)
	}
	if len(results) == 1 {
		return word
	}
	return fmt.Sprintf("%s %d/%d", word, counts[worst], len(results))
}

// oneLine makes a message, parts of which come from files and subjects, one line
// of text: a line of its own could be a command to the CI that reads it.
func oneLine(message string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, message)
}

// failures writes a block about a case that is not as it should be.
func failures(b *bytes.Buffer, r conformance.Result, flags []string) {
	if r.Verdict != conformance.Fail && r.Verdict != conformance.Error {
		return
	}
	gate := ""
	if !r.Case.Gating {
		gate = " (does not gate)"
	}
	fmt.Fprintf(b, "\n%s %s%s\n", strings.ToUpper(string(r.Verdict)), r.Case.Name(), gate)
	for i, f := range r.Failures {
		if i == maxFailures {
			fmt.Fprintf(b, "  … and %d more; --json FILE lists them all\n", len(r.Failures)-i)
			break
		}
		fmt.Fprintf(b, "  %s\n", oneLine(f.Message))
	}
	for _, place := range []struct{ name, at string }{
		{"golden", r.Location}, {"registered", r.Case.Entry}, {"repeat", Repeat(r.Case, flags...)},
	} {
		if place.at != "" {
			fmt.Fprintf(b, "  %s: %s\n", place.name, place.at)
		}
	}
}
