package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Wildcards of a pattern.
const (
	anyText       = "*"  // within a component: any text, also none
	AnyComponents = "**" // as a component: any number of components, also none
)

// requestPrefix begins the component that names a request of a case.
const requestPrefix = "replay-"

// Pattern selects cases by their names, component by component: "*" stands for any
// text within a component, and a component "**" for any number of components. The
// name of a case is a pattern that matches that case alone. A last component
// "replay-7" selects the request of that replay index in the fidelity cases that the
// rest matches.
type Pattern struct {
	text       string
	Components []string // of the cases
	request    int      // -1 for whole cases
}

// ParsePattern reads a pattern. Its errors name the component that is wrong.
func ParsePattern(text string) (Pattern, error) {
	p := Pattern{text: text, request: -1}
	if text == "" {
		return p, errors.New(`a pattern is empty: "**" matches every case`)
	}
	p.Components = strings.Split(text, "/")
	for i, c := range p.Components {
		if wrong := wrongComponent(c); wrong != "" {
			return p, fmt.Errorf("pattern %q: component %d %s", text, i+1, wrong)
		}
	}
	last := len(p.Components) - 1
	index, ok := strings.CutPrefix(p.Components[last], requestPrefix)
	if !ok {
		return p, nil
	}
	n, err := strconv.ParseUint(index, 10, 31)
	switch {
	case err != nil || index != strconv.FormatUint(n, 10):
		return p, fmt.Errorf("pattern %q: component %d is %q: a request is %s and its index, such as %s7",
			text, last+1, p.Components[last], requestPrefix, requestPrefix)
	case last == 0:
		return p, fmt.Errorf("pattern %q: names a request, but no case of it: **/%s is that request of every case", text, text)
	}
	p.Components, p.request = p.Components[:last], int(n)
	return p, nil
}

// wrongComponent says what no component may be.
func wrongComponent(c string) string {
	switch {
	case c == "":
		return "is empty"
	case c != strings.TrimSpace(c):
		return fmt.Sprintf("is %q: it begins or ends with a blank", c)
	case c != AnyComponents && strings.Contains(c, AnyComponents):
		return fmt.Sprintf("is %q: ** is a component of its own", c)
	}
	return ""
}

// String is the pattern as it was written.
func (p Pattern) String() string { return p.text }

// Request is the replay index that the pattern is about, -1 when it is about
// whole cases.
func (p Pattern) Request() int { return p.request }

// Match reports whether the pattern selects the case of that name or, when it is
// about a request, one of its requests.
func (p Pattern) Match(name string) bool {
	return matchStars(p.Components, strings.Split(name, "/"),
		func(component string) bool { return component == AnyComponents }, matchText)
}

// matchText matches a component. Any byte but the star stands for itself.
func matchText(pattern, text string) bool {
	return matchStars([]byte(pattern), []byte(text),
		func(b byte) bool { return b == anyText[0] }, func(a, b byte) bool { return a == b })
}

// matchStars matches elements with a pattern in which a star stands for any number
// of them. Giving the last star one element more is the only step back that is ever
// needed, so the work is bounded by the product of the lengths.
func matchStars[E any](pattern, elements []E, isStar func(E) bool, one func(pattern, element E) bool) bool {
	p, star, resume := 0, -1, 0
	for e := 0; e < len(elements); {
		switch {
		case p < len(pattern) && isStar(pattern[p]):
			star, resume = p, e
			p++
		case p < len(pattern) && one(pattern[p], elements[e]):
			p++
			e++
		case star >= 0:
			resume++
			p, e = star+1, resume
		default:
			return false
		}
	}
	return !slices.ContainsFunc(pattern[p:], func(e E) bool { return !isStar(e) })
}

// MatchAny reports whether any of the patterns selects the case.
func MatchAny(patterns []Pattern, c check.Case) bool {
	return slices.ContainsFunc(patterns, func(p Pattern) bool { return p.Match(c.Name()) })
}

// NearestCase suggests the name of the case that a pattern without wildcards may
// have meant.
func NearestCase(text string, all []check.Case) string {
	if strings.Contains(text, anyText) {
		return ""
	}
	var names []string
	for _, c := range all {
		name := c.Name()
		if strings.HasPrefix(name, text+"/") {
			return fmt.Sprintf(": did you mean %q?", text+"/**")
		}
		if name != text {
			names = append(names, name)
		}
	}
	if near, ok := tomlfile.Nearest(text, names); ok {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ""
}
