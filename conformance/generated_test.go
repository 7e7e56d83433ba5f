package conformance

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// generatedRun sends sessions to the example engine with a defect: old in its source is replaced by now.
func generatedRun(t *testing.T, old, now string, generate check.Generate) *Report {
	t.Helper()
	source, err := os.ReadFile("../examples/engine-python/engine.py")
	require.NoError(t, err)
	if !strings.Contains(string(source), old) {
		t.Fatalf("the example engine has no %q", old)
	}
	engine := filepath.Join(t.TempDir(), "engine.py")
	require.NoError(t, os.WriteFile(engine, []byte(strings.Replace(string(source), old, now, 1)), 0o600))
	matrix, mf := repository(t)
	cases, err := NewPlan(matrix, mf, Selection{Suite: SuiteGenerated, Lines: []string{"0.33"}})
	require.NoError(t, err)
	generate.Replays = true
	runner := liveRunner()
	runner.Engine = CommandEngine{Template: quote(testenv.Python(t)) + " " + quote(engine) + " {handshake} {trace} {line} {match}", Grace: time.Second}.Engine
	runner.Timeouts, runner.Generate = ReplayTimeouts(), generate
	return runner.Run(t.Context(), cases)
}

// TestGeneratedSessions: random sessions find defects of an engine that no suite plans for, each shrunk to at most three messages. The
// file of the session shows the failure again.
func TestGeneratedSessions(t *testing.T) {
	// What shows only while two messages are under way need not show each time, so how small a session gets depends on the machine.
	defects := []struct {
		name, old, now string
		always         bool
	}{
		{"aborts are ignored", "running = {i: s for i, s in running.items() if i not in payload}", "pass", false},
		{"an abort ends all requests", "{i: s for i, s in running.items() if i not in payload}", "{}", false},
		{"an abort ends the request after it too", "if i not in payload}", "if i not in payload and list(running).index(i) != 1}", false},
		{"an answer uses up the record", "tokens = tokens[size:]", "del tokens[:size]", false},
		{
			"requests of a step get each other's tokens", "    if outputs := [next(request) for request in running.values()]:\n",
			"    if outputs := [next(request) for request in running.values()]:\n        outputs[0][1], outputs[-1][1] = outputs[-1][1], outputs[0][1]\n", false,
		},
		{"a call is not answered while a request runs", "elif kind == UTILITY:", "elif kind == UTILITY and not running:", false},
		{"the answer to a call names another call", "utility_output=[call_id,", "utility_output=[call_id + len(running),", false},
		{
			"a reset of the cache forgets requests", "client_index, call_id, method, args = payload",
			"client_index, call_id, method, args = payload\n            running = {} if method == 'reset_prefix_cache' else running", false,
		},
		{"the engine dies of an abort of an ended request", "elif kind == ABORT:", "elif kind == ABORT:\n            running[payload[0]]", false},
		{"two requests of a record share their steps", "running[payload[0]] = steps(", "running = {i: s for i, s in running.items() if i.split('-')[1] != payload[0].split('-')[1]}\n            running[payload[0]] = steps(", false},
		{"a step of several outputs names another engine", "message = [0, outputs", "message = [len(outputs) // 2, outputs", false},
		{"the first token of each answer is lost", "out[NANS] = 0", "out[NANS], out[1] = 0, out[1][step == 1:]", true},
		{"every answer ends by length", "FINISH_REASONS[reason]", "FINISH_REASONS['length' if reason == 'stop' else 'stop']", true},
		{"times go back with more outputs", "time.monotonic()", "time.monotonic() - 9 * len(outputs)", true},
	}
	for _, defect := range defects {
		t.Run(defect.name, func(t *testing.T) {
			if !defect.always {
				testenv.Slow(t, "engines with defects that depend on the moment")
			}
			file := filepath.Join(t.TempDir(), "session.json")
			begun := time.Now()
			report := generatedRun(t, defect.old, defect.now, check.Generate{Sessions: 200, Seed: 1, File: file})
			r := report.Results[0]
			if r.Verdict != Fail {
				t.Fatalf("%s, want a failure: %v", r.Verdict, r.Failures)
			}
			t.Logf("%v: %s: %s %s", time.Since(begun).Round(time.Millisecond), r.Note, r.Failures[0].Code, check.FirstLine(errors.New(r.Failures[0].Message)))
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			var s live.Session
			require.NoError(t, json.Unmarshal(data, &s))
			messages := 0
			for _, step := range s.Steps {
				if step.Do != "await" {
					messages++
				}
			}
			require.True(t, messages <= 3 || !defect.always, "%d messages, want at most 3: %s", messages, data)
			again := generatedRun(t, defect.old, defect.now, check.Generate{File: file}).Results[0]
			if defect.always && (again.Verdict != Fail || again.Failures[0].Code != r.Failures[0].Code) {
				t.Errorf("the session again: %s %v, want %s", again.Verdict, again.Failures, r.Failures[0].Code)
			}
		})
	}
}

// TestGeneratedSessionsPass: the example engine as it is, and the player with several clients.
func TestGeneratedSessionsPass(t *testing.T) {
	wantAllPass(t, generatedRun(t, "import gzip", "import gzip", check.Generate{Sessions: 50, Seed: 2}), nil)
	matrix, mf := repository(t)
	for _, line := range []string{"0.33", "0.25"} {
		cases, err := NewPlan(matrix, mf, Selection{Suite: SuiteGenerated, Lines: []string{line}})
		require.NoError(t, err)
		runner := liveRunner()
		runner.Generate = check.Generate{Sessions: 50, Seed: 3, Clients: 3}
		wantAllPass(t, runner.Run(t.Context(), cases), nil)
	}
	for _, version := range testenv.FrontendVersions() {
		selection := Selection{Suite: SuiteGenerated, Lines: []string{protocol.LineOf(version)}, Assertions: []Assertion{HTTPSessions}}
		cases, err := NewPlan(matrix, mf, selection)
		require.NoError(t, err)
		runner := liveRunner()
		runner.Frontend, runner.Generate = realUnderTest(t, version), check.Generate{Sessions: 100, Seed: 4}
		wantAllPass(t, runner.Run(t.Context(), cases), nil)
	}
}
