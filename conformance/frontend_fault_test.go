package conformance

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// toyCases are the cases of a toy of line 0.33, all or some of them.
func toyCases(mf *manifest.Manifest, assertions ...Assertion) []Case {
	return frontendsuite.Cases(compat.Line{Name: "0.33", Tag: "v0.33.0"}, mf, assertions, true)
}

// toyReport runs the suite on a toy of line 0.33.
func toyReport(t *testing.T, fault string, limit time.Duration, assertions ...Assertion) *Report {
	t.Helper()
	front := startToy(t, "0.33", fault)
	cases := toyCases(&manifest.Manifest{}, assertions...)
	require.NoError(t, front.Check(cases))
	runner := Runner{Store: NewStore(StoreOptions{}), Frontend: front, Timeouts: Timeouts{Connect: 10 * time.Second, Idle: limit}}
	return runner.Run(t.Context(), cases)
}

func TestFrontendSuiteOnAToy(t *testing.T) {
	front := startToy(t, "0.33", "")
	cases := toyCases(&manifest.Manifest{})
	var log bytes.Buffer
	runner := Runner{Store: NewStore(StoreOptions{}), Frontend: front, Log: slog.New(slog.NewTextHandler(&log, nil))}
	report := runner.Run(t.Context(), cases)
	if text := log.String(); strings.Contains(text, "level=ERROR") || strings.Contains(text, "level=WARN") || !strings.Contains(text, "request refused") {
		t.Errorf("nothing is wrong, and the log has %s", text)
	}
	for _, r := range report.Results {
		if r.Case.Assertion == frontendsuite.RealEngine && r.Verdict == Skip {
			continue // the manifest is empty
		}
		if r.Verdict != Pass || r.Asserted == 0 {
			t.Errorf("%s: %s (%s), %d asserted: %+v", r.Case.Name(), r.Verdict, r.Note, r.Asserted, r.Failures)
		}
	}
	if len(report.Results) != len(AssertionsOf(SuiteFrontend)) {
		t.Errorf("%d results, want one an assertion", len(report.Results))
	}
}

func TestDemotedLog(t *testing.T) {
	var log bytes.Buffer
	quiet := slog.New(frontendsuite.Demoted{Handler: slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})})
	if quiet.Error("refused"); log.Len() > 0 {
		t.Errorf("a log of warnings has %s", &log)
	}
}

// A frontend whose tokenizer begins the first word with a blank, too, is as good as
// any; and one that does not tell token ids, of which none are counted then.
func TestFrontendSuiteOnOtherToys(t *testing.T) {
	for _, test := range []struct {
		kind   string
		tokens bool
		note   string
	}{
		{"a blank first", true, ""},
		{"no ids", false, "token ids are not in its answers"},
	} {
		t.Run(test.kind, func(t *testing.T) {
			for _, r := range toyReport(t, test.kind, 10*time.Second, frontendsuite.Completions, frontendsuite.Chat, frontendsuite.Finish).Results {
				told := r.Case.Assertion != frontendsuite.Finish
				if r.Verdict != Pass || (r.Tokens > 0) != (test.tokens && told) || told && !strings.Contains(r.Note, test.note) {
					t.Errorf("%s: %s (%s), %d tokens: %+v", r.Case.Name(), r.Verdict, r.Note, r.Tokens, r.Failures)
				}
			}
		})
	}
}

