package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Each path that is handed on is that of a file that was written.
func TestReportOutputs(t *testing.T) {
	dir := t.TempDir()
	d := &report.Document{
		Verdict: conformance.Fail, ExitCode: 1, Reason: "a gate\nis broken", Tokens: 7,
		Counts: report.Counts{conformance.Pass: 5, conformance.Fail: 2, conformance.XPass: 1, conformance.XFail: 3, conformance.Flaky: 4},
		Lines:  []report.Line{{Line: "0.33", Tag: "v0.33.0", Gating: true, Verdict: conformance.Fail}},
	}
	flags := reportFlagsOf(t, "--report-dir", filepath.Join(dir, "r"), "--report-format", "junit,badges,json", "--github-output")
	path := filepath.Join(dir, "output")
	app := outputsTo(path)
	require.NoError(t, writeReports(app, d, flags))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	got := strings.ReplaceAll(strings.ReplaceAll(string(text), outputFence, "|"), "\r\n", "\n")
	for _, want := range []string{
		"verdict<<|\nfail\n|", "exit-code<<|\n1\n|", "passed<<|\n5\n|", "failed<<|\n3\n|", "expected<<|\n7\n|", "errors<<|\n0\n|", "tokens<<|\n7\n|",
		`lines<<|` + "\n" + `[{"line":"0.33","tag":"v0.33.0","gating":true,"verdict":"fail"}]`,
		"report-dir<<|\n" + filepath.Join(dir, "r") + "\n|",
	} {
		require.Contains(t, got, want)
	}
	require.True(t, !strings.Contains(got, "report-html"), "a file is named that was not asked for:\n%s", got)
	for _, format := range []string{"json", "junit", "badges"} {
		_, after, found := strings.Cut(got, "report-"+format+"<<|\n")
		name, _, _ := strings.Cut(after, "\n")
		if _, err := os.Stat(name); !found || err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// A report is published: it says how it was made, but not in whose account.
func TestReportCommandHasNoAccount(t *testing.T) {
	opts := conformOptions{}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	opts.addFlags(flags)
	err := flags.Parse([]string{
		"--role-to-assume", "arn:aws:iam::123456789012:role/goldens", "--bucket", "https://me:secret@host/x?X-Amz-Signature=abc", "--line", "0.33",
	})
	require.NoError(t, err)
	got := strings.Join(opts.report.command("vllm-vcr", "conform"), " ")
	want := "vllm-vcr conform --bucket=https://host/x?… --line=0.33 --role-to-assume=arn:aws:iam::…:role/goldens"
	require.True(t, got == want, "got  %s\nwant %s", got, want)
}
