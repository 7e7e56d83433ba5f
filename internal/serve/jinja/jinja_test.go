package jinja

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestVectors runs the templates of testdata/vectors.json, which has what Jinja2 makes of them (testdata/vectors.py).
func TestVectors(t *testing.T) { testVectors(t, "testdata/vectors.json", true) }

// TestOtherTemplates runs what `python testdata/vectors.py FOLDER FILE` made of the templates in a folder, such as those in the
// package trl of PyPI, which has those of 40 popular models: `VLLM_VCR_TEMPLATES=FILE go test ./internal/serve/jinja`.
func TestOtherTemplates(t *testing.T) {
	path := os.Getenv("VLLM_VCR_TEMPLATES")
	if path == "" {
		t.Skip("VLLM_VCR_TEMPLATES names no file")
	}
	testVectors(t, path, false)
}

// testVectors also compares the texts of errors if they are those that templates are meant to have.
func testVectors(t *testing.T, path string, texts bool) {
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var vectors []struct {
		Name, Template string
		Vars           json.RawMessage
		Text, Error    string
	}
	require.NoError(t, json.Unmarshal(raw, &vectors))
	if len(vectors) < 10 {
		t.Fatalf("only %d vectors", len(vectors))
	}
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			template, err := Parse(v.Template)
			require.NoError(t, err)
			value, err := FromJSON(v.Vars)
			require.NoError(t, err)
			vars := map[string]any{}
			for _, k := range value.(*Dict).keys {
				vars[k.(string)], _ = value.(*Dict).Get(k)
			}
			text, err := template.Run(t.Context(), vars, now)
			if v.Error != "" {
				require.True(t, err != nil && (!texts || strings.Contains(err.Error(), v.Error)), "%v, want the error %q", err, v.Error)
				return
			}
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(v.Text, text), "text (-Jinja2 +here)")
		})
	}
}

func TestRefused(t *testing.T) {
	for _, test := range []struct{ name, template, want string }{
		{"a block", "a\n{% include 'x' %}", "line 2: {% include %} is not supported"},
		{"a filter", "{{ x | xmlattr }}", "the filter xmlattr is not supported"},
		{"a test", "{{ x is escaped }}", "the test escaped is not supported"},
		{"no end", "{% if x %}a", "{% endif %} is missing"},
		{"a stray end", "a{% endif %}", "{% endif %} ends nothing"},
		{"no closing", "{{ x", "a tag has no }}"},
		{"no comment end", "{# x", "a comment has no end"},
		{"deep", "{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}", "deep"},
		{"an operator", "{{ a ! b }}", "unexpected '!'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Parse(test.template); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	for _, test := range []struct{ name, template, want string }{
		{"a call of nothing", "{{ nothing() }}", "'nothing' is not a function"},
		{"division", "{{ 1 / 0 }}", "division by zero"},
		{"a break out of a macro", "{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{{ m() }}{% endfor %}", "break outside of a loop"},
	} {
		t.Run(test.name, func(t *testing.T) {
			template, err := Parse(test.template)
			require.NoError(t, err)
			if _, err := template.Run(t.Context(), nil, time.Time{}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
