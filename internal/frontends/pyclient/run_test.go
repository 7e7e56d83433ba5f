package pyclient_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/frontends/pyclient"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// python is any Python 3 of this machine.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on this machine")
	}
	return path
}

// says is what the release of testdata says.
func says(id string) func(int) uint32 {
	sum := 0
	for i := range len(id) {
		sum += int(id[i])
	}
	return func(position int) uint32 { return uint32((sum + 7*position) % 2000) }
}

// line is an engine that does nothing but to hold a connection.
func line(handshake string) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		for {
			c, err := net.Dial("tcp", strings.TrimPrefix(handshake, "tcp://"))
			if err == nil {
				<-ctx.Done()
				return c.Close()
			}
			if ctx.Err() != nil {
				return nil
			}
		}
	}, nil
}

// standIn is options for a copy of the release of testdata, with texts of its files replaced: a file, what is there,
// and what comes there.
func standIn(t *testing.T, changes ...[3]string) pyclient.Options {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "release"))))
	for _, c := range changes {
		path := filepath.Join(dir, filepath.FromSlash(c[0]))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if !strings.Contains(string(text), c[1]) {
			t.Fatalf("%s has no %q", c[0], c[1])
		}
		require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), c[1], c[2])), 0o644))
	}
	return pyclient.Options{
		Python: python(t), Sources: pyclient.Tree{Dir: dir, State: t.TempDir(), Wheel: "vllm-9.9.9.whl"}, Model: "/nowhere",
		MaxModelLen: 2048, NumGPUBlocks: 101, BlockSize: 32, Says: says, Engine: line,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Deadline: time.Minute,
	}
}

// red are the results that did not pass, as "verdict case: message (place)".
func red(results []pyclient.Result) []string {
	var lines []string
	for _, r := range results {
		if r.Verdict == pyclient.Passed {
			continue
		}
		text := string(r.Verdict) + " " + r.Case + ": " + r.Message
		if r.Where != "" {
			text += " (" + r.Where + ")"
		}
		lines = append(lines, text)
	}
	return lines
}

const (
	client  = "vllm/v1/engine/core_client.py"
	engines = "vllm/v1/engine/__init__.py"
	absent  = "skipped async/pause-generation: AsyncMPClient has no pause_generation_async"
	absent2 = "skipped async/memory: AsyncMPClient has no release_kv_cache_memory_async"
)

func TestAllCasesPass(t *testing.T) {
	// A release logs to stdout, from other processes too.
	logs := "import os\nos.system('echo I log')\nprint('I log')\n"
	results, err := pyclient.Run(t.Context(), standIn(t, [3]string{"vllm/__init__.py", "__version__", logs + "__version__"}))
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff([]string{absent, absent2}, red(results)), "(-want +got)")
	tokens := 0
	for _, r := range results {
		tokens += r.Tokens
	}
	require.True(t, len(results) == 32 && tokens == 146, "%d results, %d tokens, want 32, 146", len(results), tokens)
}

