package selftest

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// What the self-test finds wrong with the runner.
const (
	CodeUncaught   conformance.Code = "T001" // a fault leaves a check green that must see it
	CodeWrongCheck conformance.Code = "T002" // a fault, or none, turns a check red that it does not concern
	CodeUnclear    conformance.Code = "T003" // a check sees the fault, but its first failure does not say what, or where
	CodeNotPlayed  conformance.Code = "T004" // the fault could not be played
)

// judge compares what the runner found with what it had to find.
func (f *Fault) judge(s *scene, results []conformance.Result) (failures []conformance.Failure) {
	for _, r := range results {
		w, mustSee := f.wants(s, r.Case)
		usual := s.expected[r.Case.Name()]
		switch {
		case mustSee && !r.Verdict.Red():
			failures = append(failures, check.Failed(CodeUncaught, "%s does not see it: %s", f.check(r.Case), describe(r)))
		case mustSee:
			failures = append(failures, w.compare(f.check(r.Case), r)...)
		case r.Verdict == conformance.Skip && f.blames && strings.HasPrefix(r.Note, "not judged: see "):
		case f.red == nil && r.Verdict.Red(), f.red != nil && r.Verdict != usual:
			failures = append(failures, check.Failed(CodeWrongCheck, "%s must not be concerned: %s", f.check(r.Case), describe(r)))
		}
	}
	return failures
}

// wants returns what a case must find, if it must find something. One that is
// skipped without a fault has nothing to find it with.
func (f *Fault) wants(s *scene, c conformance.Case) (want, bool) {
	w, mustSee := f.red[c.Assertion]
	return w.where(c.Variant.Concurrency), mustSee && s.expected[c.Name()] != conformance.Skip
}

// where is what is wanted with so many requests in flight.
func (w want) where(concurrency int) want {
	if at := w.alone; at != nil && concurrency == 1 {
		w.request, w.position = at.request, at.position
		w.says = append(slices.Clone(w.says), fmt.Sprintf("1 open: request %d (line ", at.request), fmt.Sprintf(") after %d of %d tokens", at.position, at.tokens))
	}
	return w
}

// check names a case within its line.
func (f *Fault) check(c conformance.Case) string { return c.Golden.ID + "/" + c.Check() }

// describe is what a case said.
func describe(r conformance.Result) string {
	if len(r.Failures) == 0 {
		return strings.TrimSuffix(fmt.Sprintf("%s: %s", r.Verdict, r.Note), ": ")
	}
	return fmt.Sprintf("%s: %s %s", r.Verdict, r.Failures[0].Code, r.Failures[0].Message)
}

// compare says what the first failure of a case lacks, or the first with the code.
func (w *want) compare(name string, r conformance.Result) (failures []conformance.Failure) {
	verdict := conformance.Fail
	if strings.HasPrefix(string(w.code), "R") {
		verdict = conformance.Error
	}
	if r.Verdict != verdict {
		failures = append(failures, check.Failed(CodeUnclear, "%s: the verdict is %s, want %s: %s", name, r.Verdict, verdict, describe(r)))
	}
	if len(r.Failures) == 0 {
		return append(failures, check.Failed(CodeUnclear, "%s is %s without a failure", name, r.Verdict))
	}
	says := r.Failures[0]
	if i := slices.IndexFunc(r.Failures, func(f conformance.Failure) bool { return f.Code == w.code && len(w.lacks(f)) == 0 }); i >= 0 && w.besides {
		says = r.Failures[i]
	}
	for _, lack := range w.lacks(says) {
		failures = append(failures, check.Failed(CodeUnclear, "%s: %s: %s", name, lack, says.Message))
	}
	return failures
}

// lacks lists what a failure should say and does not.
func (w *want) lacks(f conformance.Failure) (lacks []string) {
	if f.Code != w.code {
		lacks = append(lacks, fmt.Sprintf("the code is %s, want %s", f.Code, w.code))
	}
	if w.request == someone && f.Request < 0 {
		lacks = append(lacks, "no request is named")
	}
	if w.request >= -1 && f.Request != w.request {
		lacks = append(lacks, fmt.Sprintf("the request is %d, want %d", f.Request, w.request))
	}
	if w.position != anywhere && f.Position != w.position {
		lacks = append(lacks, fmt.Sprintf("the position is %d, want %d", f.Position, w.position))
	}
	if w.inFrame && f.Frame < 1 {
		lacks = append(lacks, fmt.Sprintf("the frame is %d, want the number of a message", f.Frame))
	}
	for _, field := range []struct{ name, got, part string }{
		{"path", f.Path, w.path}, {"expected value", f.Expected, w.expected}, {"actual value", f.Actual, w.actual},
	} {
		if !strings.Contains(field.got, field.part) {
			lacks = append(lacks, fmt.Sprintf("the %s is %q, want %q in it", field.name, field.got, field.part))
		}
	}
	if (w.distinct || w.expected != "" || w.actual != "") && (f.Expected == f.Actual || f.Expected == "" || f.Actual == "") {
		lacks = append(lacks, fmt.Sprintf("the values are %q and %q, want two", f.Expected, f.Actual))
	}
	for _, part := range w.says {
		if !strings.Contains(f.Message, part) {
			lacks = append(lacks, fmt.Sprintf("the message does not say %q", part))
		}
	}
	return lacks
}

// Codes explains the codes of the self-test; see [conformance.Explanation].
//
//go:embed selftest.md
var Codes string
