package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// quote makes a path one word.
func quote(path string) string { return "'" + path + "'" }

// mock is the command of an engine that is none of ours.
func mock(t *testing.T, fault string) CommandEngine {
	t.Helper()
	return CommandEngine{Template: mockCommand(t, fault) + " --trace {trace}"}
}

// liveMock has no recording.
func liveMock(t *testing.T, fault string) CommandEngine {
	t.Helper()
	return CommandEngine{Template: mockCommand(t, fault)}
}

func mockCommand(t *testing.T, fault string) string {
	t.Helper()
	script, err := filepath.Abs("../testdata/engines/mock.py")
	require.NoError(t, err)
	return quote(testenv.Python(t)) + " -u " + quote(script) + " --handshake {handshake} --line {line} --index {index} --fault '" + fault + "'"
}

// patient are limits that no good engine reaches, and that a test which waits for
// one does not wait long for.
func patient() Timeouts { return Timeouts{Connect: time.Minute, Idle: time.Minute, Golden: never} }

// TestMockReplays: so does an engine with a decoder, an encoder and sockets of others. The file of {trace} is gone after it.
func TestMockReplays(t *testing.T) {
	goldens := []*subjectGolden{olderGolden(t), usualGolden(t)}
	if testing.Short() {
		goldens = goldens[:1]
	}
	for _, g := range goldens {
		t.Run(g.line.Name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			command := mock(t, "")
			report := g.judged(t, Runner{Engine: command.Engine, Timeouts: patient()}, Selection{Matches: command.Matches()})
			outcome{exit: ExitOK}.check(t, report)
			if !slices.Equal(command.Matches(), []player.Match{player.MatchIndex}) || len(report.Results) != 6 {
				t.Errorf("%d results, want six: an engine without {match} is asked by index only", len(report.Results))
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestFaultyProcess: whatever a process does, a report comes, says what happened,
// and has the right exit code.
func TestFaultyProcess(t *testing.T) {
	soon := Timeouts{Connect: time.Minute, Idle: 500 * time.Millisecond, Golden: never}
	tests := []struct {
		fault   string
		limits  Timeouts
		verdict Verdict
		exit    int
		code    Code
		says    []string
	}{
		{"dies-at-once", patient(), Error, ExitFail, check.CodeEngineEnded, []string{"ended: exit status 1; the last of its output:\n| loading weights\n| ValueError: no such model"}},
		{"daemon", patient(), Error, ExitFail, check.CodeEngineEnded, []string{"ended: exit status 0"}},
		{"dies-later", patient(), Error, ExitFail, check.CodeEngineEnded, []string{"ended: exit status 1", "| CUDA error", "\n1 open: request 4 (line "}},
		{
			"hangs-before-hello",
			Timeouts{Connect: 4 * time.Second, Idle: never, Golden: never},
			Error, ExitInfra, check.CodeNoHandshake,
			[]string{"waiting for HELLO: ", "no handshake within 4s; the last of the engine's output:\n| waiting for a GPU that never comes"},
		},
		{"silent", soon, Error, ExitInfra, check.CodeSilence, []string{"no output for ", "; 1 open: request 0 (line 7) after 0 of 24 tokens"}},
		{"strict", Timeouts{Connect: time.Minute, Idle: time.Minute, Golden: never, GiveUp: true}, Fail, ExitFail, check.CodeStrict, []string{"the engine answers requests of 20 fields (0.25 to 0.27), not of 22: it decodes strictly"}},
		{"strict", soon, Fail, ExitFail, check.CodeStrict, []string{"the engine answers requests of 20 fields (0.25 to 0.27), not of 22: it decodes strictly"}},
		{
			"deaf-to-calls", soon, Fail, ExitFail, check.CodeUtility,
			[]string{"utility call is_sleeping was not answered within 500ms: an engine answers every call"},
		},
		{"other-layout", patient(), Fail, ExitFail, check.CodeUndecodable, []string{"the engine's message does not decode: ", "EngineCoreOutput has 20 fields, line 0.33 knows 19"}},
		{"ready-first", patient(), Error, ExitFail, check.CodeHandshake, []string{`waiting for HELLO: handshake: "READY" out of turn`}},
		{"flood-strays", patient(), Fail, ExitFail, check.CodeStray, []string{`an output names request "stray-1", which was never sent`}},
		{"flood-outputs", patient(), Error, ExitFail, check.CodeEngineFlood, []string{"the engine sent 20000 outputs more than were requested, and continues"}},
		{"flood-bytes", patient(), Error, ExitFail, check.CodeEngineEnded, []string{"the engine disconnected", "the limit is 67108864"}},
		{"deaf-to-aborts", patient(), Fail, ExitFail, replay.CodeAbortIgnored, []string{"it was aborted, the engine had read that, and "}},
		{"ignores-sigterm", patient(), Pass, ExitOK, "", nil},
		{"forks", patient(), Pass, ExitOK, "", nil},
		{"flood-logs", patient(), Pass, ExitOK, "", nil},
	}
	for _, test := range tests {
		t.Run(test.fault, func(t *testing.T) {
			g := usualGolden(t)
			command := mock(t, test.fault)
			command.Grace = 500 * time.Millisecond
			runner := Runner{Store: g, Engine: command.Engine, Timeouts: test.limits}
			cases := g.plan(t, Selection{Assertions: []Assertion{Fidelity}, Matches: command.Matches(), Concurrency: []int{1}})
			report := runner.Run(t.Context(), cases)
			// An engine that had answered all before the abort reached it is not seen to ignore it.
			for try := 0; try < 10 && test.code == replay.CodeAbortIgnored && report.ExitCode == ExitOK; try++ {
				report = runner.Run(t.Context(), cases)
			}
			const check = "fidelity-index-1"
			want := outcome{exit: test.exit, verdict: map[string]Verdict{check: test.verdict}, says: map[string][]string{check: test.says}}
			want.check(t, report)
			if failures := report.Results[0].Failures; len(failures) > 0 && failures[0].Code != test.code {
				t.Errorf("code %s, want %s", failures[0].Code, test.code)
			}
		})
	}
}

// TestSessionInOwnTime: a process, which has a time of its own, goes through the session that a real frontend had with a
// real engine.
func TestSessionInOwnTime(t *testing.T) {
	tests := []struct {
		fault string
		code  Code   // empty if it passes
		says  string // of a failure or the note
	}{
		{"", "", "not judged: 2 utility calls, which the engine answered by a failure"},
		{"logprobs-of-others", invariant.CodeLogprobs, "new_logprobs"},
		{"late-output", replay.CodeLate, "outputs after the terminal one"},
	}
	for _, test := range tests {
		t.Run(test.fault, func(t *testing.T) {
			t.Parallel()
			g := goldenOf(t, "0.33", "wire-edge-s1")
			r := g.judged(t, Runner{Engine: mock(t, test.fault).Engine, Timeouts: patient()}, Selection{Assertions: []Assertion{Wire}}).Results[0]
			if test.code == "" {
				require.True(t, r.Verdict == Pass && r.Asserted >= 100 && r.Note == test.says, "%s with %d assertions, %q: %v", r.Verdict, r.Asserted, r.Note, r.Failures)
				return
			}
			found := slices.ContainsFunc(r.Failures, func(f Failure) bool { return f.Code == test.code && strings.Contains(f.Message, test.says) })
			require.True(t, r.Verdict != Pass && found, "%s, want %s: %q: %v", r.Verdict, test.code, test.says, r.Failures)
		})
	}
	t.Run("started by somebody else", func(t *testing.T) {
		g := goldenOf(t, "0.33", "wire-edge-s1")
		r := (&Runner{Store: g, Address: "tcp://127.0.0.1:29550"}).Run(t.Context(), g.plan(t, Selection{Assertions: []Assertion{Wire}})).Results[0]
		require.True(t, r.Verdict == Skip && r.Note == "not judged: nobody gave the engine this session to replay", "%s: %q, %v", r.Verdict, r.Note, r.Failures)
	})
}