// TestFindings: what a release does otherwise turns red the cases that are there for it, and says what is wrong where.
func TestFindings(t *testing.T) {
	tests := []struct {
		name     string
		change   [3]string
		want     []string
		patience time.Duration
	}{
		{
			name: "another token", change: [3]string{client, "7 * position", "7 * position + (request_id == 'sync/tokens')"},
			want: []string{`failed sync/tokens: request "sync/tokens": tokens [`},
		},
		{
			name: "a token too many", change: [3]string{client, "self.said == self.params.max_tokens", "self.said == self.params.max_tokens + (self.id == 'sync/tokens')"},
			want: []string{`failed sync/tokens: request "sync/tokens": tokens [`},
		},
		{
			name: "stop ids are lost", change: [3]string{client, "token in (self.params.stop_token_ids or ())", "False"},
			want: []string{
				`failed async/stop: request "async/stop": finish reason "length", stop <nil> after 40 tokens, want "stop", `,
				`failed sync/stop: `,
			},
		},
		{
			name: "no log-probabilities", change: [3]string{client, "self.params.logprobs is not None", "False"},
			want: []string{
				`failed async/logprobs: request "async/logprobs": 0 rows of log-probabilities for 4 tokens`,
				`failed sync/logprobs: `,
			},
		},
		{
			name: "log-probabilities of other tokens", change: [3]string{client, "ids = [token + i", "ids = [token + 1 + i"},
			want: []string{
				`failed async/logprobs: request "async/logprobs": log-probabilities of token 0 (`,
				`failed sync/logprobs: `,
			},
		},
		{
			name: "the prompt is lost", change: [3]string{client, "for t in self.prompt[1:]", "for t in [0] * 5"},
			want: []string{
				`failed async/logprobs: request "async/logprobs": log-probabilities of token 1 of the prompt (4) are of [0 1]`,
				`failed sync/logprobs: `,
			},
		},
		{
			name: "aborts are lost", change: [3]string{client, "if r.id not in ids", ""},
			want: []string{`failed async/abort: 2 requests were answered, want 1`},
		},
		{
			name: "one at a time", change: [3]string{client, "self.requests[:]", "self.requests[:1]"},
			want: []string{`failed async/streams: at most 1 of 4 streams in one message`},
		},
		{
			name: "no statistics", change: [3]string{client, "EngineCoreOutputs(outputs, stats)", "EngineCoreOutputs(outputs)"},
			want: []string{`failed async/streams: at most 4 of 4 streams in one message, 0 statistics`},
		},
		{
			name: "max_model_len is not minded", change: [3]string{client, "max_model_len, 2048", "max_model_len, 4096"},
			want: []string{"failed async/handshake: value 1 is 4096, want 2048", "failed sync/handshake: "},
		},
		{
			name: "a utility answers otherwise", change: [3]string{client, "self.asleep = True", "pass"},
			want: []string{"failed async/sleep: value 3 is false, want true", "failed sync/sleep: "},
		},
		{
			name: "a utility fails", change: [3]string{client, `return ("generate",)`, `raise ValueError("\x1b[1m##[error]tired\n::error::very")`},
			want: []string{
				"failed async/tasks: ValueError: # #[error]tired ::error::very (vllm/v1/engine/core_client.py:",
				"failed sync/tasks: ",
			},
		},
		{
			name: "a utility's answer cannot be read", patience: time.Second,
			change: [3]string{client, "    return getattr(self, name)(*arguments)", `    if name == "get_supported_tasks":
            def unreadable():
                raise ValueError("unreadable")

            self.get_output = unreadable
            await asyncio.sleep(1000)
        return getattr(self, name)(*arguments)`},
			want: append([]string{"failed async/tasks: ValueError: unreadable (" + client}, untried("async", "async/tasks")...),
		},
		{
			name: "a utility was renamed", change: [3]string{client, "reset_encoder_cache", "forget_images"},
			want: []string{
				"unjudged async/caches: AsyncMPClient has no reset_encoder_cache_async",
				"unjudged sync/caches: SyncMPClient has no reset_encoder_cache",
			},
		},
		{
			name: "requests are of another kind", change: [3]string{engines, "cache_salt", "cache_pepper"},
			want: []string{
				"unjudged async/tokens: vllm.v1.engine.EngineCoreRequest(request_id, ", "unjudged async/stop: ",
				"unjudged async/logprobs: ", "unjudged async/adapted: ", "unjudged async/streams: ",
				"unjudged async/abort: ", "unjudged async/death: ",
				"unjudged sync/tokens: ", "unjudged sync/stop: ", "unjudged sync/logprobs: ", "unjudged sync/adapted: ",
				"unjudged sync/streams: ", "unjudged sync/death: ",
			},
		},
		{
			name: "the engine's death is not noticed", patience: time.Second, change: [3]string{client, "self.engine.recv(1)", "import time; time.sleep(20)"},
			want: []string{"failed async/death: no answer within 1 s", "failed sync/death: no answer within 1 s (" + client},
		},
		{
			name: "requests after the death are taken", change: [3]string{client, "if self.dead", "if False"},
			want: []string{"failed async/death: 1 values, want 2", "failed sync/death: "},
		},
		{
			name: "dead at once", change: [3]string{client, "return EngineCoreOutputs(outputs, stats)", "raise EngineDeadError"},
			want: append(append([]string{"failed async/tokens: EngineDeadError (" + client}, untried("async", "async/tokens")...),
				append([]string{"failed sync/tokens: EngineDeadError (" + client}, untried("sync", "sync/tokens")...)...),
		},
		{
			name: "the handshake is refused", change: [3]string{client, "self.requests, self.loras = [], set()", `raise ValueError("no supports_lora")`},
			want: append(append([]string{"failed async/handshake: ValueError: no supports_lora (" + client + ""},
				untried("async", "async/handshake")...),
				append([]string{"failed sync/handshake: "}, untried("sync", "sync/handshake")...)...),
		},
		{
			name: "the handshake hangs", patience: time.Second, change: [3]string{client, "self.requests, self.loras = [], set()", "import time; time.sleep(20)"},
			want: append(append([]string{"failed async/handshake: no answer within 1 s (" + client + ""},
				untried("async", "async/handshake")...),
				append([]string{"failed sync/handshake: "}, untried("sync", "sync/handshake")...)...),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			opt := standIn(t, test.change)
			opt.Patience = test.patience
			results, err := pyclient.Run(t.Context(), opt)
			require.NoError(t, err)
			var got []string
			for _, line := range red(results) {
				if !strings.HasPrefix(line, "skipped ") {
					got = append(got, line)
				}
			}
			checkPrefixes(t, got, test.want)
		})
	}
}

