package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/coverage"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

var (
	newest  = compat.Line{Name: "0.33", Tag: "v0.33.0", FidelityValidated: true, Pos: 12}
	oldest  = compat.Line{Name: "0.27", Tag: "v0.27.1", Pos: 40}
	nightly = compat.Line{Name: "nightly", Tag: "nightly", Pos: 6}
)

// someRun is what the documents of the tests say of their run.
func someRun() Meta {
	return Meta{
		Tool: Tool{Name: "vllm-vcr", Version: "v1.2.3", Commit: "0123456789ab"}, OS: "linux", Arch: "amd64",
		Started:   time.Date(2026, 11, 21, 16, 33, 0, 123456789, time.UTC),
		Arguments: []string{"vllm-vcr", "conform", "--bucket=s3://goldens/main"},
		Inputs:    []Input{{"compat.toml", strings.Repeat("ab", 32)}},
		Root:      "/repo", Dir: "/repo/ci", Matrix: "../compat.toml",
		Title: func(c conformance.Code) string {
			return map[conformance.Code]string{replay.CodeToken: "a token id differs", check.CodeReadyMissing: "a key is missing: it was sent"}[c]
		},
	}
}

// goldenCase is a case of a golden; fidelity ones replay by index, one at a time.
func goldenCase(line compat.Line, golden string, a conformance.Assertion) conformance.Case {
	c := conformance.Case{
		Line: line, Suite: conformance.SuiteReplay, Assertion: a, Gating: line.FidelityValidated,
		Golden: manifest.Golden{ID: golden, SHA256: strings.Repeat("1a", 32), TokensSHA256: strings.Repeat("2b", 32)},
		Entry:  "../conformance/manifest.toml:14",
	}
	if a == conformance.Fidelity {
		c.Variant = conformance.Variant{Match: player.MatchIndex, Concurrency: 1}
	}
	return c
}

func passed(c conformance.Case, tokens int) conformance.Result {
	return conformance.Result{
		Case: c, Verdict: conformance.Pass, Asserted: 2, Tokens: tokens, Duration: 1500 * time.Microsecond,
		Location: "testdata/goldens/" + c.Golden.ID + ".jsonl.gz",
	}
}

// with is the result with another verdict, and failures of a code.
func with(r conformance.Result, v conformance.Verdict, code conformance.Code, messages ...string) conformance.Result {
	r.Verdict = v
	for i, m := range messages {
		r.Failures = append(r.Failures, conformance.Failure{Code: code, Request: i, Position: -1, Frame: -1, Message: m})
	}
	return r
}

// allPassed is a run in which nothing is wrong.
func allPassed() *conformance.Report {
	var results []conformance.Result
	results = append(results, conformance.Result{
		Case:    conformance.Case{Line: nightly, Suite: conformance.SuiteReplay, Skip: "no goldens"},
		Verdict: conformance.Skip, Note: "no goldens",
	})
	for _, a := range conformance.Assertions() {
		tokens := 0
		if a == conformance.Fidelity {
			tokens = 1500
		}
		results = append(results, passed(goldenCase(newest, "multiturn-s7", a), tokens))
	}
	second := passed(goldenCase(newest, "multiturn-s7", conformance.Fidelity), 1500)
	second.Case.Variant.Concurrency = 16
	r := conformance.NewReport(append(results, second), 1234567*time.Microsecond)
	r.Subject = conformance.Description{Kind: "player"}
	return r
}

// hostile is what a file or an engine may say.
const hostile = "meta says \"\n::error::not ours\x1b[31m\" ##[error]nor this </script><img src=x onerror=alert(1)> `|*_[a](b) \x00\xff ]]> @someone"

