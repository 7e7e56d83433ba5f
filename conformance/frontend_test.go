package conformance

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// realUnderTest starts the vllm-rs of a release as anybody would, with the routes and
// counts that are off by default.
func realUnderTest(t *testing.T, version string) *FrontendUnderTest {
	t.Helper()
	return &FrontendUnderTest{
		Command: "'" + testenv.Frontend(t, version) + "' serve {model} --served-model-name tiny --data-parallel-size 1 --data-parallel-size-local 0" +
			" --data-parallel-address {handshake_host} --data-parallel-rpc-port {handshake_port} --host 127.0.0.1 --port {http_port}" +
			" --engine-ready-timeout-secs 30 --enable-prompt-tokens-details --tool-call-parser hermes" +
			` --profiler-config '{"profiler":"torch","torch_profiler_dir":"` + t.TempDir() + `"}'`,
		Env: []string{
			"VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=" + os.TempDir(),
			"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "NO_COLOR=1",
		},
		Model: testenv.ModelDir(t),
	}
}

// underTest runs the suite on a frontend that is put before a player of a line.
func underTest(t *testing.T, front *FrontendUnderTest, lineName string, limits Timeouts, assertions ...Assertion) *Report {
	t.Helper()
	return underExpectations(t, front, lineName, limits, nil, assertions...)
}

// underExpectations is underTest of a frontend that is known to fail.
func underExpectations(t *testing.T, front *FrontendUnderTest, lineName string, limits Timeouts, known *Expectations, assertions ...Assertion) *Report {
	t.Helper()
	matrix, mf := repository(t)
	line, ok := matrix.ByName(lineName)
	if !ok {
		t.Fatalf("compat.toml has no line %s", lineName)
	}
	cases := frontendsuite.Cases(line, mf, assertions, true)
	require.NoError(t, front.Check(cases))
	every, err := EveryCase(matrix, mf, Selection{})
	require.NoError(t, err)
	runner := liveRunner()
	runner.Frontend, runner.Timeouts, runner.Expectations, runner.All = front, limits, known, every
	return runner.Run(t.Context(), cases)
}

// knownOfFrontends is the file of what released frontends get wrong, and
// placesOfKnown, by pattern, what it cannot say: where. Elsewhere nothing may fail.
const knownOfFrontends = "../testdata/expectations/vllm-rs.toml"

var placesOfKnown = map[string][]string{
	"0.32/frontend/lora": {
		"H003 UtilityCall.add_lora.lora_request.load_inplace", "H003 UtilityCall.add_lora.lora_request[6]",
		"H003 EngineCoreRequest.lora_request.load_inplace", "H003 EngineCoreRequest.lora_request[6]",
	},
}

// absentRoutes are what releases up to these lack.
func absentRoutes(version string) string {
	switch protocol.LineOf(version) {
	case "0.25", "0.26", "0.27", "0.28", "0.29":
		return "no route /release_kv_cache_memory, /weight_info"
	case "0.30":
		return "no route /release_kv_cache_memory"
	}
	return ""
}