// untried are the cases of a client after one, each as not tried after that.
func untried(client, after string) []string {
	names := strings.Fields("handshake tokens stop logprobs adapted streams abort tasks caches sleep profile adapters workers " +
		"weights pause-generation memory pause death")
	var lines []string
	seen := false
	for _, name := range names {
		onlyAsync := name == "abort" || name == "memory" || strings.HasPrefix(name, "pause")
		if seen && (client == "async" || !onlyAsync) {
			lines = append(lines, "unjudged "+client+"/"+name+": not tried after "+after)
		}
		seen = seen || client+"/"+name == after
	}
	return lines
}

func checkPrefixes(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d:\n%s\nwant %d:\n%s", len(got), strings.Join(got, "\n"), len(want), strings.Join(want, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got  %s\nwant %s…", got[i], want[i])
		}
	}
}

// TestEngineEnds: an engine that gives up is a finding, with its reason.
func TestEngineEnds(t *testing.T) {
	opt := standIn(t)
	opt.Patience = time.Second
	opt.Engine = func(string) (func(context.Context) error, error) {
		return func(context.Context) error { return errors.New("unexpected init message") }, nil
	}
	results, err := pyclient.Run(t.Context(), opt)
	require.NoError(t, err)
	got := red(results)
	if len(got) != 32 || !strings.HasPrefix(got[0], "failed async/handshake: no answer within 1 s; the engine ended: unexpected init message (") {
		t.Errorf("got %d: %s", len(got), got[0])
	}
}

// TestEngineEndsUnnoticed: an engine that gave up is a finding even if no client minds.
func TestEngineEndsUnnoticed(t *testing.T) {
	opt := standIn(t)
	opt.Engine = func(handshake string) (func(context.Context) error, error) {
		serve, err := line(handshake)
		return func(ctx context.Context) error {
			go func() { _ = serve(ctx) }()
			return errors.New("tired")
		}, err
	}
	results, err := pyclient.Run(t.Context(), opt)
	require.NoError(t, err)
	checkPrefixes(t, red(results), []string{
		absent, absent2, "failed async/death: meanwhile the engine ended: tired",
		"failed sync/death: meanwhile the engine ended: tired",
	})
}

// TestUnusable: what keeps the cases from being tried is an error that names it, and no finding.
func TestUnusable(t *testing.T) {
	remove := func(name string) func(*testing.T, *pyclient.Options) {
		return func(t *testing.T, opt *pyclient.Options) {
			require.NoError(t, os.Remove(filepath.Join(opt.Sources.Dir, filepath.FromSlash(name))))
		}
	}
	write := func(name, text string) func(*testing.T, *pyclient.Options) {
		return func(t *testing.T, opt *pyclient.Options) {
			require.NoError(t, os.WriteFile(filepath.Join(opt.Sources.Dir, filepath.FromSlash(name)), []byte(text), 0o644))
		}
	}
	tests := []struct {
		name   string
		change func(*testing.T, *pyclient.Options)
		want   string
	}{
		{"no interpreter", func(_ *testing.T, opt *pyclient.Options) { opt.Python = "/nowhere/python" }, "start driver: fork/exec /nowhere/python: no such file"},
		{"no Python", func(_ *testing.T, opt *pyclient.Options) { opt.Python = "/bin/false" }, "before the first case: driver (/bin/false -B "},
		{"no torch", write("torch.py", "raise ModuleNotFoundError(\"No module named 'torch'\")"), "import torch of the environment of "},
		{"module renamed", remove(client), "before the first case: import vllm.v1.engine.core_client of the release: ModuleNotFoundError: No module named 'vllm.v1.engine.core_client'"},
		{"module does not parse", write(client, "def :"), "import vllm.v1.engine.core_client of the release: SyntaxError: invalid syntax"},
		{"module exits", write(client, "import sys\nsys.exit(4)"), "import vllm.v1.engine.core_client of the release: SystemExit: 4 (" + client + ":2 in <module>)"},
		{"class renamed", write(client, "class EngineCoreClient: pass"), "vllm.v1.engine.core_client has no AsyncMPClient"},
		{"port taken", write(client, "import errno\nclass EngineCoreClient: pass\nclass AsyncMPClient:\n  def __init__(self, *_):\n    raise OSError(errno.EADDRINUSE, 'taken')"), "at async/handshake: another process took port "},
		{"not of the release", write(client, "__file__ = '/usr/lib/core_client.py'"), "vllm.v1.engine.core_client is /usr/lib/core_client.py, which is not of the release in "},
		{"configuration refused", write("vllm/engine/arg_utils.py", "class AsyncEngineArgs:\n  def __init__(self, model): pass"), "vllm.engine.arg_utils.AsyncEngineArgs(model, served_model_name, "},
		{"engine cannot be", func(_ *testing.T, opt *pyclient.Options) {
			opt.Engine = func(string) (func(context.Context) error, error) { return nil, errors.New("no such line") }
		}, "at async/handshake: engine: no such line"},
		{"no sources", func(_ *testing.T, opt *pyclient.Options) { opt.Sources.Dir = "" }, "no sources of a release"},
		{"nothing to mind", func(_ *testing.T, opt *pyclient.Options) { opt.MaxModelLen = 4096 }, "max_model_len 4096: want less than 4096"},
		{"no engine", func(_ *testing.T, opt *pyclient.Options) { opt.Engine = nil }, "no engine is given"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			opt := standIn(t)
			test.change(t, &opt)
			results, err := pyclient.Run(t.Context(), opt)
			checkError(t, err, test.want)
			if len(red(results)) > 0 {
				t.Errorf("findings %q", red(results))
			}
		})
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	require.ErrorContains(t, err, want)
	for _, line := range strings.Split(err.Error(), "\n") {
		require.True(t, !strings.HasPrefix(line, "::") && !strings.ContainsRune(line, '\x1b'), "error has the line %q", line)
	}
}

