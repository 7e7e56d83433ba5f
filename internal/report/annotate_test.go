package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func annotations(t *testing.T, d *Document, limit int) []string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Annotate(&b, d, limit))
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func TestAnnotationLimit(t *testing.T) {
	var results []conformance.Result
	for i := range 30 {
		line := newest
		if i%2 == 1 {
			line = oldest
		}
		c := goldenCase(line, fmt.Sprintf("golden-%d", i), conformance.Schema)
		r := with(passed(c, 0), conformance.Fail, check.CodeReadyMissing, "x is missing")
		r.Failures[0].Path = check.ReadyPath(fmt.Sprintf("key_%d", i))
		results = append(results, r)
	}
	d := New(conformance.NewReport(results, 0), someRun())
	for _, test := range []struct{ limit, errors, warnings, more int }{{10, 10, 10, 6}, {1, 1, 1, 15}, {15, 15, 15, 0}, {0, 0, 0, 0}} {
		all := strings.Join(annotations(t, d, test.limit), "\n")
		if n := strings.Count(all, "::error "); n != test.errors {
			t.Errorf("limit %d: %d errors", test.limit, n)
		}
		require.Equal(t, strings.Count(all, "::warning "), test.warnings, "limit %d: warnings", test.limit)
		want := 2
		if test.more == 0 {
			want = 0
		}
		require.Equal(t, strings.Count(all, fmt.Sprintf("::+%d more in the report", test.more)), want, "limit %d: times +%d more:\n%s", test.limit, test.more, all)
	}
}

// TestAnnotationsOnce: one for a cause, of whatever variants.
func TestAnnotationsOnce(t *testing.T) {
	var results []conformance.Result
	for _, n := range []int{1, 4, 16} {
		c := goldenCase(newest, "a", conformance.Fidelity)
		c.Variant.Concurrency = n
		results = append(results, with(passed(c, 1), conformance.Fail, replay.CodeToken, "request 0: 100% of it, differs"))
	}
	got := annotations(t, New(conformance.NewReport(results, 0), someRun()), AnnotationLimit)
	want := "::error file=conformance/manifest.toml,line=14,title=0.33/a/fidelity%3A wrong answer::F001 request 0: 100%25 of it, differs (and 2 cases more)"
	require.True(t, len(got) == 1 && got[0] == want, "got  %q\nwant %q", got, want)
}

func TestBadges(t *testing.T) {
	counts := func(v conformance.Verdict, n int) Counts { return Counts{conformance.Pass: 1, v: n} }
	tests := []struct {
		name string
		line Line
		want Badge
	}{
		{"conforms", Line{Gating: true, Asserted: 1, Counts: Counts{conformance.Pass: 3}}, Badge{1, "vLLM 0.33", "conforms", "brightgreen", false}},
		{"fails", Line{Gating: true, Asserted: 1, Counts: counts(conformance.Fail, 3)}, Badge{1, "vLLM 0.33", "3 failed", "red", true}},
		{"passes unexpectedly", Line{Gating: true, Asserted: 1, Counts: counts(conformance.XPass, 1)}, Badge{1, "vLLM 0.33", "1 failed", "red", true}},
		{"errors", Line{Gating: true, Asserted: 1, Counts: counts(conformance.Error, 2)}, Badge{1, "vLLM 0.33", "not judged: 2 errors", "orange", true}},
		{"nothing asserted", Line{Gating: true, Counts: Counts{conformance.Skip: 1}}, Badge{1, "vLLM 0.33", "nothing asserted", "lightgrey", true}},
		{"known", Line{Gating: true, Asserted: 1, Counts: counts(conformance.XFail, 2)}, Badge{1, "vLLM 0.33", "conforms, 2 known", "yellowgreen", false}},
		{"not gating", Line{Asserted: 1, Counts: Counts{conformance.Pass: 3}}, Badge{1, "vLLM 0.33", "conforms, not gating", "brightgreen", false}},
		{"fails, not gating", Line{Asserted: 1, Counts: counts(conformance.Fail, 3)}, Badge{1, "vLLM 0.33", "3 failed, not gating", "yellow", false}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.line.Line = "0.33"
			if got := BadgeOf(test.line); got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}