// TestFrontendSuiteOnRealFrontends makes every assertion of the vllm-rs of each
// release, before a player of its line.
func TestFrontendSuiteOnRealFrontends(t *testing.T) {
	known, findings := LoadExpectations(knownOfFrontends)
	for _, f := range findings {
		t.Error(f)
	}
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			report := underExpectations(t, realUnderTest(t, version), protocol.LineOf(version), Timeouts{}, known)
			require.Equal(t, report.ExitCode, ExitOK, "exit code: %s %v", report.Reason, report.Problems)
			notes := map[Assertion]string{}
			for _, r := range report.Results {
				t.Logf("%s: %s: %d asserted, %d tokens, %v: %s", r.Case.Name(), r.Verdict, r.Asserted, r.Tokens, r.Duration.Round(time.Millisecond), r.Note)
				want := Pass
				if r.Expected != nil {
					want = XFail
				}
				if diff := cmp.Diff(placesOfKnown[r.Case.Name()], placesOf(r)); diff != "" || r.Verdict != want || r.Asserted == 0 {
					t.Errorf("%s: %s, failures (-want +got):\n%s%+v", r.Case.Name(), r.Verdict, diff, r.Failures)
				}
				if r.Note != "" {
					notes[r.Case.Assertion] = r.Note
				}
			}
			if played := notes[frontendsuite.RealEngine]; !playedSession.MatchString(played) {
				t.Errorf("the note of %s is %q", frontendsuite.RealEngine, played)
			}
			delete(notes, frontendsuite.RealEngine)
			want := map[Assertion]string{frontendsuite.Requests: "n=2: not taken (status 400)"}
			if absent := absentRoutes(version); absent != "" {
				want[frontendsuite.Utilities] = absent
			}
			require.NoDiff(t, cmp.Diff(want, notes), "notes (-want +got)")

			sockets := "--input-listener-fd {input_fd} --output-listener-fd {output_fd}"
			if protocol.LineOf(version) < "0.32" {
				sockets = "--input-address {input_address} --output-address {output_address}"
			}
			given := &FrontendUnderTest{Model: testenv.ModelDir(t), Command: "'" + testenv.Frontend(t, version) + "' frontend --listen-fd {http_fd} " + sockets +
				` --args-json '{"model_tag":"{model}"}'`}
			if report := underTest(t, given, protocol.LineOf(version), Timeouts{}, frontendsuite.Handshake, frontendsuite.Streaming); report.ExitCode != ExitOK {
				t.Errorf("given sockets instead of a handshake: %s %+v", report.Reason, report.Results)
			}
		})
	}
}

// playedSession is the note on the session of a real engine: a frontend of the line refuses none of its requests.
var playedSession = regexp.MustCompile(`^\d{3} messages of frames-busy, which answered \d\d requests$`)

func placesOf(r Result) []string {
	var places []string
	for _, f := range r.Failures {
		places = append(places, string(f.Code)+" "+f.Path)
	}
	return places
}

// A frontend before a player of another line is distinguished by the first thing that
// does not fit, and never hangs.
func TestFrontendSuiteOnTheWrongLine(t *testing.T) {
	tests := []struct {
		frontend, line string
		at             []Assertion // that fail; what comes after the first of them is not judged if the frontend is lost
		want           []string    // code, path, and what the message says
	}{
		{"0.33.0", "0.27", []Assertion{frontendsuite.Handshake}, []string{
			"H001 EngineCoreReadyResponse registers without supports_lora, max_loras, which frontends of 0.29–" + protocol.Newest() + " require",
			"H001 EngineCoreReadyResponse missing field `supports_lora`",
		}},
		{"0.27.1", "0.33", []Assertion{frontendsuite.Requests}, []string{
			"H003 EngineCoreRequest expected 22 fields, found 20 fields: without session_id, kv_hints",
			"H003 EngineCoreRequest this is the layout of 0.25–0.27",
			"H017  array had incorrect length, expected 14",
		}},
		{"0.33.0", "0.32", []Assertion{frontendsuite.Requests, frontendsuite.LoRA, frontendsuite.Utilities}, []string{
			`H004 EngineCoreRequest.sampling_params.structured_outputs._backend = "xgrammar", but the vllm-rs of line 0.32 sends "guidance"`,
			`H003 UtilityCall.method found "pause_generation" (byte 3): a method of 0.33`,
		}},
	}
	for _, test := range tests {
		t.Run(test.frontend+" on "+test.line, func(t *testing.T) {
			report := underTest(t, realUnderTest(t, test.frontend), test.line, Timeouts{})
			require.Equal(t, report.ExitCode, ExitFail, "exit code: %s", report.Reason)
			var failures []Failure
			for _, r := range report.Results {
				failures = append(failures, r.Failures...)
				if !slices.Contains(test.at, r.Case.Assertion) && r.Verdict != Pass && (r.Verdict != Skip || !strings.Contains(r.Note, "see "+string(test.at[0]))) {
					t.Errorf("%s: %s (%s) %+v", r.Case.Name(), r.Verdict, r.Note, r.Failures)
				}
			}
			for _, want := range test.want {
				require.True(t, slices.ContainsFunc(failures, func(f Failure) bool { return tells(f, want) }), "no failure %q among %+v", want, failures)
			}
		})
	}
}

