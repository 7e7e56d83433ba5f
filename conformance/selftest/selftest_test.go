package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// repository is the self-test of the goldens of the repository.
func repository(tb testing.TB) Config {
	tb.Helper()
	root := filepath.Join("..", "..")
	matrix, findings := compat.Load(filepath.Join(root, "compat.toml"))
	mf, more := manifest.Load(filepath.Join(root, "conformance", "manifest.toml"))
	if findings = append(findings, more...); tomlfile.HasErrors(findings) {
		tb.Fatal(findings)
	}
	store := conformance.NewStore(conformance.StoreOptions{Dir: filepath.Join(root, "testdata", "goldens")})
	return Config{Matrix: matrix, Manifest: mf, Store: store}
}

// TestSelfTest: the runner finds every fault on the newest line, and none is left out. `conform --self-test` has the middle and the
// oldest too, in .ci/run.
func TestSelfTest(t *testing.T) {
	cfg := repository(t)
	cfg.Lines = []string{protocol.Newest()}
	told := 0
	cfg.Progress = func(conformance.Result) { told++ }
	var logged bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
	report, err := Run(t.Context(), cfg)
	require.NoError(t, err)
	for _, r := range report.Results {
		if r.Verdict != conformance.Pass {
			t.Errorf("%s: %s %s", r.Case.Name(), r.Verdict, r.Note)
			for _, f := range r.Failures {
				t.Logf("  %s %s", f.Code, f.Message)
			}
		}
		require.True(t, r.Asserted != 0 && (r.Note == "") == strings.HasSuffix(string(r.Case.Assertion), "no-fault"), "%s: %d asserted, note %q", r.Case.Name(), r.Asserted, r.Note)
	}
	const least = 90
	if told != len(report.Results) || len(report.Lines) != 1 || len(report.Results) < least || report.ExitCode != conformance.ExitOK {
		t.Errorf("%d results of %d lines, %d told, exit code %d: %s", len(report.Results), len(report.Lines), told, report.ExitCode, report.Reason)
	}
	require.True(t, logged.Len() == 0, "logged: %s", &logged)
	t.Logf("%d cases in %v", len(report.Results), report.Duration)
}

// TestEachCheckHasFaults: every check of the suites other than replay is demanded to be red, of live and frontend at least twice, and every
// code of prefill and decode is.
func TestEachCheckHasFaults(t *testing.T) {
	red, codes := map[string]int{}, map[conformance.Code]bool{}
	for _, f := range slices.Concat(liveFaults(), frontendFaults(), transferFaults()) {
		red[fmt.Sprint(f.suite.suite, "/", f.suite.check)]++
		codes[f.suite.code] = true
	}
	for suite, least := range map[conformance.Suite]int{conformance.SuiteLive: 2, conformance.SuiteFrontend: 2, conformance.SuitePrefill: 1, conformance.SuiteDecode: 1} {
		for _, a := range conformance.AssertionsOf(suite) {
			if n := red[fmt.Sprint(suite, "/", a)]; n < least {
				t.Errorf("%s/%s has %d faults, want %d", suite, a, n, least)
			}
		}
	}
	for n := 1; n <= 14; n++ {
		if code := conformance.Code(fmt.Sprintf("D%03d", n)); !codes[code] {
			t.Errorf("no fault demands %s", code)
		}
	}
}

// blinded is a runner whose results are tampered with before anybody sees them.
type blinded struct {
	conformance.Runner
	blind func(*conformance.Result)
}

func (b *blinded) Run(ctx context.Context, cases []conformance.Case) *conformance.Report {
	report := b.Runner.Run(ctx, cases)
	for i := range report.Results {
		b.blind(&report.Results[i])
	}
	return report
}

// passes makes a case pass.
func passes(r *conformance.Result) { r.Verdict, r.Failures = conformance.Pass, nil }

