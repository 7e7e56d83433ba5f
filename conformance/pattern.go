package conformance

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Wildcards of a pattern.
const (
	anyText       = "*"  // within a component: any text, also none
	anyComponents = "**" // as a component: any number of components, also none
)

// requestPrefix begins the component that names a request of a case.
const requestPrefix = "replay-"

// Pattern selects cases by their names, component by component: "*" stands for any
// text within a component, and a component "**" for any number of components. The
// name of a case is a pattern that matches that case alone. A last component
// "replay-7" selects the request of that replay index in the fidelity cases that the
// rest matches.
type Pattern struct {
	text    string
	names   *regexp.Regexp // of the cases, each after a "/"
	request int            // -1 for whole cases
}

// ParsePattern reads a pattern. Its errors name the component that is wrong.
func ParsePattern(text string) (Pattern, error) {
	p := Pattern{text: text, request: -1}
	if text == "" {
		return p, errors.New(`a pattern is empty: "**" matches every case`)
	}
	components := strings.Split(text, "/")
	for i, c := range components {
		if wrong := wrongComponent(c); wrong != "" {
			return p, fmt.Errorf("pattern %q: component %d %s", text, i+1, wrong)
		}
	}
	last := len(components) - 1
	index, ok := strings.CutPrefix(components[last], requestPrefix)
	if !ok {
		p.names = expressionOf(components)
		return p, nil
	}
	n, err := strconv.ParseUint(index, 10, 31)
	switch {
	case err != nil || index != strconv.FormatUint(n, 10):
		return p, fmt.Errorf("pattern %q: component %d is %q: a request is %s and its index, such as %s7",
			text, last+1, components[last], requestPrefix, requestPrefix)
	case last == 0:
		return p, fmt.Errorf("pattern %q: names a request, but no case of it: **/%s is that request of every case", text, text)
	}
	p.names, p.request = expressionOf(components[:last]), int(n)
	return p, nil
}

// wrongComponent says what no component may be.
func wrongComponent(c string) string {
	switch {
	case c == "":
		return "is empty"
	case c != strings.TrimSpace(c):
		return fmt.Sprintf("is %q: it begins or ends with a blank", c)
	case c != anyComponents && strings.Contains(c, anyComponents):
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
func (p Pattern) Match(name string) bool { return p.names != nil && p.names.MatchString("/"+name) }

// expressionOf is what "/" and a name must match. A regular expression of package regexp takes linear time.
func expressionOf(components []string) *regexp.Regexp {
	text := `\A`
	for _, c := range components {
		if c == anyComponents {
			text += `(/[^/]*)*`
		} else {
			text += "/" + strings.ReplaceAll(regexp.QuoteMeta(c), `\*`, `[^/]*`)
		}
	}
	return regexp.MustCompile(text + `\z`)
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
