package report

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// outcome is a case for comparisons; it fails with the codes, if there are any.
func outcomeOf(name string, v conformance.Verdict, codes ...conformance.Code) conformance.Result {
	r := passed(goldenCase(newest, name, conformance.Integrity), 0)
	r.Verdict = v
	if v == conformance.Skip {
		r.Asserted = 0
	}
	for _, c := range codes {
		r.Failures = append(r.Failures, conformance.Failure{Code: c, Message: "it differs"})
	}
	return r
}

func documentOf(results ...conformance.Result) *Document {
	return New(conformance.NewReport(results, 0), someRun())
}

func TestCompare(t *testing.T) {
	const (
		pass, fail, skip, xfail = conformance.Pass, conformance.Fail, conformance.Skip, conformance.XFail
		i, f                    = replay.CodeDigest, replay.CodeToken
	)
	repinned := outcomeOf("repinned", pass)
	repinned.Case.Golden.TokensSHA256 = "77"
	before := documentOf(
		outcomeOf("breaks", pass), outcomeOf("mended", fail, f), outcomeOf("still", fail, f, i), outcomeOf("otherwise", fail, f),
		outcomeOf("gone", fail, f), outcomeOf("gone unseen", skip), outcomeOf("skipped", pass), outcomeOf("same", pass),
		outcomeOf("repinned", pass), outcomeOf("known", fail, f),
	)
	after := documentOf(
		outcomeOf("breaks", fail, f), outcomeOf("mended", pass), outcomeOf("still", fail, i, f), outcomeOf("otherwise", fail, i),
		outcomeOf("skipped", skip), outcomeOf("same", pass), repinned, outcomeOf("new", pass), outcomeOf("new red", fail, i),
		outcomeOf("known", xfail, f),
	)
	got := Compare(before, after)
	at := func(name, old, new string) Change { return Change{"0.33/" + name + "/integrity", true, old, new} }
	want := &Difference{
		Failing: []Change{at("breaks", "pass", "fail F001"), at("new red", "not there", "fail I001")},
		Gone:    []Change{at("skipped", "pass", "skip"), at("gone", "fail F001", "not there")},
		Other:   []Change{at("otherwise", "fail F001", "fail I001")},
		Fixed:   []Change{at("mended", "fail F001", "pass"), at("known", "fail F001", "xfail")},
		Added:   []Change{at("new", "not there", "pass")},
		Digests: []Change{{"0.33/repinned", true, "tokens 2b2b2b2b2b2b", "tokens 77"}},
		still:   1,
	}
	require.NoDiff(t, cmp.Diff(want, got, cmp.AllowUnexported(Difference{})), "-want +got")
	require.True(t, got.Worse(), "not worse")
	var text, markdown bytes.Buffer
	require.NoError(t, got.Text(&text))
	require.NoError(t, got.Markdown(&markdown, MarkdownLimit))
	golden(t, "compare.txt.golden", text.Bytes())
	golden(t, "compare.md.golden", markdown.Bytes())
}

func TestCompareWorse(t *testing.T) {
	pass, fail := outcomeOf("a", conformance.Pass), outcomeOf("a", conformance.Fail, replay.CodeDigest)
	skip, none := outcomeOf("a", conformance.Skip), outcomeOf("b", conformance.Pass)
	tests := []struct {
		name          string
		before, after conformance.Result
		worse         bool
		verdict       string
	}{
		{"same", pass, pass, false, "SAME: no case has another outcome"},
		{"newly failing", pass, fail, true, "WORSE: 1 newly failing"},
		{"still failing", fail, fail, false, "NOT WORSE: 1 still failing"},
		{"fixed", fail, pass, false, "NOT WORSE: 1 fixed"},
		{"gone", pass, none, true, "WORSE: 1 no longer asserted, 1 new"},
		{"no longer asserted", pass, skip, true, "WORSE: 1 no longer asserted"},
		{"a skip is gone", skip, none, false, "NOT WORSE: 1 new"},
		{"asserted now", skip, pass, false, "SAME: no case has another outcome"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := Compare(documentOf(test.before), documentOf(test.after))
			if d.Worse() != test.worse || d.Verdict() != test.verdict {
				t.Errorf("worse %v, %q, want %v, %q", d.Worse(), d.Verdict(), test.worse, test.verdict)
			}
		})
	}
}
