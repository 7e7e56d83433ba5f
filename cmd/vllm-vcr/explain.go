package main

import (
	"fmt"
	"slices"
	"strings"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// finding is the page on a code: a section of docs/findings.md.
type finding struct {
	code, title string
	text        string // what is below the heading
}

// findings reads the pages, in their order.
func findings() []finding {
	var all []finding
	for _, section := range strings.Split(string(embedded(vcr.FindingsPath)), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		code, title, _ := strings.Cut(heading, " ")
		all = append(all, finding{code, title, strings.TrimSpace(text)})
	}
	return all
}

// findingTitles are the titles of the pages, by code.
func findingTitles() map[conformance.Code]string {
	titles := map[conformance.Code]string{}
	for _, f := range findings() {
		titles[conformance.Code(f.code)] = f.title
	}
	return titles
}

// runExplain prints the page on a code, in whatever case it is given.
func runExplain(env *environment, code string) error {
	all := findings()
	at := slices.IndexFunc(all, func(f finding) bool { return strings.EqualFold(f.code, code) })
	if at < 0 {
		return fmt.Errorf("--explain %q: no finding has that code%s", code, nearCodes(code, all))
	}
	_, err := fmt.Fprintf(env.stdout, "%s %s\n\n%s\n", all[at].code, all[at].title, all[at].text)
	return err
}

// nearCodes suggests the code that was meant among those of the same letter, or names
// the letters that there are.
func nearCodes(code string, all []finding) string {
	var family, letters []string
	for _, f := range all {
		if !slices.Contains(letters, f.code[:1]) {
			letters = append(letters, f.code[:1])
		}
		if code != "" && strings.EqualFold(f.code[:1], code[:1]) {
			family = append(family, f.code)
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