// tells compares a failure with "CODE PATH part of the message".
func tells(f Failure, want string) bool {
	code, rest, _ := strings.Cut(want, " ")
	path, text, _ := strings.Cut(rest, " ")
	return string(f.Code) == code && f.Path == path && strings.Contains(f.Message, text)
}

// Where the engine was taken away, a frontend that is started by a command is started
// again.
func TestFrontendsAreStartedAgain(t *testing.T) {
	matrix, _ := repository(t)
	line, _ := matrix.ByName(protocol.Newest())
	cases := frontendsuite.Cases(line, &manifest.Manifest{}, []Assertion{frontendsuite.Chat, frontendsuite.Health}, true)
	slices.Reverse(cases)
	runner := Runner{Store: NewStore(StoreOptions{}), Frontend: realUnderTest(t, line.Tag[1:])}
	report := runner.Run(t.Context(), cases)
	for _, r := range report.Results {
		require.Equal(t, r.Verdict, Pass, "%s: (%s) %+v", r.Case.Name(), r.Note, r.Failures)
	}
	require.Equal(t, report.Subject.Versions[line.Name], line.Tag[1:], "version of the frontend of %s", line.Tag)
}

// A released frontend without the variables that switch its routes for adapters on is not judged by them, and the verdict says which they are.
func TestFrontendWithoutItsVariables(t *testing.T) {
	version := testenv.FrontendVersions()[0]
	front := realUnderTest(t, version)
	front.Env = []string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "NO_COLOR=1"}
	report := underTest(t, front, protocol.LineOf(version), Timeouts{}, frontendsuite.LoRA, frontendsuite.Health)
	require.Equal(t, report.ExitCode, ExitOK, "exit code")
	for _, name := range []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES="} {
		require.Contains(t, report.Reason, name)
	}
}

// What is no frontend, or none that works, is reported with its last words, in time,
// and leaves nothing behind.
func TestFrontendsThatDoNotServe(t *testing.T) {
	tests := []struct {
		name, script string
		want         []string
	}{
		{"ends at once", `echo '::error::not me' >&2; exit 3`, []string{"H001", "exit status 3", "| ::error::not me"}},
		{"never listens", `echo waiting; exec sleep 600`, []string{"H001", "did not answer HELLO on tcp://127.0.0.1:", "does not serve within 1s", "| waiting"}},
		{"floods its log", `sleep 600 & echo $! > child; while :; do echo '##[error]flood'; done`, []string{"H001", "does not serve within 1s", "| # #[error]flood"}},
		{"is not there", "", []string{"R009", "no such file"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if test.script != "" {
				testenv.WriteProgram(t, filepath.Join(dir, "frontend"), "#!/bin/sh\n"+test.script+"\n")
			}
			front := &FrontendUnderTest{Command: dir + "/frontend {handshake} {http_port}", Dir: dir, ReadyTimeout: time.Second}
			report := underTest(t, front, "0.33", Timeouts{})
			first := report.Results[0]
			text := ""
			for _, f := range first.Failures {
				text += string(f.Code) + " " + f.Message + "\n"
			}
			for _, want := range test.want {
				require.Contains(t, text, want)
			}
			require.True(t, !strings.Contains(text, "\n::error") && !strings.Contains(text, "##["), "a command of the frontend's got through: %s", text)
			for _, r := range report.Results[1:] {
				require.True(t, r.Verdict == Skip && strings.Contains(r.Note, "see handshake"), "%s: %s (%s), want not judged", r.Case.Name(), r.Verdict, r.Note)
			}
			require.True(t, first.Verdict.Red() && report.ExitCode != ExitOK, "%s, exit code %d", first.Verdict, report.ExitCode)
			isGone(t, filepath.Join(dir, "child"))
		})
	}
}

// isGone checks that the process whose id is in a file has ended.
func isGone(t *testing.T, file string) {
	t.Helper()
	pid, err := os.ReadFile(file)
	if err != nil {
		return // it started none
	}
	// A process of ours that ended and was not waited for is a zombie: its command
	// line is empty.
	line, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "cmdline"))
	require.True(t, err != nil || len(line) == 0, "process %s, which the frontend started, is still there: %q", pid, line)
}

