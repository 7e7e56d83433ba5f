package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// oneReplay selects a replay of a small golden.
func oneReplay(line string) []string {
	return []string{"conform", "--line", line, "--golden", "edge-s1", "--run", "**/fidelity-index-1"}
}

// TestBadEngine: whatever an engine does, the command ends with a report, says what
// happened and exits by it, and no process is left.
func TestBadEngine(t *testing.T) {
	t.Parallel()
	soon := []string{"--start-timeout", "2s", "--idle-timeout", "3s"}
	notExecutable, err := filepath.Abs("../../README.md")
	require.NoError(t, err)
	tests := []struct {
		name    string
		command string
		line    string
		flags   []string
		code    int
		stdout  string
	}{
		{"hangs before READY", mockEngine(t, "hangs-before-ready", replaying), "0.33", soon, 3, `^  R004 waiting for the registration .*: no handshake within 2s`},
		{"hangs in the middle", mockEngine(t, "hangs-midway", replaying), "0.33", soon, 3, `^  R006 no output for 3s; 1 open: request 0 \(line 2\) after 3 of 16 tokens`},
		{"forks what stays", mockEngine(t, "forks", replaying), "0.33", nil, 0, `^PASS: `},
		{"ends at once", "true {handshake}", "0.33", nil, 1, `^  R005 engine: true \(true tcp://127.0.0.1:\d+\) ended: exit status 0, without any output`},
		{"is not there", "/no/such/engine {handshake}", "0.33", nil, 3, `^  R003 engine: start engine: .*/no/such/engine: no such file or directory`},
		{"is no program", "'" + notExecutable + "' {handshake}", "0.33", nil, 3, `^  R003 engine: start README.md: .*: permission denied`},
		{"is of a newer line", mockEngine(t, "", "--line 0.33 --trace {trace}"), "0.27", nil, 1, `^  F009 message 1: .*EngineCoreOutputs has 9 fields, line 0.27 knows 8`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := append(oneReplay(test.line), "--engine-command", test.command)
			s, code := runSpied(t, nil, append(args, test.flags...)...)
			if code != test.code {
				t.Errorf("exit code %d, want %d:\n%s", code, test.code, s.stderr.text())
			}
			says(t, s.stdout.text(), test.stdout, `^(PASS|FAIL|ERROR): `)
			if said := s.stderr.text(); said != "" {
				t.Errorf("stderr %q, want nothing: the report says it all", said)
			}
		})
	}
}

// TestOlderEngine: an engine of an older line says less than those of this one. What it
// leaves out of its outputs has a default; what its registration lacks is found.
func TestOlderEngine(t *testing.T) {
	t.Parallel()
	s, code := runSpied(t, nil, "conform", "--line", "0.33", "--suite", "live", "--engine-command", mockEngine(t, "", "--line 0.27"))
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	says(t, s.stdout.text(), `^  S004 .*coord_store_port is missing, but the captured engine sent it \(int\)`)
}

// TestStubbornEngine: an engine that does not end by SIGTERM is killed after the grace,
// which is said.
func TestStubbornEngine(t *testing.T) {
	t.Parallel()
	s, code := runSpied(t, nil, append(oneReplay("0.33"), "--engine-grace", "500ms", "--engine-command", mockEngine(t, "ignores-sigterm", replaying))...)
	if code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, s.stdout.text())
	}
	says(t, s.stderr.text(), `^time=\S+ level=WARN msg="the engine did not end by SIGTERM and was killed" command=.* grace=500ms$`)
}

// TestGigabyteOfLogs: what an engine writes is read, and only its end is kept.
func TestGigabyteOfLogs(t *testing.T) {
	s, code := runSpied(t, []string{"MOCK_LOG_MIB=512"}, append(oneReplay("0.33"), "--engine-command", mockEngine(t, "flood-logs", replaying))...)
	if code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, s.stdout.text())
	}
	// 512 MiB on stdout and on stderr each. A run without them needs about 30 MB.
	if used := s.ProcessState.SysUsage().(*syscall.Rusage).Maxrss >> 10; used > 128 {
		t.Errorf("%d MiB of memory, want no more than a run without logs has", used)
	}
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
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			stderr := s.stderr.text()
			says(t, stderr, ours.String())
			if found := live.FindString(ours.ReplaceAllString(stderr, "")); found != "" {
				t.Errorf("%q on stderr:\n%s", found, stderr)
			}
			wantNoneLive(t, "stdout", s.stdout.text())
			for _, name := range []string{"step.md", "summary.md", "report.html", "junit.xml", "report.sarif"} {
				data, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				wantNoneLive(t, name, string(data))
				if strings.HasSuffix(name, ".html") && strings.Contains(string(data), "<img src=x") {
					t.Errorf("%s shows an image of the subject's", name)
				}
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
