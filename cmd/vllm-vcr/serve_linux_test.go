package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// served is a running vllm-vcr serve.
type served struct {
	*process.Process
	servedJSON
	line   []byte // that it printed
	stdout *bufio.Reader
}

// startServe starts the command on a free port, behind a real frontend unless args name another one, and returns when
// it is ready.
func startServe(t *testing.T, args ...string) *served {
	t.Helper()
	if !slices.Contains(args, "--frontend") {
		args = append(args, "--frontend", testenv.Frontend(t, "0.33.0"))
	}
	cmd := exec.Command("vllm-vcr", append([]string{"serve", "--port", "0", "--json"}, args...)...)
	out, in := io.Pipe()
	cmd.Stdout = in
	p, err := process.Start(cmd, process.Options{Name: "serve"})
	require.NoError(t, err)
	go func() { <-p.Done(); in.Close() }()
	s := &served{Process: p, stdout: bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = p.Stop(t.Context())
		if t.Failed() {
			t.Log(p.Tail())
		}
	})
	s.next(t)
	return s
}

// next reads the next line that says that requests are answered.
func (s *served) next(t *testing.T) {
	t.Helper()
	var err error
	if s.line, err = s.stdout.ReadBytes('\n'); err == nil {
		err = json.Unmarshal(s.line, &s.servedJSON)
	}
	if err != nil {
		t.Fatalf("%q: %v: %v", s.line, err, s.Tail())
	}
}

// stream begins a completion of so many tokens.
func (s *served) stream(t *testing.T, tokens int) *bufio.Reader {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": s.Models[0], "prompt": "Hi", "max_tokens": tokens, "ignore_eos": true, "stream": true})
	require.NoError(t, err)
	answer, err := http.Post(s.URL+"/v1/completions", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	t.Cleanup(func() { answer.Body.Close() })
	r := bufio.NewReader(answer.Body)
	if first, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(first, "data: ") {
		t.Fatalf("%q, %v", first, err)
	}
	return r
}

// ask sends a request with these headers, a GET without a body, and returns what comes of the answer: a fault may cut
// it.
func (s *served) ask(t *testing.T, path, body string, headers ...string) (status int, header http.Header, text string) {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	all, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header, string(all)
}

// exit is the exit code of the command.
func (s *served) exit() int {
	<-s.Done()
	return s.Exit().Code
}

// SIGTERM lets a stream come to its end, refuses new connections, and ends the command without an error.
func TestServeEndsGently(t *testing.T) {
	s := startServe(t, "some/model", "--inter-token-latency", "10ms", "--quiet", "--faults", "status:503~path=/helth,http-slow:1ns~path=/v1/*,refuse~nobody*,delay:1ns")
	require.NoError(t, testenv.CheckJSON("../../docs/json.md", "serve", s.line))
	taken := exec.Command("vllm-vcr", "serve", "--port", s.URL[strings.LastIndex(s.URL, ":")+1:])
	out, err := taken.CombinedOutput()
	require.True(t, taken.ProcessState.ExitCode() == 3 && strings.Contains(string(out), "address already in use: choose another --port"), "on a port in use: %v: %s", err, out)
	stream := s.stream(t, 100)
	require.NoError(t, syscall.Kill(s.Pid(), syscall.SIGTERM))
	rest, err := io.ReadAll(stream)
	if chunks := strings.Count(string(rest), `"text":`); err != nil || chunks < 90 || !strings.HasSuffix(strings.TrimSpace(string(rest)), "data: [DONE]") {
		t.Errorf("after SIGTERM: %v, %d chunks of 100: ends with %q", err, chunks, rest[max(0, len(rest)-200):])
	}
	require.Equal(t, s.exit(), 0, "exit code")
	// A fault that has concerned no request tests nothing.
	for _, fault := range []string{`--faults: "status:503~path=/helth" concerned none of 1 HTTP request: `, `--faults: "refuse~nobody*" concerned none of 1 engine request: `} {
		require.Contains(t, s.Tail(), fault)
	}
	if strings.Count(s.Tail(), "concerned none of") != 2 {
		t.Errorf("want two such faults: %s", s.Tail())
	}
	if answer, err := http.Get(s.URL + "/health"); err == nil {
		answer.Body.Close()
		t.Error("it still answers")
	}
}

// A stream that takes longer than the shutdown timeout is cut off. The player speaks the line of the frontend that is
// named, and each rank has a URL.
func TestServeCutsOff(t *testing.T) {
	s := startServe(t, "--inter-token-latency", "1s", "--shutdown-timeout", "100ms", "--data-parallel-size", "2", "--port-per-rank",
		"--frontend", testenv.Frontend(t, "0.32.0"))
	require.True(t, s.Line == "0.32" && len(s.URLs) == 2 && s.Engines == 2, "want two engines of line 0.32: %s", s.line)
	stream := s.stream(t, 1000)
	require.NoError(t, syscall.Kill(s.Pid(), syscall.SIGTERM))
	if rest, err := io.ReadAll(stream); err == nil && strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream was not cut off: %s", rest)
	}
	require.Equal(t, s.exit(), 0, "exit code")
}