// Each fault of a frontend is found, by the assertion that is about it.
func TestFrontendSuiteFindsFaults(t *testing.T) {
	const soon = 300 * time.Millisecond // for what never comes
	tests := []struct {
		fault     string
		assertion Assertion
		code      Code
		path      string
	}{
		{"words for numbers", frontendsuite.Requests, frontendsuite.CodeMessage, "EngineCoreRequest.sampling_params.max_tokens"},
		{"unknown key", frontendsuite.Requests, frontendsuite.CodeMessage, "EngineCoreRequest.sampling_params.best_of"},
		{"no temperature", frontendsuite.Requests, frontendsuite.CodeCarried, "EngineCoreRequest.sampling_params.temperature"},
		{"arrival in the past", frontendsuite.Requests, frontendsuite.CodeCarried, "EngineCoreRequest.arrival_time"},
		{"one id for all", frontendsuite.Requests, frontendsuite.CodeCarried, "EngineCoreRequest.request_id"},
		{"a prompt of another", frontendsuite.Requests, frontendsuite.CodeNoRequest, "EngineCoreRequest.prompt_token_ids"},
		{"keeps requests", frontendsuite.Requests, frontendsuite.CodeHangs, ""},
		{"ends", frontendsuite.Chat, frontendsuite.CodeEnded, ""},
		{"hangs", frontendsuite.Chat, frontendsuite.CodeHangs, ""},
		{"serves no more", frontendsuite.Chat, frontendsuite.CodeHealth, ""},
		{"loses tokens", frontendsuite.Completions, frontendsuite.CodeHTTPTokens, "choices[0].token_ids"},
		{"miscounts", frontendsuite.Completions, frontendsuite.CodeHTTPUsage, "usage"},
		{"no usage in streams", frontendsuite.Usage, frontendsuite.CodeHTTPUsage, "usage"},
		{"usage unasked", frontendsuite.Usage, frontendsuite.CodeHTTPUsage, "usage"},
		{"miscounts the cache", frontendsuite.Usage, frontendsuite.CodeHTTPUsage, "usage.prompt_tokens_details.cached_tokens"},
		{"always stops", frontendsuite.Chat, frontendsuite.CodeHTTPFinish, "choices[0].finish_reason"},
		{"shouts in streams", frontendsuite.Chat, frontendsuite.CodeStreamed, "choices[0].message.content"},
		{"shouts in streams", frontendsuite.Streaming, frontendsuite.CodeStreamed, "choices[0].text"},
		{"plain streams", frontendsuite.Streaming, frontendsuite.CodeEvents, ""},
		{"no space after data", frontendsuite.Streaming, frontendsuite.CodeEvents, ""},
		{"no DONE", frontendsuite.Streaming, frontendsuite.CodeEvents, ""},
		{"ends twice", frontendsuite.Streaming, frontendsuite.CodeHTTPFinish, "choices[0].finish_reason"},
		{"streams at the end", frontendsuite.Streaming, frontendsuite.CodeHangs, "choices[0]"},
		{"no stop reason", frontendsuite.Finish, frontendsuite.CodeHTTPFinish, "choices[0].stop_reason"},
		{"no stop strings", frontendsuite.Finish, frontendsuite.CodeHangs, ""},
		{"no abort", frontendsuite.Aborts, frontendsuite.CodeNoAbort, "EngineCoreRequest.request_id"},
		{"aborts another", frontendsuite.Aborts, frontendsuite.CodeNoAbort, "EngineCoreRequest.request_id"},
		{"no abort", frontendsuite.Finish, frontendsuite.CodeNoAbort, "EngineCoreRequest.request_id"},
		{"no call", frontendsuite.Utilities, frontendsuite.CodeNoCall, "UtilityCall.method"},
		{"another call", frontendsuite.Utilities, frontendsuite.CodeNoCall, "UtilityCall.method"},
		{"a call with words", frontendsuite.Utilities, frontendsuite.CodeMessage, "UtilityCall.reset_prefix_cache.reset_running_requests"},
		{"fails after the call", frontendsuite.Utilities, frontendsuite.CodeHTTP, "UtilityCall.reset_prefix_cache"},
		{"an adapter of 0.31", frontendsuite.LoRA, frontendsuite.CodeMessage, "UtilityCall.add_lora.lora_request.load_inplace"},
		{"drops kv_transfer_params", frontendsuite.Transfer, frontendsuite.CodeCarried, "EngineCoreRequest.sampling_params.extra_args.kv_transfer_params"},
		{"forgets kv_transfer_params", frontendsuite.Transfer, frontendsuite.CodeTransfer, "kv_transfer_params"},
		{"errors are fine", frontendsuite.Errors, frontendsuite.CodeAccepted, "choices[0].finish_reason"},
		{"any model", frontendsuite.Errors, frontendsuite.CodeAccepted, ""},
		{"takes anything", frontendsuite.Errors, frontendsuite.CodeAccepted, ""},
		{"healthy for ever", frontendsuite.Health, frontendsuite.CodeHealth, ""},
		{"waits for the dead", frontendsuite.Health, frontendsuite.CodeHangs, ""},
		{"loses tokens", frontendsuite.Concurrency, frontendsuite.CodeHTTPTokens, "choices[0].token_ids"},
	}
	for _, test := range tests {
		t.Run(test.fault+"/"+string(test.assertion), func(t *testing.T) {
			t.Parallel()
			limit := 10 * time.Second
			if slices.Contains([]Code{frontendsuite.CodeHangs, frontendsuite.CodeNoAbort, frontendsuite.CodeNoCall, frontendsuite.CodeHealth}, test.code) {
				limit = soon
			}
			r := toyReport(t, test.fault, limit, test.assertion).Results[0]
			found := slices.ContainsFunc(r.Failures, func(f Failure) bool { return f.Code == test.code && f.Path == test.path })
			if r.Verdict != Fail || !found {
				t.Errorf("%s, want %s %s among %+v", r.Verdict, test.code, test.path, r.Failures)
			}
			for _, f := range r.Failures {
				if strings.TrimSpace(f.Message) == "" || !strings.HasPrefix(string(f.Code), "H") {
					t.Errorf("failure without a message, or of another letter: %+v", f)
				}
			}
		})
	}
}

