package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// junitFailures is how many failures of a case JUnit shows; the JSON has all.
const junitFailures = 50

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     string       `xml:"time,attr,omitempty"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       string          `xml:"time,attr,omitempty"`
	Timestamp  string          `xml:"timestamp,attr,omitempty"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
	seconds    float64
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Name      string        `xml:"name,attr"`
	Classname string        `xml:"classname,attr"`
	Time      string        `xml:"time,attr,omitempty"`
	Skipped   *junitSkipped `xml:"skipped"`
	Error     *junitOutcome `xml:"error"`
	Failure   *junitOutcome `xml:"failure"`
	SystemOut string        `xml:"system-out,omitempty"`
}

type junitSkipped struct {
	Message string `xml:"message,attr"`
}

type junitOutcome struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes a suite per line and a test per case. What failed as expected is
// skipped there, which is the only word that JUnit has for it.
func JUnit(w io.Writer, d *Document) error {
	all := junitSuites{Name: "vllm-vcr conform"}
	total := 0.0
	for _, l := range d.Lines {
		all.Suites = append(all.Suites, d.junitLine(l))
	}
	if len(d.Problems) > 0 {
		all.Suites = append(all.Suites, d.junitProblems())
	}
	for _, s := range all.Suites {
		all.Tests, all.Failures, all.Errors, all.Skipped = all.Tests+s.Tests, all.Failures+s.Failures, all.Errors+s.Errors, all.Skipped+s.Skipped
		total += s.seconds
	}
	all.Time = d.seconds(total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func (d *Document) junitLine(l Line) junitSuite {
	s := junitSuite{Name: xmlText(l.Line), Properties: d.junitProperties(l)}
	if len(d.Runs) > 0 && !d.Runs[0].Started.IsZero() {
		s.Timestamp = d.Runs[0].Started.UTC().Format("2006-01-02T15:04:05")
	}
	for i := range d.Cases {
		if c := &d.Cases[i]; c.Line == l.Line {
			s.add(d.junitCase(c), c.DurationMs/1000)
		}
	}
	s.Time = d.seconds(s.seconds)
	return s
}

// add counts a case in.
func (s *junitSuite) add(c junitCase, seconds float64) {
	s.Cases, s.Tests, s.seconds = append(s.Cases, c), s.Tests+1, s.seconds+seconds
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
}

func (d *Document) junitProperties(l Line) []junitProperty {
	properties := []junitProperty{
		{"tag", l.Tag},
		{"gating", fmt.Sprint(l.Gating)},
		{"verdict", string(l.Verdict)},
		{"goldens", fmt.Sprint(l.Goldens)},
		{"asserted", fmt.Sprint(l.Asserted)},
		{"tokens", fmt.Sprint(l.Tokens)},
	}
	for _, r := range d.Runs {
		properties = append(properties, junitProperty{"tool", r.Tool.Name + " " + r.Tool.Version})
		if r.Subject.Kind != "" {
			properties = append(properties, junitProperty{"subject", strings.TrimSpace(r.Subject.Kind + " " + r.Subject.Command)})
		}
		if v := r.Subject.Versions[l.Line]; v != "" {
			properties = append(properties, junitProperty{"version", v})
		}
	}
	for i := range properties {
		properties[i].Value = xmlText(safetext.Line(properties[i].Value))
	}
	return properties
}

func (d *Document) junitCase(c *Case) junitCase {
	j := junitCase{
		Name: xmlText(c.shortName()), Classname: xmlText("vllm-vcr." + c.Line), Time: d.seconds(c.DurationMs / 1000),
		SystemOut: xmlText(c.output()),
	}
	switch c.Verdict {
	case conformance.Fail:
		j.Failure = outcome(c, "fails")
	case conformance.XPass:
		j.Failure = outcome(c, cmp.Or(c.stale(), "passes, but was expected to fail"))
	case conformance.Error:
		j.Error = outcome(c, "could not be judged")
	case conformance.Skip:
		j.Skipped = &junitSkipped{xmlText(safetext.Line(c.Note))}
	case conformance.XFail, conformance.Flaky:
		j.Skipped = &junitSkipped{string(c.Verdict)}
		if c.Expected != nil {
			j.Skipped.Message += ": " + xmlText(c.Expected.says())
		}
	}
	return j
}

// outcome is what went wrong: its first failure as the message, all in the text.
func outcome(c *Case, otherwise string) *junitOutcome {
	o := &junitOutcome{Message: xmlText(otherwise), Type: string(c.Verdict)}
	if len(c.Failures) > 0 {
		o.Message, o.Type = xmlText(says(c.Failures[0])), xmlText(string(c.Failures[0].Code))
	}
	var text strings.Builder
	for i, f := range c.Failures {
		if i == junitFailures {
			fmt.Fprintf(&text, "… and %d more\n", len(c.Failures)-i)
			break
		}
		text.WriteString(xmlText(says(f)) + "\n")
	}
	o.Text = text.String()
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
func (d *Document) junitProblems() junitSuite {
	s := junitSuite{Name: "run"}
	for i, f := range d.Problems {
		text := xmlText(says(f))
		s.add(junitCase{
			Name: fmt.Sprintf("problem-%d", i+1), Classname: "vllm-vcr.run", Time: d.seconds(0),
			Failure: &junitOutcome{Message: text, Type: xmlText(string(f.Code)), Text: text + "\n"},
		}, 0)
	}
	s.Time = d.seconds(0)
	return s
}

// seconds is a duration as JUnit has it, "" when the document holds none.
func (d *Document) seconds(s float64) string {
	if d.deterministic() {
		return ""
	}
	return fmt.Sprintf("%.3f", s)
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