// allSortsOfWrong is a run with every verdict, on a line that gates and one that
// does not.
func allSortsOfWrong() *conformance.Report {
	long := make([]string, 7)
	for i := range long {
		long[i] = fmt.Sprintf("request %d (line %d): token 11 differs: expected [1 2], got [1 3] (2 expected, 2 received)", i, i+2)
	}
	long[1] = hostile
	fidelity := with(passed(goldenCase(newest, "multiturn-s7", conformance.Fidelity), 24), conformance.Fail, replay.CodeToken, long...)
	fidelity.Note = "tokens_sha256 is not pinned in the manifest: it is 00"
	fidelity.Failures[0].Position = 11
	fidelity.Failures[0].Expected, fidelity.Failures[0].Actual = "[…4 5 6 7 8 9 10 11 1200 13 14…]", "[…4 5 6 7 8 9 10 11 99]"
	fidelity.Failures[1].Position, fidelity.Failures[1].Expected, fidelity.Failures[1].Actual = 0, hostile, "[]"
	schema := passed(goldenCase(newest, "multiturn-s7", conformance.Schema), 0)
	schema.Note = "not sent by the captured engine: max_loras"
	wire := with(passed(goldenCase(newest, "wire-edge-s1", conformance.Wire), 0), conformance.Fail, "W003", "message 12 (line 14): the path has another value")
	wire.Failures[0].Frame, wire.Failures[0].Path = 12, "EngineCoreOutputs.outputs[0].prefill_stats.num_cached_tokens"
	wire.Failures[0].Expected, wire.Failures[0].Actual = "16", "nil"
	behind := with(passed(goldenCase(newest, "multiturn-s7", conformance.Fidelity), 0), conformance.Error, check.CodeFrontend, "vllm-rs: exit status 1")
	behind.Case.Variant = conformance.Variant{
		Match: player.MatchIndex, Concurrency: 16, Stream: true,
		Frontend: conformance.RealFrontend{Binary: "/opt/it's here/vllm-rs", ModelDir: "model"},
	}
	unfetched := with(passed(goldenCase(oldest, "multiturn-s13", conformance.Integrity), 0), conformance.Error, check.CodeFetch, "golden x: no such file")
	unfetched.Infra = true
	unfetched.Location, unfetched.Case.Entry = "", ""
	unjudged := passed(goldenCase(oldest, "multiturn-s13", conformance.SameLine), 0)
	unjudged.Verdict, unjudged.Note, unjudged.Asserted = conformance.Skip, "not judged: see integrity", 0
	r := conformance.NewReport([]conformance.Result{
		passed(goldenCase(newest, "multiturn-s7", conformance.Integrity), 0),
		schema, fidelity, behind, wire,
		with(passed(goldenCase(oldest, "multiturn-s7", conformance.Schema), 0), conformance.Fail, check.CodeReadyMissing, "ready response: x is missing"),
		unfetched, unjudged,
	}, 20*time.Millisecond)
	r.Flags = []string{"--manifest", "my manifest.toml", "--bucket", "s3://goldens/main"}
	r.Coverage = []conformance.Coverage{partlyCovered()}
	return r
}

// partlyCovered is a line of which one field is seen, with all names.
func partlyCovered() conformance.Coverage {
	field := func(name string, direction protocol.Direction, feature string, seen bool) coverage.FieldState {
		return coverage.FieldState{Name: name, Direction: direction, Feature: feature, Seen: seen, Varied: seen, Compared: seen}
	}
	fields := []coverage.FieldState{
		field("EngineCoreRequest.lora_request", protocol.ToEngine, "LoRA", false),
		field("EngineCoreOutput.new_token_ids", protocol.ToFrontend, "requests and outputs", true),
	}
	dead := field("SamplingParams.n", protocol.ToEngine, "sampling", false)
	dead.Unreachable = "dead: no released frontend sets it"
	fields = append(fields, dead)
	return conformance.Coverage{
		Line: newest.Name, Fields: coverage.Counts{Declared: 3, Unreachable: 1, Seen: 1, Varied: 1, Compared: 1},
		Directions: []coverage.Way{
			{Direction: protocol.ToEngine, Counts: coverage.Counts{Declared: 2, Unreachable: 1}},
			{Direction: protocol.ToFrontend, Counts: coverage.Counts{Declared: 1, Seen: 1, Varied: 1, Compared: 1}},
		},
		Utilities: coverage.Share{Declared: 2, Seen: 1}, Messages: coverage.Share{Declared: 3, Seen: 3}, Frontends: []string{"vllm-rs"},
		Details: &coverage.Details{
			Fields: fields, Members: []coverage.ItemState{}, Messages: []coverage.ItemState{},
			Utilities: []coverage.ItemState{{Name: "add_lora", Feature: "LoRA"}, {Name: "is_sleeping", Feature: "weights, sleep, pause", Seen: true}},
		},
	}
}

