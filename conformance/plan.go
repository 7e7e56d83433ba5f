package conformance

import (
	"fmt"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/check/kvconsumer"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/check/pd"
	"github.com/vllm-vcr/conformance/internal/check/router"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// NewPlan lists every case of the selected lines and goldens, in the order of
// the matrix, of the manifest, and of the assertions. Every case is listed once.
// A selection that names something that does not exist is an error: a filter
// that matches nothing must not look like success.
func NewPlan(matrix *compat.Matrix, mf *manifest.Manifest, sel Selection) ([]Case, error) {
	if err := sel.validate(); err != nil {
		return nil, err
	}
	sel = sel.normal()
	lines, err := sel.lines(matrix)
	if err != nil {
		return nil, err
	}
	if sel.Frontends, err = sel.frontends(matrix); err != nil {
		return nil, err
	}
	cases := sel.cases(lines, mf)
	if err := sel.checkGoldens(mf, lines); err != nil {
		return nil, err
	}
	if err := sel.checkFrontends(cases); err != nil {
		return nil, err
	}
	return sel.filter(cases, func() []Case { return sel.every(matrix, mf) })
}

// EveryCase lists the cases that any selection may select on these files: those of
// every suite, line, golden and usual variant, also through real frontends that are
// not at hand, and those of the variants that sel asks for. An expectation that
// matches none of them is out of date, however narrow the run.
func EveryCase(matrix *compat.Matrix, mf *manifest.Manifest, sel Selection) ([]Case, error) {
	if err := sel.validate(); err != nil {
		return nil, err
	}
	var err error
	if sel.Frontends, err = sel.frontends(matrix); err != nil {
		return nil, err
	}
	return sel.every(matrix, mf), nil
}

func (s Selection) every(matrix *compat.Matrix, mf *manifest.Manifest) []Case {
	usual := Selection{Enforce: s.Enforce, Frontends: map[string]RealFrontend{}}
	for _, l := range matrix.Lines {
		usual.Frontends[l.Name] = RealFrontend{Binary: "vllm-rs"} // only its presence makes cases
	}
	asked := Selection{Enforce: s.Enforce, BySide: s.BySide, Frontends: s.Frontends, Matches: s.Matches, Concurrency: s.Concurrency}
	var all []Case
	known := map[string]bool{}
	for _, suite := range Suites() {
		usual.Suite, asked.Suite = suite, suite
		for _, c := range slices.Concat(usual.normal().cases(matrix.Lines, mf), asked.normal().cases(matrix.Lines, mf)) {
			if name := c.Name(); !known[name] {
				known[name] = true
				all = append(all, c)
			}
		}
	}
	return all
}

// cases lists what the suite asks of the lines.
func (s Selection) cases(lines []compat.Line, mf *manifest.Manifest) []Case {
	var cases []Case
	for _, line := range lines {
		gating := s.Enforce.Gates(line.FidelityValidated)
		switch s.Suite {
		case SuiteLive:
			cases = append(cases, s.asserted(live.Cases(line, mf, gating))...)
		case SuiteFrontend:
			cases = append(cases, frontendsuite.Cases(line, mf, s.Assertions, gating)...)
		case SuitePrefill, SuiteDecode:
			cases = append(cases, s.asserted(pd.Cases(s.Suite, line, gating))...)
		case SuiteKVConsumer:
			cases = append(cases, s.asserted(kvconsumer.Cases(line, gating))...)
		case SuiteRouter:
			cases = append(cases, s.asserted(router.Cases(line, gating))...)
		case SuiteGenerated:
			if slices.Contains(s.Assertions, live.Sessions) { // of an engine, unless only those of a frontend are selected
				cases = append(cases, live.GeneratedCases(line, mf, gating)...)
			} else {
				cases = append(cases, frontendsuite.GeneratedCases(line, mf, gating)...)
			}
		default:
			cases = append(cases, s.lineCases(line, mf, gating)...)
		}
	}
	return cases
}

// asserted keeps the cases of the selected assertions.
func (s Selection) asserted(cases []Case) []Case {
	return slices.DeleteFunc(cases, func(c Case) bool { return !slices.Contains(s.Assertions, c.Assertion) })
}

func (s Selection) lineCases(line compat.Line, mf *manifest.Manifest, gating bool) []Case {
	goldens := mf.ForLine(line.Name)
	var cases []Case
	for _, g := range goldens {
		if len(s.Goldens) > 0 && !slices.Contains(s.Goldens, g.ID) {
			continue
		}
		entry := fmt.Sprintf("%s:%d", mf.File, g.Pos)
		for _, a := range s.Assertions {
			cases = append(cases, s.goldenCases(Case{Line: line, Suite: SuiteReplay, Golden: g, Entry: entry, Assertion: a, Gating: gating})...)
		}
	}
	if len(cases) == 0 && len(s.Goldens) == 0 {
		cases = append(cases, Case{Line: line, Suite: SuiteReplay, Gating: gating, Skip: nothingToAssert(len(goldens), gating)})
	}
	return cases
}

// nothingToAssert says why a line has no case.
func nothingToAssert(goldens int, gating bool) string {
	switch {
	case goldens > 0:
		return "no golden has the role that the selected assertions need"
	case gating:
		return "no goldens, but the line gates: register one"
	}
	return "no goldens: informational, not validated"
}

// goldenCases expands a fidelity case into its variants, and leaves out the
// assertions that the golden's role has nothing for. One of role wire or frames is raw
// frames, which show the registration and the streams among all else.
func (s Selection) goldenCases(c Case) []Case {
	switch {
	case c.Golden.Role.Raw() && c.Assertion == Schema, c.Golden.Role != manifest.Wire && c.Assertion == Wire, c.Golden.Role != manifest.Frames && c.Golden.Role != manifest.NIXL && c.Assertion == Frames,
		c.Golden.Role != manifest.NIXL && c.Assertion == check.NIXL:
		return nil
	case c.Assertion == Frames && s.BySide:
		engine, frontend := c, c
		engine.Variant.Side, frontend.Variant.Side = check.SideEngine, check.SideFrontend
		return []Case{engine, frontend}
	case c.Assertion != Fidelity:
		return []Case{c}
	case c.Golden.Role != manifest.Fidelity:
		return nil
	}
	var cases []Case
	for _, v := range s.variants(c.Line) {
		c.Variant = v
		cases = append(cases, c)
	}
	return cases
}

func (s Selection) variants(line compat.Line) []Variant {
	var variants []Variant
	for _, match := range s.Matches {
		for _, n := range s.Concurrency {
			variants = append(variants, Variant{Match: match, Concurrency: n})
		}
	}
	if real, ok := s.Frontends[line.Name]; ok {
		v := Variant{Match: player.MatchIndex, Concurrency: slices.Max(s.Concurrency), Frontend: real}
		streamed := v
		streamed.Stream = true
		variants = append(variants, v, streamed)
	}
	return variants
}

// filter keeps the cases that a pattern of Run matches, or all without one, and
// leaves out those that one of Skip matches. A pattern that matches none of every
// case there is, is an error, and so is a filter that leaves nothing.
func (s Selection) filter(cases []Case, every func() []Case) ([]Case, error) {
	if len(s.Run)+len(s.Skip) == 0 {
		return cases, nil
	}
	all := every()
	run, err := casePatterns("run", s.Run, all)
	if err != nil {
		return nil, err
	}
	skip, err := casePatterns("skip", s.Skip, all)
	if err != nil {
		return nil, err
	}
	left := slices.DeleteFunc(slices.Clone(cases), func(c Case) bool {
		return len(run) > 0 && !MatchAny(run, c) || MatchAny(skip, c)
	})
	if len(left) == 0 {
		return nil, fmt.Errorf("no case is left to run: of the %d selected cases, run %q and skip %q leave none", len(cases), s.Run, s.Skip)
	}
	return left, nil
}

// casePatterns reads patterns that are about whole cases and match at least one.
func casePatterns(what string, texts []string, all []Case) ([]Pattern, error) {
	var patterns []Pattern
	for _, text := range texts {
		p, err := ParsePattern(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", what, err)
		case p.Request() >= 0:
			return nil, fmt.Errorf("%s: pattern %q names a request: a case runs as a whole", what, text)
		case !slices.ContainsFunc(all, func(c Case) bool { return p.Match(c.Name()) }):
			return nil, fmt.Errorf("%s: pattern %q matches no case%s", what, text, NearestCase(text, all))
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

// CheckInputs checks the compat matrix and the manifest against each other and
// against what this build knows: wire profiles and the config hash.
func CheckInputs(matrix *compat.Matrix, mf *manifest.Manifest) []tomlfile.Diagnostic {
	findings := compat.Policy{}.Check(matrix, matrixFacts(mf))
	findings = append(findings, manifest.Policy{}.Check(mf, manifestFacts(matrix))...)
	tomlfile.Sort(findings)
	return findings
}

func matrixFacts(mf *manifest.Manifest) compat.Facts {
	facts := compat.Facts{
		Goldens:    map[string][]compat.Capture{},
		HasProfile: func(l compat.Line) bool { return protocol.HasProfile(check.ProfileName(l)) },
	}
	for _, g := range mf.Goldens {
		facts.Goldens[g.Line] = append(facts.Goldens[g.Line], compat.Capture{
			ID: g.ID, VLLMVersion: g.VLLMVersion, Fidelity: g.Role == manifest.Fidelity,
		})
	}
	return facts
}

func manifestFacts(matrix *compat.Matrix) manifest.Facts {
	facts := manifest.Facts{Lines: map[string]manifest.Line{}, ConfigHash: trace.ConfigHash}
	for _, l := range matrix.Lines {
		facts.Lines[l.Name] = manifest.Line{Tag: l.Tag, Validated: l.FidelityValidated}
	}
	return facts
}

// checkFrontends refuses real frontends that no case would go through.
func (s Selection) checkFrontends(cases []Case) error {
	for _, name := range slices.Sorted(maps.Keys(s.Frontends)) {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.Line.Name == name && c.Variant.ThroughFrontend() }) {
			return fmt.Errorf("frontend of line %s: no case would go through it: select the line, a fidelity golden of it and fidelity", name)
		}
	}
	return nil
}