// TestDriverOutOfOrder: whatever a driver does, the error says it, and its process is gone.
func TestDriverOutOfOrder(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no scripts that can be executed")
	}
	text, err := os.ReadFile(filepath.Join("testdata", "fake_driver.py"))
	require.NoError(t, err)
	fake := filepath.Join(t.TempDir(), "python")
	testenv.WriteProgram(t, fake, append([]byte("#!"+python(t)+"\n"), text...))
	tests := []struct {
		name    string
		want    string
		results int
	}{
		{"garbage", `before the first case: the driver wrote an unknown message: "::error::I am garbage \x1b[31m"`, 0},
		{"endless line", `the driver wrote an unknown message: "bufio.Scanner: token too long"`, 0},
		{"dies", "at async/handshake: driver (" + fake, 0},
		{"hangs", "at async/handshake: no end within 3s; the last of its output:\n| I wait", 0},
		{"result of nothing", `the driver has a result of "async/party", which is not tried`, 0},
		{"no values", "at async/handshake: I am ::error::tired", 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			opt := standIn(t)
			opt.Python, opt.Model, opt.Deadline = fake, test.name, 30*time.Second
			if test.name == "hangs" {
				opt.Deadline = 3 * time.Second
			}
			results, err := pyclient.Run(t.Context(), opt)
			checkError(t, err, test.want)
			if len(results) != test.results {
				t.Errorf("results %q", red(results))
			}
		})
	}
}

// TestCancelled: the cause of the owner's end is told.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	opt := standIn(t)
	opt.Engine = func(string) (func(context.Context) error, error) {
		cancel(errors.New("enough"))
		return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	}
	_, err := pyclient.Run(ctx, opt)
	checkError(t, err, "python client of vllm-9.9.9.whl: at async/handshake: enough")
}

// TestEnvironment: no secret of the owner's reaches the release, no path of Python's, and its home folder is gone
// afterwards.
func TestEnvironment(t *testing.T) {
	for _, name := range []string{"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PYTHONSTARTUP", "VLLM_PORT"} {
		t.Setenv(name, "hunter2")
	}
	homes := filepath.Join(t.TempDir(), "homes")
	look := "import os\nopen('" + homes + "', 'w').write(os.environ['HOME'])\n" +
		"wrong = [k for k, v in os.environ.items() if 'hunter2' in v]\nassert not wrong, wrong\n"
	opt := standIn(t, [3]string{"vllm/__init__.py", "__version__", look + "__version__"})
	if _, err := pyclient.Run(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	home, err := os.ReadFile(homes)
	require.NoError(t, err)
	if _, err := os.Stat(string(home)); !errors.Is(err, os.ErrNotExist) || string(home) == os.Getenv("HOME") {
		t.Errorf("home folder %s: %v", home, err)
	}
}
