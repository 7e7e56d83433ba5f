package conformance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Selection narrows and shapes a plan. Its zero value asks for everything.
type Selection struct {
	Suite       Suite    // default replay
	Lines       []string // names or tags; empty means all
	Goldens     []string // ids; empty means all
	Assertions  []Assertion
	Matches     []player.Match // default index and prefix
	Concurrency []int          // default 1 and 16
	Enforce     Enforce        // default validated
	// Frontends are the real frontends of lines, by name or tag. The fidelity
	// cases of these lines are also made through them, streamed and not.
	Frontends map[string]RealFrontend
	// BySide makes a case for each side of a golden of role frames.
	BySide bool
	// Run and Skip are patterns, see [ParsePattern], of the cases that are run, empty
	// for all, and of those that are not.
	Run, Skip []string
}

// Suites are those that a plan is made of.
func Suites() []Suite {
	return []Suite{SuiteReplay, SuiteLive, SuiteFrontend, SuitePrefill, SuiteDecode, SuiteKVConsumer, SuiteRouter, SuiteGenerated}
}

// other reports whether another suite than replay is selected.
func (s Selection) other() bool { return s.Suite != "" && s.Suite != SuiteReplay }

// validate refuses what no plan can be made of.
func (s Selection) validate() error {
	if s.Suite != "" && !slices.Contains(Suites(), s.Suite) {
		return fmt.Errorf("unknown suite %q: want one of %s", s.Suite, safetext.Words(Suites()))
	}
	if s.other() && len(s.Goldens)+len(s.Matches)+len(s.Concurrency)+len(s.Frontends) > 0 {
		return fmt.Errorf("suite %s replays no goldens: select none, and no match, concurrency or frontend", s.Suite)
	}
	known := AssertionsOf(s.Suite)
	for _, a := range s.Assertions {
		if !slices.Contains(known, a) {
			return fmt.Errorf("unknown assertion %q: want one of %s", a, safetext.Words(known))
		}
	}
	for _, m := range s.Matches {
		if m != player.MatchIndex && m != player.MatchPrefix {
			return fmt.Errorf("unknown match %q: want %s or %s", m, player.MatchIndex, player.MatchPrefix)
		}
	}
	for _, n := range s.Concurrency {
		if n < 1 {
			return fmt.Errorf("concurrency %d: want at least 1", n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Frontends)) {
		if s.Frontends[name].Binary == "" {
			return fmt.Errorf("frontend of line %s has no binary", name)
		}
	}
	return nil
}

// normal fills in the defaults and leaves out what is named twice.
func (s Selection) normal() Selection {
	if s.Suite == "" {
		s.Suite = SuiteReplay
	}
	wanted := s.Assertions
	s.Assertions = AssertionsOf(s.Suite)
	if len(wanted) > 0 {
		s.Assertions = slices.DeleteFunc(s.Assertions, func(a Assertion) bool { return !slices.Contains(wanted, a) })
	}
	s.Matches = distinct(s.Matches, player.MatchIndex, player.MatchPrefix)
	s.Concurrency = distinct(s.Concurrency, 1, 16)
	if s.Enforce == "" {
		s.Enforce = EnforceValidated
	}
	return s
}

// distinct returns the values, else the defaults, each once.
func distinct[T comparable](values []T, defaults ...T) []T {
	if len(values) == 0 {
		return defaults
	}
	var once []T
	for _, v := range values {
		if !slices.Contains(once, v) {
			once = append(once, v)
		}
	}
	return once
}

func (s Selection) lines(matrix *compat.Matrix) ([]compat.Line, error) {
	if len(s.Lines) == 0 && s.Suite == SuiteRouter { // the HTTP API differs little between lines
		return slices.DeleteFunc(slices.Clone(matrix.Lines), func(l compat.Line) bool { return !l.Default }), nil
	}
	if len(s.Lines) == 0 {
		return matrix.Lines, nil
	}
	selected := map[string]bool{}
	for _, name := range s.Lines {
		line, err := findLine(matrix, name)
		if err != nil {
			return nil, err
		}
		selected[line.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(matrix.Lines), func(l compat.Line) bool { return !selected[l.Name] }), nil
}

// findLine finds a line by its name, its tag or a release of it.
func findLine(matrix *compat.Matrix, name string) (compat.Line, error) {
	lines, err := matrix.Select([]string{name})
	if err != nil {
		return compat.Line{}, err
	}
	return lines[0], nil
}

// frontends returns the real frontends by the names of their lines.
func (s Selection) frontends(matrix *compat.Matrix) (map[string]RealFrontend, error) {
	byName := map[string]RealFrontend{}
	for _, name := range slices.Sorted(maps.Keys(s.Frontends)) {
		line, err := findLine(matrix, name)
		if err != nil {
			return nil, fmt.Errorf("frontend: %w", err)
		}
		if _, twice := byName[line.Name]; twice {
			return nil, fmt.Errorf("frontend: line %s has two, one of them as %s", line.Name, name)
		}
		byName[line.Name] = s.Frontends[name]
	}
	return byName, nil
}

// Registered lists the goldens of the selected lines and ids, in the order of the matrix and
// of the manifest. A line or an id that there is not is an error.
func (s Selection) Registered(matrix *compat.Matrix, mf *manifest.Manifest) ([]manifest.Golden, error) {
	lines, err := s.lines(matrix)
	if err != nil {
		return nil, err
	}
	if err := s.checkGoldens(mf, lines); err != nil {
		return nil, err
	}
	var selected []manifest.Golden
	for _, l := range lines {
		for _, g := range mf.ForLine(l.Name) {
			if len(s.Goldens) == 0 || slices.Contains(s.Goldens, g.ID) {
				selected = append(selected, g)
			}
		}
	}
	return selected, nil
}

// checkGoldens refuses ids that no selected line has.
func (s Selection) checkGoldens(mf *manifest.Manifest, lines []compat.Line) error {
	known := map[string]bool{}
	for _, l := range lines {
		for _, g := range mf.ForLine(l.Name) {
			known[g.ID] = true
		}
	}
	ids, more := slices.Sorted(maps.Keys(known)), "see vllm-vcr golden list"
	if len(ids) < 8 {
		more = "it has " + cmp.Or(strings.Join(ids, ", "), "none")
	}
	for _, id := range s.Goldens {
		if !known[id] {
			return fmt.Errorf("%s has no golden %q on the selected lines%s", mf.File, id,
				tomlfile.DidYouMean(id, ids, more))
		}
	}
	return nil
}
