package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestEveryCodeIsExplained: the codes of the source are those that have an explanation, each once.
func TestEveryCodeIsExplained(t *testing.T) {
	codes := readSource(t).codes
	if len(codes) < 40 || !slices.Contains(codes, string(check.CodeStray)) || !slices.Contains(codes, "T001") || !slices.Contains(codes, "M020") {
		t.Fatalf("the source has the codes %q: some were not found", codes)
	}
	var explained []string
	for _, e := range explanations() {
		explained = append(explained, string(e.Code))
	}
	slices.Sort(codes)
	slices.Sort(explained)
	require.True(t, slices.Equal(codes, explained), "the source has the codes\n%q\nexplained are\n%q", codes, explained)
}

// explanationForm: what a failure does to users, what the code means, what to do, and for codes that are not of a configuration file an example.
var explanationForm = regexp.MustCompile(`^(?:\*Consequence: [^\n]+\*\n\n)?\S(?:[^\n]|\n[^\n])*\.\n\n\*\*Do:\*\* \S(?:[^\n]|\n[^\n])*\.(\n\n(?:    \S.*\n?)+)?$`)

func TestExplanations(t *testing.T) {
	for _, e := range explanations() {
		require.True(t, e.Title != "" && len(e.Title) <= 72 && !strings.HasSuffix(e.Title, "."), "%s: title %q, want one of at most 72 letters, without a full stop", e.Code, e.Title)
		form := explanationForm.FindStringSubmatch(e.Text)
		if form == nil {
			t.Errorf("%s: the explanation is not of the form %s:\n%s", e.Code, explanationForm, e.Text)
			continue
		}
		ofFile := strings.ContainsAny(string(e.Code[:1]), "CMK") || strings.HasPrefix(string(e.Code), "X1")
		if ofFile == (form[1] != "") {
			t.Errorf("%s: example %q: what a check reports has one, what is wrong in a file has not", e.Code, form[1])
		}
	}
}

// TestFindingsPage: docs/findings.md is what go generate makes of the explanations.
func TestFindingsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/findings.md")
	require.NoError(t, err)
	require.Equal(t, string(page), findingsPage(), "docs/findings.md is out of date: go generate ./cmd/vllm-vcr")
}
