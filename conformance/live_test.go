package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// livePlan lists the live cases of a line of the repository.
func livePlan(tb testing.TB, line string) []Case {
	tb.Helper()
	matrix, mf := repository(tb)
	l, ok := matrix.ByName(line)
	if !ok {
		tb.Fatalf("no line %s", line)
	}
	return live.Cases(l, mf, true)
}

// liveRunner has the goldens of the repository.
func liveRunner() *Runner { return &Runner{Store: NewStore(StoreOptions{Dir: repoGoldens})} }

// wantAllPass demands that every case passed and asserted something, but for those
// that have a reason not to.
func wantAllPass(t *testing.T, report *Report, skips map[Assertion]string) {
	t.Helper()
	for _, r := range report.Results {
		want := Pass
		if skips[r.Case.Assertion] != "" {
			want = Skip
		}
		if r.Verdict != want || skips[r.Case.Assertion] != "" && r.Note != skips[r.Case.Assertion] {
			t.Errorf("%s: %s, want %s: note %q, failures %v", r.Case.Name(), r.Verdict, want, r.Note, r.Failures)
		}
		t.Logf("%s: %s, %d asserted, %d tokens in %v: %s", r.Case.Name(), r.Verdict, r.Asserted, r.Tokens, r.Duration, r.Note)
	}
	require.True(t, len(report.Results) != 0, "no results")
}

// TestLivePlayer: the embedded player makes up tokens, and is a good engine of each
// line.
func TestLivePlayer(t *testing.T) {
	matrix, _ := repository(t)
	for _, line := range matrix.Lines {
		t.Run(line.Name, func(t *testing.T) {
			wantAllPass(t, liveRunner().Run(t.Context(), livePlan(t, line.Name)), nil)
		})
	}
}

// TestLiveMock: so is an engine that is none of ours. One may be started without statistics; and what a model computes on top of its
// prefix cache may be rounded in another way, and end in another token.
func TestLiveMock(t *testing.T) {
	for _, test := range []struct {
		line, fault string
		skips       map[Assertion]string
	}{
		{line: "0.33"},
		{line: "0.27"},
		{line: "0.33", fault: "no-statistics", skips: map[Assertion]string{live.Statistics: "the engine sends no scheduler_stats"}},
		{line: "0.33", fault: "rounds-by-cache"},
	} {
		t.Run(test.line+test.fault, func(t *testing.T) {
			wantAllPass(t, mockRunner(t, test.fault).Run(t.Context(), withoutGolden(livePlan(t, test.line))), test.skips)
		})
	}
}

// mockRunner judges an engine that is none of ours.
func mockRunner(t *testing.T, fault string) *Runner {
	t.Helper()
	runner := liveRunner()
	runner.Engine, runner.Timeouts = liveMock(t, fault).Engine, patient()
	return runner
}

// mockCases are the live cases of line 0.33 for it, or some of them.
func mockCases(t *testing.T, only ...Assertion) []Case {
	t.Helper()
	return slices.DeleteFunc(withoutGolden(livePlan(t, "0.33")), func(c Case) bool {
		return len(only) > 0 && !slices.Contains(only, c.Assertion)
	})
}

// withoutGolden leaves out what a captured engine registered with: ours of another
// configuration has other keys.
func withoutGolden(cases []Case) []Case {
	for i := range cases {
		cases[i].Golden = manifest.Golden{}
	}
	return cases
}

// TestLiveStuck: an engine that does nothing while it starts is not waited for as long as one that loads a model.
func TestLiveStuck(t *testing.T) {
	runner := mockRunner(t, "hangs-before-hello")
	runner.Timeouts.Stuck = 200 * time.Millisecond
	r := runner.Run(t.Context(), mockCases(t)).Results[0]
	require.True(t, r.Verdict == Error && r.Failures[0].Code == check.CodeNoHandshake && strings.Contains(r.Failures[0].Message, "no sign of life within 200ms"), "%s: %v", r.Verdict, r.Failures)
}

