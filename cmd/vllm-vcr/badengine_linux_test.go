package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// oneReplay selects a replay of a small golden.
func oneReplay(line string) []string {
	return []string{"conform", "--line", line, "--golden", "edge-s1", "--run", "**/fidelity-index-1"}
}

// live is what a CI service or a terminal would act on, where it stands: workflow
// commands, control characters, what turns the direction of text.
var live = regexp.MustCompile(`(?m)^\s*::|##\w*\[|[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}\x{202a}-\x{202e}]`)

// ours are the annotations that this command makes.
var ours = regexp.MustCompile(`(?m)^::(error|warning) file=(conformance/manifest|compat).toml,line=\d+,title=0\.33/[^:]*::[A-Z]\d{3} .*$`)

// TestCommandsInWords: whatever a subject prints or says in its messages, nothing that
// is written of it is a command, to GitHub or another service, a terminal or a browser.
func TestCommandsInWords(t *testing.T) {
	frontend := "'" + testenv.Python(t) + "' -u testdata/engines/frontend.py"
	tests := []struct {
		name string
		args []string
	}{
		{"an engine's output", []string{"--golden", "edge-s1", "--assertion", "schema", "--engine-command", mockEngine(t, "workflow-commands", replaying)}},
		{"an engine's messages", []string{"--golden", "edge-s1", "--assertion", "fidelity", "--idle-timeout", "1s", "--engine-command", mockEngine(t, "commands-in-words", replaying)}},
		{"an engine's registration", []string{"--suite", "live", "--idle-timeout", "1s", "--engine-command", mockEngine(t, "commands-in-words")}},
		{"a frontend's output", []string{"--frontend-command", frontend + " ends {http_port} {handshake}"}},
		{"a frontend's answers", []string{"--idle-timeout", "1s", "--start-timeout", "1s", "--frontend-command", frontend + " http {http_port} {handshake}"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env := []string{"GITHUB_ACTIONS=true", "GITHUB_STEP_SUMMARY=" + dir + "/step.md"}
			args := append([]string{"conform", "-v", "--line", "0.33", "--report-dir", dir, "--report-json", "/dev/stdout"}, test.args...)
			s, code := runSpied(t, env, args...)
			require.Equal(t, code, 1, "exit code")
			stderr := s.stderr.text()
			says(t, stderr, ours.String())
			require.Equal(t, live.FindString(ours.ReplaceAllString(stderr, "")), "", "on stderr:\n%s", stderr)
			wantNoneLive(t, "stdout", s.stdout.text())
			for _, name := range []string{"step.md", "summary.md", "report.html", "junit.xml", "report.sarif"} {
				data, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				wantNoneLive(t, name, string(data))
				require.True(t, !strings.HasSuffix(name, ".html") || !strings.Contains(string(data), "<img src=x"), "%s shows an image of the subject's", name)
			}
		})
	}
}

func wantNoneLive(t *testing.T, name, text string) {
	t.Helper()
	if at := live.FindStringIndex(text); at != nil {
		t.Errorf("%q in %s, after %q", text[at[0]:at[1]], name, text[max(at[0]-100, 0):at[0]])
	}
}