func TestFrontendUnderTestCheck(t *testing.T) {
	const sound = "front {handshake} {http_port}"
	one, two := []Case{{Line: compat.Line{Name: "0.33"}}}, []Case{{Line: compat.Line{Name: "0.33"}}, {Line: compat.Line{Name: "0.32"}}}
	tests := []struct {
		name  string
		front FrontendUnderTest
		cases []Case
		want  string // empty for none
	}{
		{"a command", FrontendUnderTest{Command: sound}, two, ""},
		{"a port", FrontendUnderTest{Command: "front --port={handshake_port} {http_port}"}, two, ""},
		{"its own URL", FrontendUnderTest{Command: "front {handshake}", URL: "http://127.0.0.1:8000"}, two, ""},
		{"nothing", FrontendUnderTest{}, one, "one that is running needs its URL"},
		{"quotes", FrontendUnderTest{Command: "front '{handshake}"}, one, "single-quoted"},
		{"unknown placeholder", FrontendUnderTest{Command: sound + " {port}"}, one, "unknown placeholder {port}: want one of {handshake}"},
		{"unknown placeholder in the URL", FrontendUnderTest{Command: sound, URL: "http://{host}"}, one, "unknown placeholder {host}"},
		{"no handshake", FrontendUnderTest{Command: "front {http_port}"}, one, "neither {handshake} nor {handshake_port}"},
		{"addresses", FrontendUnderTest{Command: "front {input_address} {output_address} {http_port}"}, two, ""},
		{"sockets", FrontendUnderTest{Command: "front {input_fd} {output_fd} {http_fd}"}, two, ""},
		{"one address", FrontendUnderTest{Command: "front {input_address} {http_port}"}, one, "only one of {input_address} and {output_address}"},
		{"addresses and a handshake", FrontendUnderTest{Command: sound + " {input_fd} {output_fd}"}, one, "a handshake and {input_address}"},
		{"no HTTP side", FrontendUnderTest{Command: "front {handshake}"}, one, "its HTTP side is unknown"},
		{"no model", FrontendUnderTest{Command: sound + " {model}"}, one, "{model} needs a model"},
		{"two handshakes", FrontendUnderTest{Command: sound, Handshake: "tcp://127.0.0.1:1"}, one, "of a frontend that is running"},
		{"running", FrontendUnderTest{URL: "http://127.0.0.1:1", Handshake: "tcp://127.0.0.1:2"}, one, ""},
		{"running on two lines", FrontendUnderTest{URL: "http://127.0.0.1:1", Handshake: "tcp://127.0.0.1:2"}, two, "of 2 lines: select one"},
		{"running nowhere", FrontendUnderTest{URL: "http://127.0.0.1:1", Handshake: "127.0.0.1:2"}, one, "want tcp://HOST:PORT"},
		{"running at a placeholder", FrontendUnderTest{URL: "http://127.0.0.1:{http_port}", Handshake: "tcp://127.0.0.1:2"}, one, "placeholders are of a command"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.front.Check(test.cases)
			require.ErrorText(t, err, test.want)
		})
	}
}

// startedFrontend is the vllm-rs of the newest line, which runs already.
func startedFrontend(t *testing.T) (*FrontendUnderTest, compat.Line) {
	t.Helper()
	matrix, _ := repository(t)
	line, _ := matrix.ByName(protocol.Newest())
	server, err := vllmrs.Start(t.Context(), vllmrs.Options{Binary: testenv.Frontend(t, line.Tag[1:]), ModelDir: testenv.ModelDir(t)})
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	return &FrontendUnderTest{Handshake: server.Handshake(), URL: server.URL()}, line
}

