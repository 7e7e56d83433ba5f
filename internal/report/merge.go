package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Named is a document and the file that it was read from.
type Named struct {
	Name string
	*Document
}

// Merge makes one document of several: the runs and the cases of all, in the order
// of the compat matrix, judged as if they had been one run. A case that two
// documents have must be the same in both, but for the time it took.
func Merge(documents []Named) (*Document, error) {
	if len(documents) == 0 {
		return nil, errors.New("nothing to merge")
	}
	merged := &Document{Schema: SchemaVersion, Findings: map[conformance.Code]string{}}
	for _, d := range documents {
		merged.Runs = append(merged.Runs, d.Runs...)
		merged.DurationMs += d.DurationMs
		maps.Copy(merged.Findings, d.Findings)
		merged.addProblems(d.Problems)
		merged.addCoverage(d.Coverage)
	}
	cases, err := mergeCases(documents)
	if err != nil {
		return nil, err
	}
	merged.Cases = cases
	judged := make([]check.Judged, len(cases))
	for i, c := range cases {
		judged[i] = check.Judged{
			Line: c.Line, Tag: c.Tag, Golden: c.Golden, Gating: c.Gating, Verdict: c.Verdict, Infra: c.Infra,
			Asserted: c.Asserted, Tokens: c.Tokens, Needs: c.Needs, Check: c.Check,
			Levels: c.Levels, Failures: c.Failures, Unclaimed: c.Unclaimed,
		}
		if n := len(c.Failures); n > 0 {
			judged[i].Code = c.Failures[n-1].Code
		}
	}
	merged.conclude(check.Summarise(judged, claimsOf(merged.Runs), len(merged.Problems)))
	merged.Causes = merged.causes()
	merged.fill()
	return merged, nil
}

// claimsOf are the levels that runs claim together: all, if one of them claims none.
func claimsOf(runs []Run) (claims check.Claims) {
	for _, r := range runs {
		if len(r.Claims) == 0 {
			return nil
		}
		claims = append(claims, r.Claims...)
	}
	return claims
}

// addProblems takes over problems, each once: jobs that read the same
// expectations find the same wrong with them.
func (d *Document) addProblems(problems []conformance.Failure) {
	for _, p := range problems {
		if !slices.Contains(d.Problems, p) {
			d.Problems = append(d.Problems, p)
		}
	}
}

// addCoverage takes over what is covered of lines. Of a line that several documents have, the one that shows most counts:
// what each of them covers that the others do not, their sums do not say.
func (d *Document) addCoverage(lines []Coverage) {
	for _, c := range lines {
		at := slices.IndexFunc(d.Coverage, func(known Coverage) bool { return known.Line == c.Line })
		switch {
		case at < 0:
			d.Coverage = append(d.Coverage, c)
		case d.Coverage[at].Fields.Seen < c.Fields.Seen:
			d.Coverage[at] = c
		}
	}
	slices.SortStableFunc(d.Coverage, func(a, b Coverage) int { return compareLines(a.Line, b.Line) })
}

func mergeCases(documents []Named) ([]Case, error) {
	from := map[string]string{}  // the document that a case came from
	gates := map[string]string{} // and the one that said first whether a line gates
	byName := map[string]Case{}
	var cases []Case
	for _, d := range documents {
		for _, c := range d.Cases {
			if first, ok := gates[c.Line]; !ok {
				gates[c.Line] = d.Name
			} else if gating := lineGates(cases, c.Line); gating != c.Gating {
				return nil, fmt.Errorf("line %s gates in one of %s and %s only: run both with the same --enforce", c.Line, first, d.Name)
			}
			known, twice := byName[c.Name]
			if key := differs(known, c); twice && c.Assertion != "" && key != "" {
				return nil, fmt.Errorf("case %s is another in %s than in %s: its %s differs", c.Name, d.Name, from[c.Name], key)
			}
			if !twice {
				byName[c.Name], from[c.Name] = c, d.Name
				cases = append(cases, c)
			}
		}
	}
	cases = dropPlaceholders(cases)
	slices.SortStableFunc(cases, inOrder(cases))
	return cases, nil
}

func lineGates(cases []Case, line string) bool {
	i := slices.IndexFunc(cases, func(c Case) bool { return c.Line == line })
	return i >= 0 && cases[i].Gating
}

// differs names the first key in which two cases are not the same, but for the time
// they took.
func differs(a, b Case) string {
	first, second := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range first.NumField() {
		key, _, _ := strings.Cut(first.Type().Field(i).Tag.Get("json"), ",")
		if key != "duration_ms" && !reflect.DeepEqual(first.Field(i).Interface(), second.Field(i).Interface()) {
			return key
		}
	}
	return ""
}

// dropPlaceholders leaves out that a line had nothing to assert, where another
// document has cases of it.
func dropPlaceholders(cases []Case) []Case {
	real := map[string]bool{}
	for _, c := range cases {
		if c.Assertion != "" {
			real[c.Line] = true
		}
	}
	return slices.DeleteFunc(cases, func(c Case) bool { return c.Assertion == "" && real[c.Line] })
}

// inOrder compares cases as one plan of all would list them.
func inOrder(cases []Case) func(a, b Case) int {
	groups := map[string]int{} // where a golden came first
	for i := range cases {
		c := &cases[i]
		if _, known := groups[c.Line+"/"+c.group()]; !known {
			groups[c.Line+"/"+c.group()] = i
		}
	}
	suites := append(conformance.Suites(), conformance.SuiteSelfTest)
	return func(a, b Case) int {
		return cmp.Or(
			compareLines(a.Line, b.Line),
			slices.Index(suites, a.Suite)-slices.Index(suites, b.Suite),
			groups[a.Line+"/"+a.group()]-groups[b.Line+"/"+b.group()],
			assertionOrder(a)-assertionOrder(b),
		)
	}
}

// compareLines orders the names of lines as compat.toml does: trackers first, then the newest. Names of no known form come
// last, by the alphabet.
func compareLines(a, b string) int {
	rank := func(name string) int {
		if i := slices.Index([]string{compat.Nightly, compat.RC}, name); i >= 0 {
			return i - 2
		}
		return 0
	}
	return cmp.Or(rank(a)-rank(b), compat.CompareLines(b, a), strings.Compare(a, b))
}

// assertionOrder is the place of a replayed golden's assertion. Other suites have
// no order but that of their documents.
func assertionOrder(c Case) int {
	if c.Suite != conformance.SuiteReplay {
		return 0
	}
	return slices.Index(conformance.Assertions(), c.Assertion)
}