// conform http compares a server with a vllm-rs that it starts: the frontend itself has no differences, and what serve
// adds is one.
func TestConformHTTP(t *testing.T) {
	s := startServe(t, "--quiet", "--frontend-env", "VLLM_SERVER_DEV_MODE=1")
	conform := func(url string) (string, int) {
		cmd := exec.Command("vllm-vcr", "conform", "http", url, "--line", "0.33", "--offline", "--peers", testenv.PeersDir(t), "--json", "--quiet",
			"--run", "chat/tool-required*,completions/stream-usage,server/version")
		out, err := cmd.Output()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if err := testenv.CheckJSON("../../docs/json.md", "conform http", out); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := conform(s.Direct[0]); code != 0 || !strings.Contains(out, `"same": 4`) {
		t.Errorf("the frontend itself: exit code %d: %s", code, out)
	}
	if out, code := conform(s.URL); code != 1 || !strings.Contains(out, `"what": "header x-request-id"`) {
		t.Errorf("serve: exit code %d: %s", code, out)
	}
}

// The builtin frontend answers as the vllm-rs of its line does, but for what is listed with a reason.
func TestBuiltinAnswersAsVLLMRS(t *testing.T) {
	testenv.Frontend(t, "0.33.0") // conform http starts it by itself
	compareBuiltin(t, "builtin.toml")
	compareBuiltin(t, "", "--engine-command", "vllm-vcr play --mode text --tokenizer ../../testdata/model/tiny --frontend-handshake {handshake}")
}

// And as the Python server does.
func TestBuiltinAnswersAsPython(t *testing.T) {
	if !slices.Contains(strings.Fields(os.Getenv("VLLM_VCR_ENGINES")), "0.33.0") {
		t.Skip("starts the Python server of an installed engine: set VLLM_VCR_ENGINES=0.33.0 (.ci/peers engine 0.33.0)")
	}
	compareBuiltin(t, "builtin-python.toml", "--frontend", "python")
}

// compareBuiltin compares the builtin frontend with the reference that conform http starts. Other differences than
// those of a table are errors, and so are entries that did not occur. Without a table, conform http starts both.
func compareBuiltin(t *testing.T, table string, args ...string) {
	peers := testenv.PeersDir(t)
	if table != "" {
		s := startServe(t, "--quiet", "--frontend", "builtin", "--frontend-env", "VLLM_SERVER_DEV_MODE=1", "--", "--enable-scale-out")
		args = append(args, s.URL, "--known", "../../internal/check/httpdiff/"+table)
	}
	cmd := exec.Command("vllm-vcr", append([]string{"conform", "http", "--line", "0.33", "--offline", "--peers", peers, "--json", "--quiet", "--settle", "10s"}, args...)...)
	out, err := cmd.Output()
	var got httpJSON
	require.NoErrorf(t, errors.Join(json.Unmarshal(out, &got), testenv.CheckJSON("../../docs/json.md", "conform http", out)), "%s", out)
	require.True(t, got.Answered >= 90, "%d requests to generate were answered: %v, %s", got.Answered, err, got.Error)
	for _, d := range got.Differences {
		require.True(t, d.Reason != "", "%s: %s: got %s, the reference %s", d.Request, d.What, d.A, d.B)
	}
	for _, k := range got.Unused {
		t.Errorf("%s: %s, %s does not occur any more: remove the entry", table, k.Request, k.What)
	}
}

// Frontends that have engines of their own publish KV events, and offer KV caches, at ports of their own.
func TestPortsOfRanks(t *testing.T) {
	free, err := vllmrs.Reserve()
	require.NoError(t, err)
	defer free.Release()
	first := free.Number() - 1
	env := newEnvironment(io.Discard, io.Discard, func(name string) (string, bool) {
		value, set := map[string]string{"VLLM_NIXL_SIDE_CHANNEL_PORT": fmt.Sprint(first)}[name]
		return value, set
	})
	opts := peerOptions{
		rank: 1, kvEvents: `{"enable_kv_cache_events": true, "publisher": "zmq", "replay_endpoint": "tcp://*:7000"}`,
		kvTransfer: `{"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "me"}`,
	}
	var opt player.Options
	free.Release()
	stop, err := opts.configure(env, &opt, 1)
	require.NoError(t, err)
	defer stop()
	if events := opt.KVCache.Events; events.Endpoint != "tcp://*:5558" || events.ReplayEndpoint != "tcp://*:7001" || opt.Transfer.Port != first+1 || opt.Transfer.EngineID != "me_dp1" {
		t.Errorf("got %q %q %d %s", events.Endpoint, events.ReplayEndpoint, opt.Transfer.Port, opt.Transfer.EngineID)
	}
	opts.kvEvents = `{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "ipc:///tmp/events"}`
	if _, err := opts.configure(env, &opt, 1); err == nil || !strings.HasPrefix(err.Error(), `--kv-events-config: endpoint "ipc:///tmp/events" of KV events: data-parallel rank 1 needs one of its own`) {
		t.Errorf("got %v", err)
	}
}

// The end of the frontend ends the command with its exit code, or starts both again at the same URL.
func TestServeLosesFrontend(t *testing.T) {
	s := startServe(t)
	require.NoError(t, syscall.Kill(s.Pids[0], syscall.SIGKILL))
	if code := s.exit(); code != 137 || !strings.Contains(s.Tail(), "the frontend ended by itself: signal: killed") {
		t.Errorf("exit code %d, want 137: %s", code, s.Tail())
	}
	s = startServe(t, "--restart")
	url := s.URL
	require.NoError(t, syscall.Kill(s.Pids[0], syscall.SIGKILL))
	s.next(t)
	require.True(t, s.URL == url && s.Restarts == 1, "started again: %s", s.line)
	s.stream(t, 3)
}

// The builtin frontend needs no other program. Faults of HTTP and of the engine, metrics and the end are those of any
// frontend.
func TestServeBuiltin(t *testing.T) {
	s := startServe(t, "some/model", "--frontend", "builtin", "--faults", "http-fail:1:429", "--allow-request-faults", "--data-parallel-size", "2")
	if err := testenv.CheckJSON("../../docs/json.md", "serve", s.line); err != nil || len(s.Pids) != 0 || s.Frontend != "builtin" {
		t.Errorf("%s: %v", s.line, err)
	}
	const body = `{"model":"some/model","prompt":"Hi","max_tokens":4,"ignore_eos":true,"stream":true}`
	for i, want := range []struct {
		fault, end string
		status     int
		events     int
	}{
		{status: 429, end: "}"},
		{status: 200, end: "data: [DONE]\n\n", events: 6},
		{status: 200, fault: "http-truncate:2", end: "}\n\n", events: 2},
	} {
		status, _, text := s.ask(t, "/v1/completions", body, "X-Fault", want.fault)
		if events := strings.Count(text, "data: "); status != want.status || events != want.events || !strings.HasSuffix(text, want.end) {
			t.Errorf("request %d: status %d, %d events: %s", i, status, events, text)
		}
	}
	require.NoError(t, syscall.Kill(s.Pid(), syscall.SIGTERM))
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, s.Tail())
	}
	s = startServe(t, "--frontend", "builtin", "--faults", "kill:2")
	_, _ = http.Post(s.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"Hi","max_tokens":4,"ignore_eos":true}`))
	if code := s.exit(); code != 3 {
		t.Errorf("exit code %d after the engine was killed, want 3: %s", code, s.Tail())
	}
}

// Servers of a fleet have ports, KV events and an end of their own. Routers find those in the discovery file that answer.
func TestServeFleet(t *testing.T) {
	list := filepath.Join(t.TempDir(), "endpoints.json")
	s := startServe(t, "--frontend", "builtin", "--replicas", "3", "--discovery-file", list, "--discovery-labels", "llm-d.ai/role=decode", "--admin-token", "t",
		"--allow-request-faults", "--kv-events-config", `{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:0"}`)
	listed := func() (ports []string) {
		t.Helper()
		text, err := os.ReadFile(list)
		require.NoError(t, err)
		var file struct{ Endpoints []serve.Endpoint }
		require.NoError(t, json.Unmarshal(text, &file))
		for _, e := range file.Endpoints {
			require.True(t, e.Namespace == "default" && e.Address == "127.0.0.1" && e.Labels["llm-d.ai/role"] == "decode", "%+v", e)
			ports = append(ports, e.Name+" http://127.0.0.1:"+e.Port)
		}
		return ports
	}
	want := []string{"vllm-vcr-0 " + s.URLs[0], "vllm-vcr-1 " + s.URLs[1], "vllm-vcr-2 " + s.URLs[2]}
	if got := listed(); !slices.Equal(got, want) || s.Engines != 3 {
		t.Fatalf("%v, want %v", got, want)
	}
	at := func(n int) *served { one := *s; one.URL = s.URLs[n]; return &one }
	const body = `{"prompt":"Hi","max_tokens":4,"ignore_eos":true}`
	for n := range 3 {
		for range n + 1 {
			if _, header, text := at(n).ask(t, "/v1/completions", body); header.Get("x-inference-pod") != fmt.Sprint("vllm-vcr-", n) {
				t.Errorf("%d: %v %s", n, header, text)
			}
		}
		if _, _, text := at(n).ask(t, "/metrics", ""); !strings.Contains(text, fmt.Sprintf("vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"} %d\n", 2*(n+1))) {
			t.Errorf("%d: %s", n, text)
		}
	}
	at(1).ask(t, "/admin/config", `{"draining": true, "faults": "status:418"}`, "Authorization", "Bearer t")
	if status, _, _ := at(1).ask(t, "/v1/completions", body); status != 418 || !slices.Equal(listed(), []string{want[0], want[2]}) {
		t.Errorf("status %d of the one that drains; listed: %v", status, listed())
	}
	at(1).ask(t, "/admin/config", `{"draining": false}`, "Authorization", "Bearer t")
	_, _, _ = at(2).ask(t, "/v1/completions", `{"prompt":"Hi","max_tokens":4,"vllm_xargs":{"vllm_vcr_fault":"kill"}}`)
	for answer, err := http.Get(s.URLs[2] + "/ready"); err == nil; answer, err = http.Get(s.URLs[2] + "/ready") {
		answer.Body.Close() // until its port is closed
	}
	if got := listed(); !slices.Equal(got, want[:2]) {
		t.Errorf("listed without the one that ended: %v", got)
	}
	if status, _, text := s.ask(t, "/v1/completions", body); status != 200 {
		t.Errorf("status %d of another one: %s", status, text)
	}
	require.NoError(t, syscall.Kill(s.Pid(), syscall.SIGTERM))
	if code := s.exit(); code != 0 || len(listed()) != 0 || !strings.Contains(s.Tail(), "vllm-vcr-2: the player ended: a fault has killed the engine") {
		t.Errorf("exit code %d, listed: %v; %s", code, listed(), s.Tail())
	}
}

