package load

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const least = "summary = \"s\"\nrequests = 'complete {}'\n"

func TestParseRefuses(t *testing.T) {
	tests := []struct{ name, text, says string }{
		{"no summary", "requests = 'wait'\n", "summary is missing"},
		{"unknown key", least + "engines = 2\n", "the key engines is not known"},
		{"unknown frontend", least + "frontend = \"go\"\n", `frontend "go": want rust or python`},
		{"unknown model", least + "model = \"big\"\n", `model "big": want one of tiny, moe, vision`},
		{"clients of vllm-rs", least + "clients = 2\n", "only the Python frontend has several"},
		{"calls of vllm-rs", least + "calls = true\n", "only the Python frontend can be given the route"},
		{"a peer of ranks", least + "peer = true\nranks = 2\n", "only of one engine that publishes no KV events"},
		{"a request to a peer that is absent", "summary = \"s\"\nrequests = 'peer complete {}'\n", "requests: line 1: the session has no peer"},
		{"a package without a digest", least + "packages = [\"nixl==1.5.1\"]\n", "want NAME==VERSION --hash=sha256:"},
		{"options of both for vllm-rs", least + "[both]\nblock_size = 32\n", "vllm-rs takes no option of the engine"},
		{"a line of an option that is absent", least + "[since]\nblock_size = \"0.30\"\n", "the session has no option block_size"},
		{"no line", least + "[engine]\nblock_size = 32\n[since]\nblock_size = \"new\"\n", `"new" is no line`},
		{"no requests", "summary = \"s\"\n", "requests: there is none"},
		{"an unknown word", "summary = \"s\"\nrequests = '''\n# a remark\nask {}\n'''\n", `line 2, "ask {}": "ask" is not understood`},
		{"a body that is no JSON", "summary = \"s\"\nrequests = 'complete {1}'\n", "the body is not a JSON object"},
		{"a path without a slash", "summary = \"s\"\nrequests = 'GET health'\n", "want a path behind GET"},
		{"events of an answer that has none", "summary = \"s\"\nrequests = 'hang 3 GET /health'\n", "only an answer that is streamed has events"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("x", "x.toml", []byte(tt.text))
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func TestFlagsOfALine(t *testing.T) {
	s, err := Parse("x", "x.toml", []byte(least+`
frontend = "python"
[engine]
eager = true
old = 1
new = 2
[both]
cache = false
[frontend_options]
modules = ["a=$DIR/lora/a", "b"]
[since]
new = "0.30"
[until]
old = "0.29"
[without]
eager = ["0.31"]
[env]
HOME_OF_MODELS = "$DIR"
`))
	require.NoError(t, err)
	for line, want := range map[string]string{
		"0.29": "--no-cache --eager --old 1", "0.30": "--no-cache --eager --new 2", "0.31": "--no-cache --new 2",
		"nightly": "--no-cache --eager --new 2",
	} {
		require.Equal(t, strings.Join(s.EngineFlags(line, "/d"), " "), want, "%s: engine", line)
	}
	if got, want := strings.Join(s.FrontendFlags("0.30", "/d"), " "), "--no-cache --modules a=/d/lora/a b"; got != want {
		t.Errorf("frontend %q, want %q", got, want)
	}
	if got := s.Environment("0.30", "/d"); !slices.Equal(got, []string{"HOME_OF_MODELS=/d"}) {
		t.Errorf("environment %q", got)
	}
	want := map[string]string{"eager": "true", "new": "2", "cache": "false"}
	require.NoDiff(t, cmp.Diff(want, s.EngineOptions("0.30")), "options")
}

// What is sent, and in which order: the server holds what is begun until the pause comes, and those at once until all are there.
func TestRun(t *testing.T) {
	s := script(t, `
POST /first X-Kind:test {"list": ["$tokens 3", "$repeat 2 7 8", "$dir lora a1"]}
3x POST /together {"n": "$i", "model": "$pick a b"}
begin 2 complete {"prompt": "long"}
POST /pause {}
wait
? GET /absent
hang 1 chat {}
GET /last
`)
	var mutex sync.Mutex
	var seen []string
	paused, all := make(chan struct{}), sync.WaitGroup{}
	all.Add(3)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mutex.Lock()
		seen = append(seen, r.URL.Path+" "+r.Header.Get("X-Kind")+string(body))
		mutex.Unlock()
		switch r.URL.Path {
		case "/together":
			all.Done()
			all.Wait()
		case "/v1/completions":
			fmt.Fprint(w, "data: 1\n\ndata: 2\n\n")
			w.(http.Flusher).Flush()
			<-paused
			fmt.Fprint(w, "data: [DONE]\n\n")
		case "/pause":
			close(paused)
		case "/absent":
			w.WriteHeader(http.StatusNotFound)
		case "/v1/chat/completions":
			fmt.Fprint(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done() // the client leaves
		}
	}))
	defer server.Close()
	answers, err := RunSession(t.Context(), s, SessionConfig{URL: server.URL, Dir: "/d"})
	require.NoError(t, err)
	slices.Sort(seen[1:4])
	want := []string{
		`/first test{"list":[[` + numbers(t, 3, 1, 0) + `],[7,8,7,8],"/d/lora/a1"]}`,
		`/together {"model":"a","n":0}`, `/together {"model":"a","n":2}`, `/together {"model":"b","n":1}`,
		`/v1/completions {"max_tokens":8,"model":"tiny","prompt":"long","stream":true,"temperature":0}`,
		`/pause {}`, `/absent `,
		`/v1/chat/completions {"max_tokens":8,"messages":[{"content":"hi there","role":"user"}],"model":"tiny","stream":true,"temperature":0}`,
		`/last `,
	}
	require.NoDiff(t, cmp.Diff(want, seen), "requests")
	require.True(t, len(answers) == len(want), "%d answers, want %d", len(answers), len(want))
}

// What an answer says of where its KV cache is goes into the next request, whichever of the two frontends has answered.
func TestRunBesideAPeer(t *testing.T) {
	var seen []string
	serve := func(name string) *httptest.Server {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			seen = append(seen, name+" "+string(body))
			fmt.Fprintf(w, `{"id": 1, "kv_transfer_params": {"remote_host": %q}}`, name)
		}))
		t.Cleanup(server.Close)
		return server
	}
	s := script(t, `
peer POST /a {"kv_transfer_params": "$transfer"}
POST /a {"kv_transfer_params": "$transfer"}
peer POST /a {"kv_transfer_params": "$transfer"}
`, "peer = true\n")
	if _, err := RunSession(t.Context(), s, SessionConfig{URL: serve("this").URL, Peer: serve("peer").URL}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`peer {"kv_transfer_params":null}`, `this {"kv_transfer_params":{"remote_host":"peer"}}`, `peer {"kv_transfer_params":{"remote_host":"this"}}`,
	}
	require.NoDiff(t, cmp.Diff(want, seen), "requests")
}