// blindRunner is a runner that is wrong about a fault, and what the self-test says.
type blindRunner struct {
	name, fault string
	blind       func(*conformance.Result)
	code        conformance.Code
	says        string
}

func blindRunners() []blindRunner {
	fidelity := func(change func(*conformance.Result)) func(*conformance.Result) {
		return func(r *conformance.Result) {
			if r.Case.Assertion == conformance.Fidelity && len(r.Failures) > 0 {
				change(r)
			}
		}
	}
	first := func(change func(*conformance.Failure)) func(*conformance.Result) {
		return fidelity(func(r *conformance.Result) { change(&r.Failures[0]) })
	}
	return []blindRunner{
		{"tokens are not compared", "altered-token-first", fidelity(passes), CodeUncaught, "edge-s1/fidelity-index-1 does not see it: pass"},
		{"late outputs are not seen", "late-output", fidelity(passes), CodeUncaught, "does not see it"},
		{"the schema is not compared", "no-dtype", func(r *conformance.Result) {
			if r.Case.Assertion == conformance.Schema {
				passes(r)
			}
		}, CodeUncaught, "edge-s1/schema does not see it"},
		{"bytes are not verified", "flipped-bit", func(r *conformance.Result) {
			if r.Case.Assertion == conformance.Integrity {
				passes(r)
			}
		}, CodeUncaught, "edge-s1/integrity does not see it"},
		{"frames are not compared", "short-output", func(r *conformance.Result) {
			if r.Case.Assertion == conformance.Wire {
				passes(r)
			}
		}, CodeUncaught, "wire-edge-s1/wire does not see it"},
		{"only one variant sees it", "one-chunk", fidelity(func(r *conformance.Result) {
			if r.Case.Variant.Concurrency == 16 {
				passes(r)
			}
		}), CodeUncaught, "fidelity-prefix-16 does not see it"},
		{"a check is red without reason", "altered-token-first", func(r *conformance.Result) {
			if r.Case.Assertion == conformance.Provenance {
				r.Verdict = conformance.Fail
			}
		}, CodeWrongCheck, "edge-s1/provenance must not be concerned: fail"},
		{"a check is skipped", "altered-token-first", func(r *conformance.Result) {
			if r.Case.Assertion == conformance.Schema {
				r.Verdict, r.Note = conformance.Skip, "not judged: see nothing"
			}
		}, CodeWrongCheck, "edge-s1/schema must not be concerned: skip"},
		{"all is red", "no-fault", func(r *conformance.Result) { r.Verdict = conformance.Error }, CodeWrongCheck, "edge-s1/integrity must not be concerned"},
		{"other code", "altered-token-first", first(func(f *conformance.Failure) { f.Code = replay.CodeChunks }), CodeUnclear, "the code is F006, want F001"},
		{"other request", "altered-token-first", first(func(f *conformance.Failure) { f.Request++ }), CodeUnclear, "the request is 6, want 5"},
		{"no position", "altered-token-first", first(func(f *conformance.Failure) { f.Position = -1 }), CodeUnclear, "the position is -1, want 0"},
		{"no frame", "engine-index", first(func(f *conformance.Failure) { f.Frame = -1 }), CodeUnclear, "the frame is -1"},
		{"no path", "engine-index", first(func(f *conformance.Failure) { f.Path = "" }), CodeUnclear, `the path is ""`},
		{"no values", "altered-token-first", first(func(f *conformance.Failure) { f.Expected, f.Actual = "", "" }), CodeUnclear, `the actual value is "", want "31337" in it`},
		{"the same values", "altered-token-first", first(func(f *conformance.Failure) { f.Expected = f.Actual }), CodeUnclear, "want two"},
		{"silent message", "altered-token-first", first(func(f *conformance.Failure) { f.Message = "differs" }), CodeUnclear, `the message does not say "request 5 "`},
		{"no failure", "altered-token-first", fidelity(func(r *conformance.Result) { r.Failures = nil }), CodeUnclear, "is fail without a failure"},
		{"other verdict", "altered-token-first", fidelity(func(r *conformance.Result) { r.Verdict = conformance.Error }), CodeUnclear, "the verdict is error, want fail"},
	}
}

