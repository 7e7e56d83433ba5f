package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/conformance"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// TestEveryCodeHasAPage: the codes of the code and the pages on findings are the same.
func TestEveryCodeHasAPage(t *testing.T) {
	codes := readSource(t).codes
	if len(codes) < 40 || !slices.Contains(codes, string(check.CodeToken)) || !slices.Contains(codes, "T001") {
		t.Fatalf("the source has the codes %q: some were not found", codes)
	}
	for _, rule := range slices.Concat(compat.Rules(), manifest.Rules(), target.Rules()) {
		codes = append(codes, rule.Code)
	}
	for _, rule := range conformance.ExpectationRules() {
		if !slices.Contains(codes, rule.Code) {
			t.Errorf("rule %s is no code of the source", rule.Code)
		}
	}
	var pages []string
	for _, f := range findings() {
		if slices.Contains(pages, f.code) {
			t.Errorf("%s has two pages", f.code)
		}
		pages = append(pages, f.code)
		if !slices.Contains(codes, f.code) {
			t.Errorf("the page on %s is about no code", f.code)
		}
	}
	slices.Sort(codes)
	for i, code := range codes {
		if i > 0 && codes[i-1] == code {
			t.Errorf("%s stands for two findings", code)
		}
		if !slices.Contains(pages, code) {
			t.Errorf("%s has no page in docs/findings.md", code)
		}
	}
}

// paragraph is one of a page, after its label. It ends with a full stop.
const paragraph = `\S(?:[^\n]|\n[^\n])*\.\n\n`

// pageForm is what a page consists of.
var pageForm = regexp.MustCompile(`^\*\*Means:\*\* ` + paragraph + `\*\*Usual cause:\*\* ` + paragraph + `\*\*Look at:\*\* ` + paragraph +
	`\*\*Example:\*\*\n\n((?:    \S.*\n)+)\n\*\*Reproduce:\*\*\n\n    vllm-vcr \S.*$`)

func TestPages(t *testing.T) {
	known := findingsInTestdata(t)
	for _, f := range findings() {
		if f.title == "" || len(f.title) > 72 || strings.HasSuffix(f.title, ".") {
			t.Errorf("%s: title %q, want one of at most 72 letters, without a full stop", f.code, f.title)
		}
		example := pageForm.FindStringSubmatch(f.text)
		if example == nil {
			t.Errorf("%s: the page is not of the form %s:\n%s", f.code, pageForm, f.text)
			continue
		}
		// What a rule of a file says is there to be compared with.
		if text := strings.TrimSpace(example[1]); strings.Contains(text, " "+f.code+" ") && !strings.Contains(text, "cannot be read") && !known[text] {
			t.Errorf("%s: no test of its rule has the finding %q", f.code, text)
		}
	}
}

// findingsInTestdata are the findings that the tests of the files' rules expect.
func findingsInTestdata(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for _, dir := range []string{"compat", "manifest", "conformance", "internal/capture/target"} {
		files, err := filepath.Glob("../../" + dir + "/testdata/*.diagnostics")
		if err != nil || len(files) < 4 {
			t.Fatalf("%d files of diagnostics in %s: %v", len(files), dir, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			for line := range strings.Lines(string(data)) {
				known[strings.TrimSpace(line)] = true
			}
		}
	}
	return known
}

// TestTitles: the titles of the pages are those of the checks, and reports link to them.
func TestTitles(t *testing.T) {
	pages := findingTitles()
	for code, title := range conformance.Titles() {
		if pages[code] != title {
			t.Errorf("the page on %s has the title %q, its check %q", code, pages[code], title)
		}
	}
	for code := range pages {
		if _, known := conformance.Titles()[code]; !known && strings.ContainsAny(string(code[:1]), "ILPSFWEHR") {
			t.Errorf("%s is a code of no check", code)
		}
	}
	if got := findingTitles()[check.CodeToken]; got != "a token id differs" {
		t.Errorf("the title of F001 is %q", got)
	}
}