// numbers are the tokens that a line of a script sends as its i-th request.
func numbers(t *testing.T, n, line, i int) string {
	t.Helper()
	text, err := json.Marshal(macros{seed: uint64(line), i: i}.text(fmt.Sprintf("$tokens %d", n)))
	require.NoError(t, err)
	return strings.Trim(string(text), "[]")
}

func TestRunEndsAtTheFirstRefusal(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	answers, err := RunSession(t.Context(), script(t, "? GET /a\nGET /b\nGET /c\n"), SessionConfig{URL: server.URL})
	require.ErrorContains(t, err, "requests: line 2, GET /b: status 404")
	require.Equal(t, len(answers), 2, "answers: %v", answers)
}

func script(t *testing.T, text string, options ...string) *Session {
	t.Helper()
	s, err := Parse("x", "x.toml", []byte(strings.Join(options, "")+"summary = \"s\"\nrequests = '''\n"+strings.TrimPrefix(text, "\n")+"'''\n"))
	require.NoError(t, err)
	return s
}

// The files are read back as their readers do: JSON, and tensors whose offsets fill the file.
func TestPrepare(t *testing.T) {
	for _, model := range Models() {
		dir := t.TempDir()
		folder, err := (&Session{Model: model}).Prepare(dir, testenv.ModelDir(t))
		require.NoError(t, err)
		var config struct{ Architectures []string }
		readJSON(t, filepath.Join(folder, "config.json"), &config)
		want := map[string]string{"tiny": "Qwen3ForCausalLM", "moe": "Qwen2MoeForCausalLM", "vision": "Qwen2VLForConditionalGeneration"}
		if got := config.Architectures; !slices.Equal(got, []string{want[model]}) {
			t.Errorf("%s: architectures %q", model, got)
		}
		data, err := os.ReadFile(filepath.Join(dir, "lora", "a1", "adapter_model.safetensors"))
		require.NoError(t, err)
		length := int(binary.LittleEndian.Uint64(data))
		var tensors map[string]struct {
			Shape  [2]int
			Within [2]int `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(data[8:8+length], &tensors))
		size := 0
		for name, tensor := range tensors {
			if got, want := tensor.Within[1]-tensor.Within[0], 4*tensor.Shape[0]*tensor.Shape[1]; got != want {
				t.Errorf("%s has %d bytes, want %d", name, got, want)
			}
			size += 4 * tensor.Shape[0] * tensor.Shape[1]
		}
		if len(tensors) != 8 || len(data) != 8+length+size {
			t.Errorf("%d tensors in %d bytes, want 8 in %d", len(tensors), len(data), 8+length+size)
		}
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	require.NoError(t, err)
}

// A tensor is an archive as torch.load wants it; that torch reads it is what the session python shows.
func TestEmbeddings(t *testing.T) {
	data, err := base64.StdEncoding.DecodeString(embeddings(2, 1))
	require.NoError(t, err)
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	var entries []string
	for _, f := range z.File {
		entries = append(entries, fmt.Sprintf("%s %d", f.Name, f.UncompressedSize64))
	}
	if want := "archive/data/0 512"; !slices.Contains(entries, want) || len(entries) != 4 {
		t.Errorf("entries %q, want %q among 4", entries, want)
	}
}