// A case that takes too long could not be judged: its frontend is not blamed for what
// did not come any more, and neither is one whose run is interrupted.
func TestFrontendCasesThatAreCutShort(t *testing.T) {
	front := startToy(t, "0.33", "keeps requests")
	cases := toyCases(&manifest.Manifest{}, frontendsuite.Completions)
	runner := Runner{
		Store: NewStore(StoreOptions{}), Frontend: front,
		Timeouts: Timeouts{Connect: 10 * time.Second, Idle: time.Minute, Golden: 200 * time.Millisecond},
	}
	r := runner.Run(t.Context(), cases).Results[0]
	if r.Verdict != Error || len(r.Failures) != 1 || r.Failures[0].Code != check.CodeDeadline {
		t.Errorf("%s, want an error for the deadline alone: %+v", r.Verdict, r.Failures)
	}
}

// A frontend that somebody else started has one engine: what comes after its end is
// not judged, and says why.
func TestNothingIsJudgedWithoutTheEngine(t *testing.T) {
	front := startToy(t, "0.33", "")
	cases := toyCases(&manifest.Manifest{}, frontendsuite.Chat, frontendsuite.Health)
	slices.Reverse(cases)
	runner := Runner{Store: NewStore(StoreOptions{}), Frontend: front}
	results := runner.Run(t.Context(), cases).Results
	if results[0].Verdict != Pass || results[1].Verdict != Skip || !strings.HasSuffix(results[1].Note, "see health") {
		t.Errorf("%s (%+v), then %s (%s)", results[0].Verdict, results[0].Failures, results[1].Verdict, results[1].Note)
	}
}

// A recorded session of a real engine is played to a frontend, which answers as recorded and survives what no player says.
func TestRealEngineOnToys(t *testing.T) {
	_, mf := repository(t)
	tests := []struct {
		fault string
		code  Code // empty if it passes
		says  string
	}{
		{"", "", ""},
		{"loses tokens", frontendsuite.CodeHTTPTokens, "recorded request "},
		{"dies of real statistics", frontendsuite.CodeHealth, "the frontend has stopped serving after: "},
	}
	for _, test := range tests {
		t.Run(test.fault, func(t *testing.T) {
			t.Parallel()
			front := startToy(t, "0.33", test.fault)
			cases := toyCases(mf, frontendsuite.RealEngine)
			limit := 10 * time.Second
			if test.code == frontendsuite.CodeHealth {
				limit = 300 * time.Millisecond
			}
			runner := Runner{Store: NewStore(StoreOptions{Dir: "../testdata/goldens"}), Frontend: front, Timeouts: Timeouts{Connect: 10 * time.Second, Idle: limit}}
			r := runner.Run(t.Context(), cases).Results[0]
			if test.code == "" {
				if r.Verdict != Pass || r.Asserted < 200 || r.Tokens < 500 || !strings.HasPrefix(r.Note, "152 messages of frames-busy, which answered ") {
					t.Errorf("%s, %d asserted, %d tokens, %q: %+v", r.Verdict, r.Asserted, r.Tokens, r.Note, r.Failures)
				}
				return
			}
			found := slices.ContainsFunc(r.Failures, func(f Failure) bool { return f.Code == test.code && strings.Contains(f.Message, test.says) })
			if r.Verdict != Fail || !found {
				t.Errorf("%s, want %s: %q among %+v", r.Verdict, test.code, test.says, r.Failures)
			}
		})
	}
}