// TestBlindRunner: a runner that misses something, sees what is not there, or says
// too little fails the self-test, with the right code and a message that names the
// check.
func TestBlindRunner(t *testing.T) {
	for _, test := range blindRunners() {
		t.Run(test.name, func(t *testing.T) {
			cfg := repository(t)
			cfg.Lines, cfg.Run = []string{"0.33"}, []string{"0.33/self-test/" + test.fault}
			cfg.runner = func(r conformance.Runner) runs { return &blinded{r, test.blind} }
			report, err := Run(t.Context(), cfg)
			require.NoError(t, err)
			r := report.Results[0]
			if len(report.Results) != 1 || r.Verdict != conformance.Fail || report.ExitCode != conformance.ExitFail {
				t.Fatalf("%d results, %s, exit code %d, want one that fails", len(report.Results), r.Verdict, report.ExitCode)
			}
			if !slices.ContainsFunc(r.Failures, func(f conformance.Failure) bool {
				return f.Code == test.code && strings.Contains(f.Message, test.says)
			}) {
				t.Errorf("no failure %s says %q: %v", test.code, test.says, r.Failures)
			}
		})
	}
}

// TestSelection: what is asked for is played, or it is an error that says what is
// wrong with it.
func TestSelection(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		want   []string // names of cases
		says   string   // in the error
	}{
		{
			"one fault of a line by its tag", func(c *Config) { c.Lines, c.Run = []string{"v0.27.1"}, []string{"**/late-*"} },
			[]string{"0.27/self-test/late-output", "0.27/self-test/late-token"},
			"",
		},
		{"without some", func(c *Config) {
			c.Lines, c.Run, c.Skip = []string{"0.27"}, []string{"**/late-*"}, []string{"*/self-test/late-token"}
		}, []string{"0.27/self-test/late-output"}, ""},
		{
			"three lines", func(c *Config) { c.Run = []string{"**/call-id"} },
			[]string{"0.33/self-test/call-id", "0.29/self-test/call-id", "0.25/self-test/call-id"},
			"",
		},
		{"a case by its name", func(c *Config) { c.Run = []string{"0.31/self-test/call-id"} }, []string{"0.31/self-test/call-id"}, ""},
		{"unknown line", func(c *Config) { c.Lines = []string{"0.99"} }, nil, `compat.toml has no line "0.99"`},
		{"line without goldens", func(c *Config) { c.Lines = []string{"nightly"} }, nil, "line nightly has no golden of role fidelity"},
		{"no goldens at all", func(c *Config) { c.Manifest = &manifest.Manifest{} }, nil, "no line has a golden of role fidelity"},
		{"unknown fault", func(c *Config) { c.Run = []string{"**/typo"} }, nil, `run: pattern "**/typo" matches no case`},
		{"nothing left", func(c *Config) { c.Skip = []string{"**"} }, nil, "leave no case"},
		{"bad pattern", func(c *Config) { c.Skip = []string{""} }, nil, "self-test: skip: "},
		{"golden away", func(c *Config) {
			c.Store = conformance.NewStore(conformance.StoreOptions{Dir: filepath.Join("testdata", "none")})
		}, nil, "self-test of line 0.33: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := repository(t)
			test.change(&cfg)
			entries, err := List(t.Context(), cfg)
			if got := errorText(err); got == "" != (test.says == "") || !strings.Contains(got, test.says) {
				t.Fatalf("error %q, want %q in it", got, test.says)
			}
			var names []string
			for _, e := range entries {
				names = append(names, e.Case.Name())
				require.True(t, e.Says != "" && e.Case.Skip == "", "%s: says %q, skip %q", e.Case.Name(), e.Says, e.Case.Skip)
			}
			require.True(t, slices.Equal(names, test.want), "got %q, want %q", names, test.want)
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestMissingGolden: who cannot have a golden learns which, and why.
func TestMissingGolden(t *testing.T) {
	cfg := repository(t)
	cfg.Store = conformance.NewStore(conformance.StoreOptions{Dir: t.TempDir()})
	if _, err := Run(t.Context(), cfg); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "edge-s1-") {
		t.Errorf("got %v, want the name of a file that does not exist", err)
	}
}

// TestNothingToShow: a fault whose checks have no golden is skipped and says so.
func TestNothingToShow(t *testing.T) {
	cfg := repository(t)
	cfg.Lines, cfg.Run = []string{"0.33"}, []string{"**/short-output", "**/split-chunk", "**/other-line", "**/wrong-size", "**/no-fault"}
	mf := *cfg.Manifest
	mf.Goldens = slices.DeleteFunc(slices.Clone(mf.Goldens), func(g manifest.Golden) bool { return g.Line != "0.33" || g.ID != "edge-s1" })
	mf.Goldens[0].Size = 0
	cfg.Manifest = &mf
	report, err := Run(t.Context(), cfg)
	require.NoError(t, err)
	for _, r := range report.Results {
		want := conformance.Skip
		if r.Case.Assertion == "no-fault" {
			want = conformance.Pass
		}
		require.True(t, r.Verdict == want && (want != conformance.Skip || r.Note != ""), "%s: %s %q %v, want %s", r.Case.Name(), r.Verdict, r.Note, r.Failures, want)
	}
}

// TestRedWithoutFault: where a check is red already nothing can be learnt from a
// fault, which is said of each.
func TestRedWithoutFault(t *testing.T) {
	cfg := repository(t)
	cfg.Lines, cfg.Run = []string{"0.33"}, []string{"**/late-output", "**/no-fault"}
	mf := *cfg.Manifest
	mf.Goldens = slices.Clone(mf.Goldens)
	for i := range mf.Goldens {
		mf.Goldens[i].ConfigHash = noHash
	}
	cfg.Manifest = &mf
	report, err := Run(t.Context(), cfg)
	require.NoError(t, err)
	control, fault := report.Results[0], report.Results[1]
	require.True(t, control.Verdict == conformance.Fail && control.Failures[0].Code == CodeWrongCheck, "the control: %s %v", control.Verdict, control.Failures)
	if fault.Verdict != conformance.Error || fault.Failures[0].Code != CodeNotPlayed ||
		!strings.Contains(fault.Failures[0].Message, "without a fault, 0.33/edge-s1/provenance is fail: P002") {
		t.Errorf("the fault: %s %v", fault.Verdict, fault.Failures)
	}
}

// TestInterrupted: what was not played to its end is an error around the runner.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := repository(t)
	cfg.Lines, cfg.Run = []string{"0.33"}, []string{"**/silent-*"}
	cfg.runner = func(r conformance.Runner) runs {
		cancel() // the first fault is about to be played
		return &r
	}
	report, err := Run(ctx, cfg)
	require.NoError(t, err)
	require.True(t, report.ExitCode == conformance.ExitInfra, "exit code %d (%s), want %d", report.ExitCode, report.Reason, conformance.ExitInfra)
	for _, r := range report.Results {
		require.True(t, r.Verdict == conformance.Error && strings.Contains(r.Failures[0].Message, "not run: context canceled"), "%s: %s %v", r.Case.Name(), r.Verdict, r.Failures)
	}
}

// BenchmarkSelfTest plays everything on three lines.
func BenchmarkSelfTest(b *testing.B) {
	for b.Loop() {
		if report, err := Run(b.Context(), repository(b)); err != nil || report.ExitCode != 0 {
			b.Fatal(err, report)
		}
	}
}