// TestLiveLogits: the wire does not tell what numbers an engine sends as log-probabilities, and the caller does.
func TestLiveLogits(t *testing.T) {
	for logits, want := range map[bool]Verdict{false: Fail, true: Pass} {
		runner := mockRunner(t, "logits")
		runner.Logits = logits
		r := runner.Run(t.Context(), mockCases(t, live.Logprobs)).Results[0]
		if r.Verdict != want || want == Fail && (r.Failures[0].Code != invariant.CodeLogprobs || !strings.Contains(r.Failures[0].Message, "--logprobs-mode")) {
			t.Errorf("logits %v: %s, want %s: %v", logits, r.Verdict, want, r.Failures)
		}
	}
}

// TestLiveDoneBefore: an abort that comes after the end shows nothing, and that is told.
func TestLiveDoneBefore(t *testing.T) {
	if r := mockRunner(t, "done-before-aborts").Run(t.Context(), mockCases(t, live.Abort)).Results[0]; r.Verdict != Pass || !strings.Contains(r.Note, "every request had ended before the engine read its abort") {
		t.Errorf("%s (%s) %v", r.Verdict, r.Note, r.Failures)
	}
}

// TestLiveLost: what ends the engine is told by the case that sees it, and the
// others are not green.
func TestLiveLost(t *testing.T) {
	tests := []struct {
		fault  string
		limits Timeouts
		seen   Assertion // by which case
		code   Code
		exit   int
		says   string
	}{
		{"dies-at-once", patient(), live.Handshake, check.CodeEngineEnded, ExitFail, "| ValueError: no such model"},
		{"ready-first", patient(), live.Handshake, live.CodeEngineOrder, ExitFail, `"READY" out of turn`},
		{"dies-later", patient(), live.Streaming, check.CodeEngineEnded, ExitFail, "| CUDA error"},
		{"silent", Timeouts{Connect: time.Minute, Idle: 2 * time.Second, Golden: never}, live.Streaming, check.CodeSilence, ExitInfra, "; request live-1 is open after 0 of 1 tokens"},
		{"silent", Timeouts{Connect: time.Minute, Idle: 2 * time.Second, Golden: never}, live.Abort, check.CodeSilence, ExitInfra, "; request live-3 is open after 0 of 512 tokens"},
		{"flood-answers", patient(), live.Streaming, live.CodeUtilityAnswer, ExitFail, "an answer to call 7, which the frontend did not make"},
		{"flood-bytes", patient(), live.Streaming, check.CodeEngineEnded, ExitFail, "the limit is 67108864"},
		{"flood-strays", patient(), live.Streaming, check.CodeStray, ExitFail, `an output names request "stray-1"`},
		{"flood-outputs", patient(), live.Streaming, live.CodeAfterEnd, ExitFail, "an output of 10 tokens comes after it had ended"},
	}
	for _, test := range tests {
		t.Run(test.fault, func(t *testing.T) {
			t.Parallel()
			runner := mockRunner(t, test.fault)
			runner.Timeouts = test.limits
			// Each case that waits in vain takes its time.
			report := runner.Run(t.Context(), mockCases(t, live.Handshake, test.seen, live.Utilities, live.Repeat))
			seen := false
			for _, r := range report.Results {
				a := r.Case.Assertion
				switch {
				case a == test.seen:
					seen = true
					if r.Failures[0].Code != test.code || !strings.Contains(r.Failures[0].Message, test.says) {
						t.Errorf("%s: %s: %s\nwant %s: %s", a, r.Failures[0].Code, r.Failures[0].Message, test.code, test.says)
					}
				case seen && r.Verdict == Pass:
					t.Errorf("%s passes after the engine was lost", a)
				}
			}
			require.True(t, report.ExitCode == test.exit, "exit code %d (%s), want %d", report.ExitCode, report.Reason, test.exit)
		})
	}
}

// TestLiveInterrupted: an interruption is nobody's failure.
func TestLiveInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	runner := liveRunner()
	runner.Progress = func(r Result) {
		if r.Case.Assertion == live.Streaming {
			cancel(errors.New("interrupted by the user"))
		}
	}
	report := runner.Run(ctx, livePlan(t, "0.33"))
	for _, r := range report.Results {
		passes := r.Case.Assertion == live.Handshake || r.Case.Assertion == Schema || r.Case.Assertion == live.Streaming
		if passes && r.Verdict != Pass || !passes && (r.Verdict != Error || !strings.Contains(r.Failures[0].Message, "interrupted by the user")) {
			t.Errorf("%s: %s %v", r.Case.Name(), r.Verdict, r.Failures)
		}
	}
	require.Equal(t, report.ExitCode, ExitInfra, "exit code")
}

