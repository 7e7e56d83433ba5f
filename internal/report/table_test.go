package report

import (
	"testing"

	"github.com/vllm-vcr/conformance/conformance"
)

// TestCells: of several verdicts, the one that a reader must see stands for all.
func TestCells(t *testing.T) {
	const (
		pass, fail, failed, skip = conformance.Pass, conformance.Fail, conformance.Error, conformance.Skip
		xfail, xpass, now        = conformance.XFail, conformance.XPass, conformance.Flaky
	)
	tests := []struct {
		counts         Counts
		text, markdown string
	}{
		{nil, "-", ""},
		{Counts{pass: 1}, "pass", "✅ 1"},
		{Counts{pass: 4}, "pass 4/4", "✅ 4"},
		{Counts{pass: 3, skip: 1}, "pass 3/4", "✅ 3/4"},
		{Counts{skip: 2}, "skip 2/2", "➖ 2"},
		{Counts{pass: 3, fail: 1}, "1 of 4 failed", "❌ 1/4"},
		{Counts{failed: 2, fail: 1, pass: 1}, "1 of 4 failed, 2 errors", "❌ 1/4"},
		{Counts{failed: 1, xpass: 1, pass: 1}, "1 error of 3, 1 passed unexpectedly", "❌ 1/3"},
		{Counts{xpass: 1, xfail: 1}, "1 of 2 passed unexpectedly", "❌ 1/2"},
		{Counts{xfail: 1, now: 1}, "xfail 1/2", "⚠️ 1/2"},
		{Counts{now: 1, pass: 1}, "flaky 1/2", "⚠️ 1/2"},
	}
	for _, test := range tests {
		if text := cellOf(test.counts); text != test.text {
			t.Errorf("%v is %q, want %q", test.counts, text, test.text)
		}
		if markdown := markdownCounts(test.counts); markdown != test.markdown {
			t.Errorf("%v is %q, want %q", test.counts, markdown, test.markdown)
		}
	}
}
