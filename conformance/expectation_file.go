package conformance

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
)

// expectArray is the array of tables that the file of expectations is.
const expectArray = "expect"

// LoadExpectations reads a file of expectations and checks it alone; what needs the
// cases, such as a pattern that matches none, is found when they are run. The result
// is never nil; it is fit for use when no finding is an error.
func LoadExpectations(path string) (*Expectations, []tomlfile.Diagnostic) {
	return readExpectations(tomlfile.Load(path, tomlCodes()))
}

// ParseExpectations is [LoadExpectations] for text that is already in memory; name is
// the path that findings mention.
func ParseExpectations(name string, data []byte) (*Expectations, []tomlfile.Diagnostic) {
	return readExpectations(tomlfile.Parse(name, data, tomlCodes()))
}

func tomlCodes() tomlfile.Codes {
	return tomlfile.Codes{
		Unreadable: string(CodeExpectUnreadable), Syntax: string(CodeExpectSyntax),
		UnknownKey: string(CodeExpectUnknownKey), WrongType: string(CodeExpectWrongType),
	}
}

func readExpectations(doc *tomlfile.Document) (*Expectations, []tomlfile.Diagnostic) {
	e := &Expectations{File: doc.Name()}
	if doc.Root() == nil {
		return e, doc.Diagnostics()
	}
	root := doc.Root()
	e.Lines = root.Strings("lines")
	for _, name := range root.Strings("levels") {
		level := check.Level(name)
		if e.Levels = append(e.Levels, level); !slices.Contains(check.Levels(), level) {
			reportEntry(root, CodeExpectLevel, "levels", fmt.Sprintf("level %q is unknown", name), fmt.Sprintf("write some of %s", safetext.Words(check.Levels())))
		}
	}
	lines := map[string]int{}
	for _, t := range doc.Root().Tables(expectArray) {
		one := readExpectation(t)
		one.Pos = fmt.Sprintf("%s:%d", doc.Name(), t.Line())
		if first, twice := lines[one.Pattern]; twice && one.Pattern != "" {
			reportEntry(t, CodeExpectTwice, "pattern", fmt.Sprintf("pattern %q is listed twice, first at line %d of this file", one.Pattern, first), "keep one of the two")
		} else {
			lines[one.Pattern] = t.LineOf("pattern")
		}
		e.List = append(e.List, one)
	}
	return e, doc.Diagnostics()
}

func readExpectation(t *tomlfile.Table) check.Expectation {
	one := check.Expectation{
		Pattern: t.Required("pattern", string(CodeExpectMissing)),
		Outcome: check.Verdict(t.Required("outcome", string(CodeExpectMissing))),
		Reason:  t.Required("reason", string(CodeExpectMissing)),
		Issue:   t.Required("issue", string(CodeExpectMissing)),
		Expires: t.Date("expires"),
	}
	for _, text := range t.Strings("codes") {
		code := check.Code(text)
		if one.Codes = append(one.Codes, code); !mayBeNamed(code) {
			reportEntry(t, CodeExpectCode, "codes", fmt.Sprintf("code %q cannot be expected", text),
				"name the code of a failed check, such as F001, or R004, R005, R006, R007 or R010 for a subject that hangs, ends or does not follow the handshake")
		}
	}
	if _, err := ParsePattern(one.Pattern); err != nil && one.Pattern != "" {
		reportEntry(t, CodeExpectPattern, "pattern", err.Error(), `write the name of a case, such as 0.33/multiturn-s7/fidelity-index-1, "*" for any text, "**" for any components`)
	}
	if one.Outcome != "" && one.Outcome != check.Fail && one.Outcome != check.Flaky {
		reportEntry(t, CodeExpectOutcome, "outcome", fmt.Sprintf("outcome is %q", one.Outcome), `write "fail", or "flaky" for what fails now and then`)
	}
	return one
}

// mayBeNamed reports whether a code may be expected by its name: that of an assertion, or of what a subject did that kept a case
// from being judged. A golden that cannot be fetched, or a command that does not start, says nothing of the subject.
func mayBeNamed(code check.Code) bool {
	switch code {
	case check.CodeNoHandshake, check.CodeEngineEnded, check.CodeSilence, check.CodeDeadline, check.CodeHandshake:
		return true
	}
	return aCode().MatchString(string(code)) && mayBeExpected(check.Failure{Code: code})
}

func reportEntry(t *tomlfile.Table, code check.Code, key, message, hint string) {
	t.Report(string(code), tomlfile.Error, key, message, hint)
}