// TestLiveCases: a line has each assertion once, by name, in order; the registration
// is compared with that of a golden where the line has one.
func TestLiveCases(t *testing.T) {
	_, mf := repository(t)
	with, without := livePlan(t, "0.33"), live.Cases(compat.Line{Name: "0.99"}, mf, false)
	for i, a := range AssertionsOf(SuiteLive) {
		if name, want := with[i].Name(), fmt.Sprintf("0.33/live/%s", a); name != want {
			t.Errorf("case %d is %s, want %s", i, name, want)
		}
		if with[i].Gating != true || without[i].Gating != false || without[i].Golden.ID != "" || (with[i].Golden.ID != "") != (a == Schema) {
			t.Errorf("%s: %+v, %+v", a, with[i], without[i])
		}
	}
}

// TestLiveThirdParties: engines as others write them are judged by what breaks for users, each cause once, in the level that it is
// of, and without a wait for what cannot come.
func TestLiveThirdParties(t *testing.T) {
	const noExtras = "no-statistics,no-prefill-stats,deaf-to-calls,no-logprobs"
	tests := []struct {
		fault  string
		worst  string // of all causes: consequence, code and a part of the message
		levels map[check.Level]check.LevelVerdict
		causes []Code // the others
	}{
		{
			noExtras, "requests fail E018 missing, although asked for",
			map[check.Level]check.LevelVerdict{check.LevelCore: check.LevelPass, check.LevelStatistics: check.LevelFail, check.LevelUtilities: check.LevelFail, check.LevelLogprobs: check.LevelFail},
			[]Code{live.CodePrefill, check.CodeUtility},
		},
		{
			"strict", "requests fail E026 the engine answers requests of 20 fields (0.25 to 0.27), not of 22: it decodes strictly",
			map[check.Level]check.LevelVerdict{check.LevelCore: check.LevelFail, check.LevelStatistics: check.LevelNotJudged},
			nil,
		},
		{
			"short-registration", "frontend exits S006 tensor_parallel_size is missing",
			map[check.Level]check.LevelVerdict{check.LevelCore: check.LevelFail, check.LevelStatistics: check.LevelPass},
			nil,
		},
		{
			"time-of-day", "wrong answer V010 this is a time of day",
			map[check.Level]check.LevelVerdict{check.LevelCore: check.LevelPass, check.LevelStatistics: check.LevelFail},
			nil,
		},
	}
	for _, test := range tests {
		t.Run(test.fault, func(t *testing.T) {
			t.Parallel()
			runner := mockRunner(t, test.fault)
			runner.Timeouts.Idle = 2 * time.Second
			report := runner.Run(t.Context(), mockCases(t))
			kinds := map[string]bool{} // of failures, by code and place
			var all []string
			for _, r := range report.Results {
				for _, f := range r.Failures {
					kinds[string(f.Code)] = true
					all = append(all, fmt.Sprintf("%s %s %s", f.Consequence, f.Code, f.Message))
				}
			}
			words := strings.SplitN(test.worst, " ", 4)
			if !slices.ContainsFunc(all, func(s string) bool {
				return strings.HasPrefix(s, strings.Join(words[:3], " ")) && strings.Contains(s, words[3])
			}) {
				t.Errorf("no failure is %q: %q", test.worst, all)
			}
			for _, code := range test.causes {
				require.True(t, kinds[string(code)], "no %s: %q", code, all)
			}
			for _, l := range report.Levels {
				if want, asked := test.levels[l.Level]; asked && l.Verdict != want {
					t.Errorf("%s: %s, want %s (%s %s)", l.Level, l.Verdict, want, l.Code, l.Message)
				}
			}
		})
	}
	// A level that is claimed alone decides the exit code.
	for level, want := range map[check.Level]int{check.LevelCore: ExitOK, check.LevelStatistics: ExitFail, check.LevelKVEvents: ExitVacuous} {
		runner := mockRunner(t, noExtras)
		runner.Levels, runner.Timeouts.Idle = []check.Level{level}, 2*time.Second
		if report := runner.Run(t.Context(), mockCases(t)); report.ExitCode != want {
			t.Errorf("level %s: exit code %d (%s), want %d", level, report.ExitCode, report.Reason, want)
		}
	}
}
