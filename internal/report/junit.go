package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// junitFailures is how many failures of a case JUnit shows; the JSON has all.
const junitFailures = 50

// JUnit writes a suite per line and a test per case. What failed as expected is
// skipped there, which is the only word that JUnit has for it.
func JUnit(w io.Writer, d *Document) error {
	all := junit.Testsuites{Name: "vllm-vcr conform"}
	total := 0.0
	for i, l := range d.Lines {
		suite, ms := d.junitLine(l)
		suite.ID = i
		all.AddSuite(suite)
		total += ms
	}
	if len(d.Problems) > 0 {
		all.AddSuite(d.junitProblems())
	}
	all.Time = d.seconds(total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	return all.WriteXML(w)
}

func (d *Document) junitLine(l Line) (s junit.Testsuite, ms float64) {
	s = junit.Testsuite{Name: xmlText(l.Line)}
	d.addProperties(&s, l)
	if len(d.Runs) > 0 && !d.Runs[0].Started.IsZero() {
		s.SetTimestamp(d.Runs[0].Started.UTC())
	}
	for i := range d.Cases {
		if c := &d.Cases[i]; c.Line == l.Line {
			s.AddTestcase(d.junitCase(c))
			ms += c.DurationMs
		}
	}
	s.Time = d.seconds(ms)
	return s, ms
}

func (d *Document) addProperties(s *junit.Testsuite, l Line) {
	add := func(name, value string) { s.AddProperty(name, xmlText(safetext.Line(value))) }
	add("tag", l.Tag)
	add("gating", fmt.Sprint(l.Gating))
	add("verdict", string(l.Verdict))
	add("goldens", fmt.Sprint(l.Goldens))
	add("asserted", fmt.Sprint(l.Asserted))
	add("tokens", fmt.Sprint(l.Tokens))
	for _, r := range d.Runs {
		add("tool", r.Tool.Name+" "+r.Tool.Version)
		if r.Subject.Kind != "" {
			add("subject", strings.TrimSpace(r.Subject.Kind+" "+r.Subject.Command))
		}
		if v := r.Subject.Versions[l.Line]; v != "" {
			add("version", v)
		}
	}
}

func (d *Document) junitCase(c *Case) junit.Testcase {
	j := junit.Testcase{
		Name: xmlText(c.shortName()), Classname: xmlText("vllm-vcr." + c.Line), Time: d.seconds(c.DurationMs),
	}
	if text := xmlText(c.output()); text != "" {
		j.SystemOut = &junit.Output{Data: text}
	}
	switch c.Verdict {
	case conformance.Fail:
		j.Failure = outcome(c, "fails")
	case conformance.XPass:
		j.Failure = outcome(c, cmp.Or(c.stale(), "passes, but was expected to fail"))
	case conformance.Error:
		j.Error = outcome(c, "could not be judged")
	case conformance.Skip:
		j.Skipped = &junit.Result{Message: xmlText(safetext.Line(c.Note))}
	case conformance.XFail, conformance.Flaky:
		j.Skipped = &junit.Result{Message: string(c.Verdict)}
		if c.Expected != nil {
			j.Skipped.Message += ": " + xmlText(c.Expected.says())
		}
	}
	return j
}

// outcome is what went wrong: its first failure as the message, all in the text.
func outcome(c *Case, otherwise string) *junit.Result {
	o := &junit.Result{Message: xmlText(otherwise), Type: string(c.Verdict)}
	if len(c.Failures) > 0 {
		first := c.Failures[0]
		o.Message, o.Type = xmlText(says(first)), xmlText(string(first.Code))
		if first.Consequence != "" {
			o.Message = string(first.Consequence) + ": " + o.Message
		}
	}
	var text strings.Builder
	for i, f := range c.Failures {
		if i == junitFailures {
			fmt.Fprintf(&text, "… and %d more\n", len(c.Failures)-i)
			break
		}
		text.WriteString(xmlText(says(f)) + "\n")
	}
	o.Data = text.String()
	return o
}

// output is where a case is, and how to run it alone.
func (c *Case) output() string {
	var b strings.Builder
	for _, part := range []struct{ name, text string }{
		{"note", c.Note}, {"golden", c.Location}, {"registered", c.Entry}, {"repeat", c.Repeat},
	} {
		if part.text != "" {
			fmt.Fprintf(&b, "%s: %s\n", part.name, safetext.Line(part.text))
		}
	}
	return b.String()
}

// junitProblems is what is wrong with the run, as tests that fail.
func (d *Document) junitProblems() junit.Testsuite {
	s := junit.Testsuite{Name: "run", ID: len(d.Lines), Time: d.seconds(0)}
	for i, f := range d.Problems {
		text := xmlText(says(f))
		s.AddTestcase(junit.Testcase{
			Name: fmt.Sprintf("problem-%d", i+1), Classname: "vllm-vcr.run", Time: d.seconds(0),
			Failure: &junit.Result{Message: text, Type: xmlText(string(f.Code)), Data: text + "\n"},
		})
	}
	return s
}

// seconds is a duration as JUnit has it.
func (d *Document) seconds(ms float64) string {
	if d.deterministic() {
		ms = 0
	}
	return fmt.Sprintf("%.3f", ms/1000)
}

// xmlText leaves out what no XML document may hold, escaped or not: control
// characters, surrogates, and bytes that are not UTF-8.
func xmlText(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\n', r == '\r':
			return r
		case r < 0x20, r == 0xFFFE, r == 0xFFFF:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
}

// shortName is the name of a case below its line.
func (c *Case) shortName() string { return strings.TrimPrefix(c.Name, c.Line+"/") }
