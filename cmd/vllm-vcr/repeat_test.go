package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestRepeatRoundTrip: the command that a report gives for a case is one that
// this command line takes, and it plans that case alone, on the same inputs.
func TestRepeatRoundTrip(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "vllm rs")
	require.NoError(t, os.WriteFile(binary, nil, 0o700))
	behind := []string{"--frontend", "v0.33.0=" + binary, "--model", dir}
	for _, test := range []struct {
		atLeast int
		words   []string
	}{
		{350, behind},
		{50, append([]string{"--golden", "multiturn-s7", "--concurrency", "4"}, behind...)},
		{50, append([]string{"--golden", "multiturn-s7", "--concurrency", "1"}, behind...)},
		{300, []string{"--engine-command", "an engine {handshake} '{trace}'"}},
		{30, []string{"--line", "0.33", "--engine-command", "an engine {handshake} {match}", "--engine-grace", "1m30s"}},
		{10, []string{"--line", "0.33", "--engine-command", "an engine {handshake} {match}", "--match", "prefix", "--concurrency", "3,16"}},
		{50, []string{"--suite", "live", "--engine-command", "an engine {handshake}"}},
		{50, []string{"--frontend-command", "serve {model} {handshake} {http_port}", "--model", dir}},
	} {
		words := []string{"vllm-vcr", "conform", "--enforce", "all", "--bucket", "s3://some/bucket"}
		words = append(words, "--compat", "../../compat.toml", "--manifest", "../../conformance/manifest.toml")
		flags := parseConform(t, append(words, test.words...))
		planned := planOf(t, flags)
		if len(planned) < test.atLeast {
			t.Fatalf("%q: %d cases planned", test.words, len(planned))
		}
		seen := map[string]bool{}
		for _, c := range planned {
			// Other lines and goldens make no other command.
			kind := fmt.Sprint(c.Suite, c.Check(), c.Golden.ID == "")
			if !seen[kind] {
				seen[kind] = true
				t.Run(c.Name(), func(t *testing.T) { repeatAlone(t, c, flags) })
			}
		}
	}
}

func repeatAlone(t *testing.T, c conformance.Case, flags *conformOptions) {
	t.Helper()
	line := report.Repeat(c, flags.repeat()...)
	again := parseConform(t, shellWords(t, line))
	require.NoDiff(t, cmp.Diff(flags.repeat(), again.repeat()), "%s: other inputs, -want +got", line)
	var got []string
	for _, c := range planOf(t, again) {
		got = append(got, c.Name())
	}
	require.NoDiff(t, cmp.Diff([]string{c.Name()}, got), "%s: -want +got", line)
}

func planOf(t *testing.T, opts *conformOptions) []conformance.Case {
	t.Helper()
	matrix, mf, err := loadInputs(quietEnvironment(), &opts.in)
	require.NoError(t, err)
	sel, err := opts.selection(t.Context())
	require.NoError(t, err)
	cases, err := conformance.NewPlan(matrix, mf, sel)
	require.NoError(t, err)
	return cases
}

// parseConform parses a command line with the real flags.
func parseConform(t *testing.T, words []string) *conformOptions {
	t.Helper()
	if len(words) < 2 || words[0] != "vllm-vcr" {
		t.Fatalf("%q does not begin with the command's name", words)
	}
	root := newRootCommand(quietEnvironment())
	cmd, rest, err := root.Find(words[1:])
	if err != nil || cmd.Name() != "conform" {
		t.Fatalf("%q is not a conform command: %v", words, err)
	}
	opts := &conformOptions{}
	cmd.ResetFlags()
	opts.addFlags(cmd.Flags())
	require.NoErrorf(t, cmd.ParseFlags(rest), "%q", words)
	if left := cmd.Flags().Args(); len(left) > 0 {
		t.Fatalf("%q: %q left over", words, left)
	}
	return opts
}

// shellWords splits a line as a shell does whose only special characters are
// spaces and single quotes, and the backslash that quotes one.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	var word strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch ch := line[i]; {
		case ch == '\'':
			quoted, inWord = !quoted, true
		case quoted:
			word.WriteByte(ch)
		case ch == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			inWord = true
		case ch == ' ' && inWord:
			words = append(words, word.String())
			word.Reset()
			inWord = false
		case ch != ' ':
			word.WriteByte(ch)
			inWord = true
		}
	}
	if quoted {
		t.Fatalf("%s: a quote is left open", line)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// TestRepeatRuns takes one such command all the way.
func TestRepeatRuns(t *testing.T) {
	c := planOf(t, parseConform(t, []string{"vllm-vcr", "conform"}))
	for _, c := range c {
		if c.Golden.ID == "" || c.Assertion != conformance.Schema {
			continue
		}
		var stdout, stderr strings.Builder
		env := newEnvironment(&stdout, &stderr, func(string) (string, bool) { return "", false })
		if code := env.main(context.Background(), shellWords(t, report.Repeat(c))[1:]); code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", report.Repeat(c), code, &stdout, &stderr)
		}
		if !strings.Contains(stdout.String(), "PASS: every gate holds: 1 passed") {
			t.Errorf("%s:\n%s", report.Repeat(c), &stdout)
		}
		return
	}
	t.Fatal("no case to repeat")
}