// A frontend that somebody else started has one engine: what comes after its end is
// not judged, and says why.
func TestNothingIsJudgedWithoutTheEngine(t *testing.T) {
	front, line := startedFrontend(t)
	cases := frontendsuite.Cases(line, &manifest.Manifest{}, []Assertion{frontendsuite.Chat, frontendsuite.Health}, true)
	slices.Reverse(cases)
	runner := Runner{Store: NewStore(StoreOptions{}), Frontend: front}
	results := runner.Run(t.Context(), cases).Results
	if results[0].Verdict != Pass || results[1].Verdict != Skip || !strings.HasSuffix(results[1].Note, "see health") {
		t.Errorf("%s (%+v), then %s (%s)", results[0].Verdict, results[0].Failures, results[1].Verdict, results[1].Note)
	}
}

// A frontend that takes no token ids as a prompt is judged by texts, and one that takes no completions by chats; the report says so once.
func TestFrontendsWithoutTokenIDs(t *testing.T) {
	for _, test := range []struct {
		name, note string
		refuses    func(path, body string) bool
	}{
		{"text", "the frontend takes no token ids as a prompt", func(_, body string) bool { return strings.Contains(body, `"prompt":[`) }},
		{"chat", "the frontend takes neither token ids nor a text", func(path, _ string) bool { return path == "/v1/completions" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			front, line := startedFrontend(t)
			target, err := url.Parse(front.URL)
			require.NoError(t, err)
			proxy := httputil.NewSingleHostReverseProxy(target)
			proxy.FlushInterval, proxy.ErrorLog = -1, log.New(io.Discard, "", 0)
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || test.refuses(r.URL.Path, string(body)) {
					http.Error(w, `{"error":{"message":"no such prompt"}}`, http.StatusBadRequest)
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				proxy.ServeHTTP(w, r)
			}))
			defer gateway.Close()
			front.URL = gateway.URL
			notes := 0
			report := underTest(t, front, line.Name, Timeouts{}, frontendsuite.Requests, frontendsuite.Completions, frontendsuite.Chat, frontendsuite.Streaming,
				frontendsuite.Usage, frontendsuite.Finish, frontendsuite.Aborts, frontendsuite.Concurrency, frontendsuite.Errors, frontendsuite.Transfer, frontendsuite.RealEngine)
			for _, r := range report.Results {
				notes += strings.Count(r.Note, test.note)
				require.True(t, r.Verdict == Pass && r.Asserted != 0, "%s: %s (%s) %+v", r.Case.Name(), r.Verdict, r.Note, r.Failures)
			}
			require.Equal(t, notes, 1, "notes %q", test.note)
		})
	}
}

// A frontend that was started without a KV connector may end of the statistics of one: that is not its fault.
func TestFrontendWithoutAConnector(t *testing.T) {
	front, line := startedFrontend(t)
	target, err := url.Parse(front.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	var ended atomic.Bool
	python := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if ended.Load() || bytes.Contains(body, []byte(`"do_remote_prefill":true`)) {
			ended.Store(true)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	defer python.Close()
	front.URL = python.URL
	report := underTest(t, front, line.Name, Timeouts{}, frontendsuite.Completions, frontendsuite.RealEngine, frontendsuite.Transfer)
	for i, want := range []Assertion{frontendsuite.Completions, frontendsuite.RealEngine, frontendsuite.Transfer} {
		if r := report.Results[i]; r.Case.Assertion != want || r.Verdict != Pass {
			t.Errorf("%s: %s (%s), want %s passed: %+v", r.Case.Name(), r.Verdict, r.Note, want, r.Failures)
		}
	}
	require.Contains(t, report.Results[2].Needs, "--kv-transfer-config")
}

// A case that takes too long could not be judged: its frontend is not blamed for what did not come any more.
func TestFrontendCasesThatAreCutShort(t *testing.T) {
	front, line := startedFrontend(t)
	cases := frontendsuite.Cases(line, &manifest.Manifest{}, []Assertion{frontendsuite.Completions}, true)
	runner := Runner{Store: NewStore(StoreOptions{}), Frontend: front, Timeouts: Timeouts{Idle: time.Minute, Golden: time.Millisecond}}
	r := runner.Run(t.Context(), cases).Results[0]
	require.True(t, r.Verdict == Error && len(r.Failures) == 1 && r.Failures[0].Code == check.CodeDeadline, "%s, want an error for the deadline alone: %+v", r.Verdict, r.Failures)
}
