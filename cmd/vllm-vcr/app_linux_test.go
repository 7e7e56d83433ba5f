package main

import (
	"errors"
	"strings"
	"testing"
)

// TestStderrIsNoCommand: what is logged and what a command fails with has parts of
// files and subjects in it, of which no CI may take a line for a command.
func TestStderrIsNoCommand(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var stderr strings.Builder
		env := newEnvironment(nil, &stderr, func(string) (string, bool) { return "", false })
		env.logFormat = format
		env.openLog()
		env.log.Warn("it says", "words", "##[error]a", "more", "b\n::error::c")
		env.printErr(errors.New("vllm-vcr: error: two\n\t::error::lines ##vso[d]\x1b[31m"))
		if got := stderr.String(); live.MatchString(got) || !strings.HasSuffix(got, "\nvllm-vcr: error: two\n: :error::lines # #vso[d]\n") ||
			!strings.Contains(got, "# #[error]a") || strings.Count(got, "\n") != 3 {
			t.Errorf("%s: stderr is %q", format, got)
		}
	}
}

// TestErrorIsNoCommand: so it is when a command fails.
func TestErrorIsNoCommand(t *testing.T) {
	var stdout, stderr strings.Builder
	env := newEnvironment(&stdout, &stderr, func(string) (string, bool) { return "", false })
	if code := env.main(t.Context(), []string{"conform", "--line", "x\n::error::y ##[group]"}); code != 2 || live.MatchString(stderr.String()) {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
}
