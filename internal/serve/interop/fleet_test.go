// Package interop puts released routers before servers of `vllm-vcr serve --replicas`: llm-d's endpoint picker and its
// sidecar for prefill and decode, vllm-router and SMG. `.ci/peers routers` installs them.
package interop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var program string // vllm-vcr

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "interop")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "vllm-vcr")
	if out, err := exec.Command("go", "build", "-C", "../../..", "-o", program, "./cmd/vllm-vcr").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// peer is the path of a program that `.ci/peers routers` installs. Without it, the test is skipped.
func peer(t *testing.T, path ...string) string {
	t.Helper()
	at := filepath.Join(append([]string{testenv.PeersDir(t), "routers"}, path...)...)
	if _, err := os.Stat(at); err != nil {
		t.Skipf("%v: install it with: .ci/peers routers", err)
	}
	return at
}

// start starts a program, which ends with the test.
func start(t *testing.T, name string, args ...string) (*process.Process, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "VLLM_VCR_ADMIN_TOKEN=t")
	out, in := io.Pipe()
	if name == program {
		cmd.Stdout = in
	}
	p, err := process.Start(cmd, process.Options{})
	require.NoError(t, err)
	go func() { <-p.Done(); in.Close() }()
	t.Cleanup(func() {
		if _ = p.Stop(t.Context()); t.Failed() {
			t.Logf("%s: %s", filepath.Base(name), p.Tail())
		}
	})
	return p, bufio.NewReader(out)
}

// freePorts are ports that nothing listens at, and that no connection of others gets.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range n {
		ports = append(ports, strconv.Itoa(testenv.FreePort(t)))
	}
	return ports
}

// A fleet is servers in one process.
type fleet struct {
	URLs, Models []string
	list         string // the discovery file
}

func startFleet(t *testing.T, replicas int, args ...string) *fleet {
	t.Helper()
	f := &fleet{list: filepath.Join(t.TempDir(), "endpoints.json")}
	p, out := start(t, program, append([]string{
		"serve", "--json", "--frontend", "builtin", "--port", "0", "--block-size", "16", "--allow-request-faults",
		"--replicas", strconv.Itoa(replicas), "--discovery-file", f.list,
	}, args...)...)
	line, err := out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, f)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, p.Tail())
	}
	return f
}

func completion(prompt string, tokens int) string {
	text, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": true})
	return string(text)
}

// post sends a request, and returns the answer with its body.
func post(t *testing.T, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body) // a fault may cut it
	return answer, string(text)
}

// ask sends a completion to a server or a router, and returns how many tokens the prompt has.
func ask(t *testing.T, at, body string, headers ...string) int {
	t.Helper()
	answer, text := post(t, at+"/v1/completions", body, headers...)
	var got struct {
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%s: status %d: %s", at, answer.StatusCode, text)
	}
	return got.Usage.Prompt
}

// admin changes the configuration of one server.
func (f *fleet) admin(t *testing.T, at, change string) {
	t.Helper()
	if answer, text := post(t, at+"/admin/config", change, "Authorization", "Bearer t"); answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", at, text)
	}
}

// kill ends the engine of one server, and so the server.
func (f *fleet) kill(t *testing.T, at string) {
	t.Helper()
	post(t, at+"/v1/completions", `{"prompt": "Hi", "max_tokens": 4, "vllm_xargs": {"vllm_vcr_fault": "kill"}}`)
	eventually(t, "the server is gone", func() bool {
		answer, err := http.Get(at + "/health")
		if err == nil {
			answer.Body.Close()
		}
		return err != nil
	})
}

// sum is that of a metric of all servers.
func (f *fleet) sum(t *testing.T, metric string) (sum int) {
	t.Helper()
	for _, url := range f.URLs {
		sum += metricAt(t, url+"/metrics", metric)
	}
	return sum
}

// metricAt is the sum of the samples of a metric, -1 without any.
func metricAt(t *testing.T, url, name string) int {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		return -1 // not yet up
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	sum := -1.0
	for _, sample := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(?:\{.*\})? (\S+)$`).FindAllSubmatch(text, -1) {
		value, err := strconv.ParseFloat(string(sample[1]), 64)
		require.NoError(t, err)
		sum = max(sum, 0) + value
	}
	return int(sum)
}

// eventually waits for what another process does, for three minutes at most.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late := time.Now().Add(3 * time.Minute)
	for !holds() {
		if time.Now().After(late) {
			t.Fatalf("still not: %s", what)
		}
		_ = retry.Pause(t.Context(), 20*time.Millisecond) // there is no event to wait for in a program of others
	}
}