// expectations is a run with cases that are known to fail, and a problem.
func expectations() *conformance.Report {
	known := &conformance.Expectation{
		Pattern: "0.33/**", Outcome: conformance.Fail, Reason: "the engine rounds", Issue: "https://example.org/7",
		Expires: time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC), Pos: "conformance.toml:4",
	}
	xfail := with(passed(goldenCase(newest, "a", conformance.Fidelity), 10), conformance.XFail, replay.CodeToken, "request 0: token 0 differs")
	xpass := with(passed(goldenCase(newest, "b", conformance.Fidelity), 10), conformance.XPass, "")
	flaky := with(passed(goldenCase(newest, "c", conformance.Fidelity), 10), conformance.Flaky, replay.CodeToken, "request 0: token 0 differs")
	xfail.Expected, xpass.Expected, flaky.Expected = known, known, known
	r := conformance.NewReport([]conformance.Result{xfail, xpass, flaky}, time.Millisecond)
	r.Blame(conformance.Failure{
		Code: "X101", Request: -1, Position: -1, Frame: -1,
		Message: "conformance.toml:9: pattern \"0.3/**\" matches no case",
	})
	return r
}

// suites is a run of the suites that have no goldens. One has more assertions than
// a table has columns for.
func suites() *conformance.Report {
	var results []conformance.Result
	for _, line := range []compat.Line{newest, oldest} {
		for _, a := range []conformance.Assertion{"handshake", "abort"} {
			results = append(results, passed(conformance.Case{Line: line, Suite: conformance.SuiteLive, Assertion: a, Gating: true}, 0))
		}
		for i := range widest + 1 {
			c := conformance.Case{Line: line, Suite: conformance.SuiteSelfTest, Assertion: conformance.Assertion(fmt.Sprintf("fault-%02d", i)), Gating: true}
			results = append(results, passed(c, 0))
		}
	}
	results[0] = with(results[0], conformance.Fail, "E001", "the HELLO came twice")
	results[3] = with(results[3], conformance.Fail, "T001", "no case went red")
	for i := range results {
		results[i].Location = ""
	}
	r := conformance.NewReport(results, time.Millisecond)
	r.Subject = conformance.Description{Kind: "engine", Command: "my-engine --port {handshake_port}", Versions: map[string]string{"0.33": "0.33.0", "0.27": "0.27.1"}}
	r.Flags = []string{"--suite", "live", "--engine-command", "my-engine --port {handshake_port}"}
	return r
}

// large is a run of n cases, every tenth of which fails.
func large(n int) *conformance.Report {
	var results []conformance.Result
	for i := range n {
		line := compat.Line{Name: fmt.Sprintf("0.%d", 33-i*9/n), Tag: fmt.Sprintf("v0.%d.0", 33-i*9/n), FidelityValidated: i*9/n < 8}
		c := goldenCase(line, fmt.Sprintf("workload-s%d", i/8), conformance.Fidelity)
		c.Variant.Concurrency = i%8 + 1
		r := passed(c, 5000)
		if i%10 == 3 {
			r = with(r, conformance.Fail, replay.CodeToken, fmt.Sprintf("request %d (line %d): token 40 differs: expected […1 2 3…], got […1 2 4…] (128 expected, 128 received)", i%65, i%65+2))
			r.Failures[0].Position, r.Failures[0].Path = 40, fmt.Sprintf("part_%d", i) // a cause of its own
			r.Failures[0].Expected = "[…911 1022 33 41 5 16 207 18 1733 640 11 1202 13 14 15 16 17…]"
			r.Failures[0].Actual = "[…911 1022 33 41 5 16 207 18 99 640 11 1202 13 14 15 16 17…]"
		}
		results = append(results, r)
	}
	r := conformance.NewReport(results, 90*time.Second)
	r.Subject = conformance.Description{Kind: "engine", Command: "./engine --handshake {handshake}"}
	return r
}