// Each vllm-rs of a fleet has the engine that its server has.
func TestServeFleetOfFrontends(t *testing.T) {
	s := startServe(t, "--replicas", "2")
	for n, url := range s.URLs {
		one := *s
		one.URL = url
		if status, header, text := one.ask(t, "/v1/completions", `{"model":"tiny","prompt":"Hi","max_tokens":4}`); status != 200 || header.Get("x-inference-pod") != fmt.Sprint("vllm-vcr-", n) {
			t.Errorf("%s: %d %v %s", url, status, header, text)
		}
	}
	require.True(t, len(s.Pids) == 2 && s.Pids[0] != s.Pids[1], "processes: %v", s.Pids)
}

// With a delay, requests are answered after the signal, and probes already fail.
func TestServeShutdownDelay(t *testing.T) {
	s := startServe(t, "--frontend", "builtin", "--shutdown-delay", "10m")
	require.NoError(t, syscall.Kill(s.Pid(), syscall.SIGTERM))
	for t.Context().Err() == nil {
		if status, _, _ := s.ask(t, "/ready", ""); status == 503 {
			break
		}
	}
	health, _, _ := s.ask(t, "/health", "")
	if status, _, text := s.ask(t, "/v1/completions", `{"prompt":"Hi","max_tokens":4}`); status != 200 || health != 200 {
		t.Errorf("status %d, /health %d: %s", status, health, text)
	}
	require.NoError(t, syscall.Kill(s.Pid(), syscall.SIGKILL)) // the delay is long
}

// TestServingPage runs the recipes of docs/serving.md, on free ports.
func TestServingPage(t *testing.T) {
	frontend := testenv.Frontend(t, "0.33.0")
	for _, program := range []string{"curl", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the recipes need %s", program)
		}
	}
	blocks, lines := shellBlocks(t, "../../docs/serving.md")
	if len(blocks) < 5 {
		t.Fatalf("the page has only %d recipes", len(blocks))
	}
	for i, block := range blocks {
		t.Run(fmt.Sprint("line ", lines[i]), func(t *testing.T) {
			t.Parallel()
			for _, port := range []string{"8000", "8001", "5600", "5601"} {
				free, err := vllmrs.Reserve()
				require.NoError(t, err)
				defer free.Release()
				block = strings.ReplaceAll(block, port, fmt.Sprint(free.Number()))
			}
			cmd := exec.Command("bash", "-euo", "pipefail", "-c", block)
			cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "VLLM_VCR_FRONTEND="+frontend)
			if err := testenv.Process(t, "recipe", cmd).Err(); err != nil { // what it leaves behind is killed
				t.Errorf("%v\n%s", err, block)
			}
		})
	}
}
