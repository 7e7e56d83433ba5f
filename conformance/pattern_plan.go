package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

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
		return len(run) > 0 && !matchAny(run, c) || matchAny(skip, c)
	})
	if len(left) == 0 {
		return nil, fmt.Errorf("nothing is left to run: of the %d selected cases, run %q and skip %q leave none", len(cases), s.Run, s.Skip)
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
			return nil, fmt.Errorf("%s: pattern %q matches no case%s", what, text, nearestCase(text, all))
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

// nearestCase suggests the name of the case that a pattern without wildcards may
// have meant.
func nearestCase(text string, all []Case) string {
	if strings.Contains(text, anyText) {
		return ""
	}
	var names []string
	for _, c := range all {
		if name := c.Name(); name != text {
			names = append(names, name)
		}
	}
	if near, ok := tomlfile.Nearest(text, names); ok {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ""
}
