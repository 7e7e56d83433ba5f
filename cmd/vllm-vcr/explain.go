package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/conformance/selftest"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
)

// rulePages explain the codes of the configuration files.
var rulePages = []string{"compat/rules.md", "manifest/rules.md", "internal/capture/target/rules.md"}

// explanations are those of all codes that the program reports.
var explanations = sync.OnceValue(func() []conformance.Explanation {
	pages := []string{selftest.Codes}
	for _, path := range rulePages {
		pages = append(pages, string(embedded(path)))
	}
	return append(conformance.Explanations(), check.Explain(pages...)...)
})

// explanationOf is the explanation of a code, in whatever case it is given.
func explanationOf(code string) (conformance.Explanation, bool) {
	all := explanations()
	at := slices.IndexFunc(all, func(e conformance.Explanation) bool { return strings.EqualFold(string(e.Code), code) })
	if at < 0 {
		return conformance.Explanation{}, false
	}
	return all[at], true
}

// titleOf is the title of a code in reports.
func titleOf(code conformance.Code) string {
	e, _ := explanationOf(string(code))
	return e.Title
}

// runExplain prints the explanation of a code.
func runExplain(env *environment, code string) error {
	e, known := explanationOf(code)
	if !known {
		return fmt.Errorf("--explain %q: no failure has that code%s", code, nearCodes(code))
	}
	_, err := fmt.Fprintf(env.stdout, "%s %s\n\n%s\n", e.Code, e.Title, e.Text)
	return err
}

// nearCodes suggests the code that was meant among those of the same letter, or lists the letters.
func nearCodes(code string) string {
	var family, letters []string
	for _, e := range explanations() {
		known := string(e.Code)
		if !slices.Contains(letters, known[:1]) {
			letters = append(letters, known[:1])
		}
		if code != "" && strings.EqualFold(known[:1], code[:1]) {
			family = append(family, known)
		}
	}
	if len(family) == 0 {
		return ": codes begin with one of " + strings.Join(letters, ", ")
	}
	if near, ok := tomlfile.Nearest(code, family); ok {
		return fmt.Sprintf(": did you mean %s? There are %s", near, strings.Join(family, ", "))
	}
	return ": there are " + strings.Join(family, ", ")
}

//go:embed findings.md
var findingsHead string

// findingsPage is docs/findings.md.
func findingsPage() string {
	var b strings.Builder
	b.WriteString("<!-- Written by go generate ./cmd/vllm-vcr from the explanations next to each check: change those, not this file. -->\n\n")
	b.WriteString(findingsHead)
	for _, e := range explanations() {
		fmt.Fprintf(&b, "\n## %s %s\n\n%s\n", e.Code, e.Title, e.Text)
	}
	return b.String()
}
