package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
)

// maxRequestEntries is for how many failing requests a case gets an entry each.
// With more, the case gets one.
const maxRequestEntries = 3

// expectKeys is the order of the keys of an entry.
var expectKeys = []string{"pattern", "outcome", "codes", "reason", "issue", "expires"}

// UpdatedExpectations is a file of expectations after a run.
type UpdatedExpectations struct {
	Data           []byte   // the text of the file
	Added, Removed []string // patterns
	// Notes are what a person has to see to, a sentence each.
	Notes []string
}

// updater is an update at work.
type updater struct {
	UpdatedExpectations
	editor *tomlfile.Editor
	known  map[string]bool // the patterns of the file
	ran    map[string]check.Result
	all    []check.Case
}

// UpdateExpectations brings a file of expectations up to date with the results of some of
// all cases: it removes the entries that nothing fails by any more, and adds one for
// each case, or each of few requests, that failed unexpectedly. Every other byte stays,
// comments included. The reason and the issue of a new entry are left empty, so that
// the file cannot be used before a person has filled them in.
func UpdateExpectations(name string, data []byte, results []check.Result, all []check.Case, now time.Time) (*UpdatedExpectations, error) {
	e, findings := ParseExpectations(name, data)
	for _, f := range findings {
		if f.Severity == tomlfile.Error {
			return nil, errors.New(f.String())
		}
	}
	u := &updater{known: map[string]bool{}, ran: map[string]check.Result{}, all: all}
	var err error
	if u.editor, err = tomlfile.NewEditor(name, data, nil); err != nil {
		return nil, err
	}
	for _, one := range e.List {
		u.known[one.Pattern] = true
	}
	for _, result := range results {
		if result.Verdict != check.Skip && result.Verdict != check.Error {
			u.ran[result.Case.Name()] = result
		}
	}
	if err := u.removeStale(e); err != nil {
		return nil, err
	}
	if err := u.addFailed(results, NewJudge(e, all, now)); err != nil {
		return nil, err
	}
	u.Data = u.editor.Bytes()
	return &u.UpdatedExpectations, nil
}

// removeStale removes the entries of which all cases ran, and nothing failed.
func (u *updater) removeStale(e *Expectations) error {
	for i := len(e.List) - 1; i >= 0; i-- {
		one := e.List[i]
		if one.Outcome == check.Flaky {
			continue
		}
		switch needed, idle, unknown := u.use(one); {
		case idle == 0:
		case needed > 0:
			u.note("%s: pattern %q is needed by %d cases, but %d pass: narrow it", one.Pos, one.Pattern, needed, idle)
		case unknown > 0:
			u.note("%s: pattern %q is needed by no case that ran, but %d did not run", one.Pos, one.Pattern, unknown)
		default:
			if err := u.editor.Remove(expectArray, i); err != nil {
				return err
			}
			u.Removed = append(u.Removed, one.Pattern)
		}
	}
	slices.Reverse(u.Removed)
	return nil
}

// use counts the cases of an expectation that it was needed by, that passed without,
// and of which nothing is known.
func (u *updater) use(e check.Expectation) (needed, idle, unknown int) {
	p, _ := ParsePattern(e.Pattern)
	r := rule{e, p}
	for _, c := range u.all {
		if !mayFail(c) || !p.Match(c.Name()) || !p.hasRequest(c) {
			continue
		}
		result, ran := u.ran[c.Name()]
		switch {
		case !ran:
			unknown++
		case slices.ContainsFunc(result.Failures, r.covers):
			needed++
		default:
			idle++
		}
	}
	return needed, idle, unknown
}

// addFailed adds entries for what failed although nobody expected it.
func (u *updater) addFailed(results []check.Result, j *Judge) error {
	for _, result := range results {
		if result.Verdict != check.Fail {
			continue
		}
		for _, pattern := range u.patternsFor(result, j.about(result.Case)) {
			if u.known[pattern] {
				u.note("%s failed, and pattern %q is listed already: see why it is not applied", result.Case.Name(), pattern)
				continue
			}
			if err := u.add(pattern); err != nil {
				return err
			}
		}
	}
	return nil
}

// patternsFor names what failed unexpectedly in a case.
func (u *updater) patternsFor(result check.Result, rules []rule) []string {
	name := result.Case.Name()
	if !mayFail(result.Case) {
		u.note("%s failed, and may not be expected to", name)
		return nil
	}
	var patterns []string
	for _, f := range result.Failures {
		if slices.ContainsFunc(rules, func(r rule) bool { return r.covers(f) }) {
			continue
		}
		if !mayBeExpected(f) {
			u.note("%s could not be judged to its end (%s), so no entry is added: if that is known, write one with codes = [%q]", name, f.Code, f.Code)
			return nil
		}
		pattern := fmt.Sprintf("%s/%s%d", name, requestPrefix, f.Request)
		if result.Case.Assertion != check.Fidelity || f.Request < 0 || len(patterns) == maxRequestEntries && !slices.Contains(patterns, pattern) {
			return []string{name}
		}
		if !slices.Contains(patterns, pattern) {
			patterns = append(patterns, pattern)
		}
	}
	return patterns
}

// add puts an entry at the end of the file.
func (u *updater) add(pattern string) error {
	text := u.editor.Bytes()
	end := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		end++
	}
	if err := u.editor.Insert(expectArray, end, "pattern", pattern); err != nil {
		return err
	}
	last := len(u.editor.Lines(expectArray)) - 1
	for _, pair := range [][2]string{{"outcome", string(check.Fail)}, {"reason", ""}, {"issue", ""}} {
		if err := u.editor.Set(expectArray, last, pair[0], pair[1], expectKeys); err != nil {
			return err
		}
	}
	u.known[pattern] = true
	u.Added = append(u.Added, pattern)
	return nil
}

func (u *updater) note(format string, args ...any) {
	u.Notes = append(u.Notes, fmt.Sprintf(format, args...))
}
