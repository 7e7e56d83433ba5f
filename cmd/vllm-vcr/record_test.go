//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// TestRecordRealFrontend records a real vllm-rs in front of the player, and judges the trace as users would: it holds
// what the HTTP client saw, conform replays it, and the raw messages give the same one again.
func TestRecordRealFrontend(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) { recordRealFrontend(t, version) })
	}
}

func recordRealFrontend(t *testing.T, version string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := vllmrs.Start(ctx, vllmrs.Options{Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t)})
	require.NoError(t, err)
	defer server.Close()
	dir := t.TempDir()
	engine := fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))
	metrics := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	tap := start(t, "record", "--frontend-handshake", server.Handshake(), "--engine-handshake", engine,
		"--vllm-version", "v"+version, "--gpu", "none", "--record-tokens", "--record-prompts", "--metrics-address", metrics,
		"--trace-out", dir+"/run.jsonl.gz", "--step-stats-out", dir+"/steps.jsonl", "--frames-out", dir+"/frames.jsonl.gz",
		"--summary-json", dir+"/summary.json")
	start(t, "play", "--frontend-handshake", engine, "--vllm-version", version, "--vocab-size", "1000", "--seed", "7")
	require.NoErrorf(t, server.Healthy(ctx), "the tap said %s", &tap.stderr)
	streams, tokens := complete(t, ctx, server)
	awaitPage(t, "http://"+metrics+"/metrics", fmt.Sprintf("\nvllm_vcr_record_records_total %d\n", len(streams)))
	require.NoError(t, tap.Process.Signal(syscall.SIGTERM))
	if code := tap.end(t); code != 0 || tap.stderr.Len() > 0 {
		t.Fatalf("exit code %d, stderr %q, want 0 and silence", code, &tap.stderr)
	}

	tr, err := trace.Read(dir+"/run.jsonl.gz", trace.Options{Strict: true})
	require.NoError(t, err)
	recorded := make(map[string][]uint32)
	for _, r := range tr.Records {
		recorded[fmt.Sprint(r.PromptTokenIDs)] = r.OutputTokenIDs
	}
	if diff := cmp.Diff(streams, recorded); diff != "" || len(tr.Records) != len(streams) {
		t.Errorf("%d records of %d streams, -seen by the client +recorded:\n%s", len(tr.Records), len(streams), diff)
	}
	want := fmt.Sprintf(": %d requests, %d output tokens, %d records\n", len(streams), tokens, len(streams))
	where := fmt.Sprintf("\nengine 0: %[1]s/run.jsonl.gz, %[1]s/steps.jsonl, %[1]s/frames.jsonl.gz\n", dir)
	if out := tap.stdout.String(); !strings.HasPrefix(out, "1 engine in ") || !strings.Contains(out, want) || !strings.HasSuffix(out, where) {
		t.Errorf("stdout lacks %q or does not end in %q:\n%s", want, where, out)
	}
	checkSummary(t, dir+"/summary.json", len(streams), tokens)
	checkConforms(t, dir, protocol.LineOf(version), *tr.Meta.ConfigHash)
	checkDerived(t, dir)
}

// complete sends requests one after the other and at once, streamed and whole, and returns the tokens that the client saw
// for each prompt.
func complete(t *testing.T, ctx context.Context, server *vllmrs.Server) (streams map[string][]uint32, tokens int) {
	t.Helper()
	const requests = 24
	type answer struct {
		prompt []uint32
		openai.Completion
		err error
	}
	answers := make(chan answer)
	for i := range requests {
		prompt := make([]uint32, 1+7*i)
		for j := range prompt {
			prompt[j] = uint32(100 + i + j)
		}
		go func() {
			c, err := server.Complete(ctx, openai.Request{
				ID: fmt.Sprintf("replay-%d", i), Prompt: prompt, MaxTokens: 1 + i, Stream: i%2 == 0, IgnoreEOS: true,
			})
			answers <- answer{prompt, c, err}
		}()
	}
	streams = make(map[string][]uint32)
	for range requests {
		a := <-answers
		if a.err != nil {
			t.Fatal(a.err)
		}
		streams[fmt.Sprint(a.prompt)] = a.Tokens
		tokens += len(a.Tokens)
	}
	return streams, tokens
}

// awaitPage asks the tap until its page has a part: a client may have its answer before the tap has observed it.
func awaitPage(t *testing.T, url, part string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		page, err := fetchPage(ctx, url)
		if err == nil && strings.Contains(page, part) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s never had %q: %v %s", url, part, err, page)
		}
	}
}

func fetchPage(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func checkSummary(t *testing.T, path string, requests, tokens int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var got struct {
		Whole        bool
		Engines      int
		Records      int
		OutputTokens int            `json:"output_tokens"`
		Requests     map[string]int `json:"requests"`
		NotRecorded  map[string]int `json:"not_recorded"`
	}
	require.NoError(t, json.Unmarshal(data, &got))
	for reason, n := range got.NotRecorded {
		require.Equal(t, n, 0, "times of: %s", reason)
	}
	if !got.Whole || got.Engines != 1 || got.Records != requests || got.OutputTokens != tokens ||
		got.Requests["done"] != requests || len(got.NotRecorded) == 0 {
		t.Errorf("want %d requests and %d tokens:\n%s", requests, tokens, data)
	}
}

// checkConforms registers the trace as a golden of its line and runs all assertions on it.
func checkConforms(t *testing.T, dir, line, configHash string) {
	t.Helper()
	data, err := os.ReadFile(dir + "/run.jsonl.gz")
	require.NoError(t, err)
	digest := sha256.Sum256(data)
	writeTestFile(t, dir+"/compat.toml", fmt.Sprintf(
		"[[vllm]]\nline = %q\ntag = \"v%s.0\"\nprotocol_rev = \"4ba787ec9\"\nfidelity_validated = true\ndefault = true\n", line, line))
	writeTestFile(t, dir+"/manifest.toml", fmt.Sprintf(
		"[[golden]]\nline = %q\nid = \"run\"\nbucket_path = \"run.jsonl.gz\"\nsha256 = %q\nconfig_hash = %q\nworkload = \"run\"\nrole = \"fidelity\"\n",
		line, hex.EncodeToString(digest[:]), configHash))
	conform := start(t, "conform", "--compat", dir+"/compat.toml", "--manifest", dir+"/manifest.toml", "--goldens", dir)
	if code := conform.end(t); code != 0 || !strings.Contains(conform.stdout.String(), "\nPASS: every gate holds: 8 passed;") {
		t.Errorf("exit code %d, want 0 and eight passes:\n%s%s", code, &conform.stdout, &conform.stderr)
	}
}

// checkDerived makes the trace again from the raw messages.
func checkDerived(t *testing.T, dir string) {
	t.Helper()
	derive := start(t, "record", "--from-frames", dir+"/frames.jsonl.gz", "--trace-out", dir+"/again.jsonl.gz", "--step-stats-out", dir+"/again.jsonl")
	if code := derive.end(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, &derive.stderr)
	}
	for name, again := range map[string]string{"run.jsonl.gz": "again.jsonl.gz", "steps.jsonl": "again.jsonl"} {
		require.True(t, bytes.Equal(inflated(t, dir+"/"+name), inflated(t, dir+"/"+again)), "%s differs from the recorded %s", again, name)
	}
}

func inflated(t *testing.T, path string) []byte {
	t.Helper()
	if !trace.IsGzip(path) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return data
	}
	var all bytes.Buffer
	testenv.GzipLines(t, path, func(line []byte) { all.Write(append(bytes.Clone(line), '\n')) })
	return all.Bytes()
}

// TestRecordEndsOnSignal: told to end before anything was recorded, it ends at once and does not look like a success.
func TestRecordEndsOnSignal(t *testing.T) {
	dir := t.TempDir()
	metrics := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	tap := start(t, "record", "--engine-handshake", "tcp://127.0.0.1:0", "--trace-out", dir+"/run.jsonl", "--metrics-address", metrics, "--verbose")
	awaitPage(t, "http://"+metrics+"/healthz", "ok")
	require.NoError(t, tap.Process.Signal(syscall.SIGTERM))
	if code := tap.end(t); code != 3 || tap.stdout.Len() > 0 ||
		!strings.HasSuffix(tap.stderr.String(), "vllm-vcr: error: record ended before an engine connected: nothing was recorded\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &tap.stdout, &tap.stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// framesFile is a whole session of a released frontend and engine.
const framesFile = "../../testdata/captures/0.33.0-multiturn-s7.jsonl.gz"

// TestRecordUploads: what is recorded to a bucket is what a local file would hold, further runs do not replace it, and
// what could not be uploaded is kept.
func TestRecordUploads(t *testing.T) {
	server := testenv.S3(t)
	for name, value := range server.Env() {
		t.Setenv(name, value)
	}
	t.Setenv("TMPDIR", t.TempDir())
	local := t.TempDir() + "/run.jsonl"
	require.NoError(t, os.Mkdir(server.Dir+"/bucket", 0o755))
	const object = "s3://bucket/dir/run.jsonl"
	for _, where := range []string{local, object} {
		c := start(t, "record", "--from-frames", framesFile, "--trace-out", where, "--record-tokens")
		if code := c.end(t); code != 0 || !strings.HasSuffix(c.stdout.String(), "\nengine 0: "+where+"\n") {
			t.Fatalf("exit code %d, stdout %q, stderr %q", code, &c.stdout, &c.stderr)
		}
	}
	want, got := inflated(t, local), inflated(t, server.Dir+"/bucket/dir/run.jsonl")
	require.True(t, len(want) >= 1000 && bytes.Equal(want, got), "the object has %d bytes, the file %d", len(got), len(want))
	c := start(t, "record", "--from-frames", framesFile, "--trace-out", object, "--gpu", "other")
	if code := c.end(t); code != 3 || !strings.Contains(c.stderr.String(), "nothing is ever overwritten") {
		t.Errorf("exit code %d, stderr %q, want 3 and the reason", code, &c.stderr)
	}
	kept, err := filepath.Glob(os.Getenv("TMPDIR") + "/run.partial-*.jsonl")
	require.True(t, err == nil && len(kept) == 1 && strings.Contains(c.stderr.String(), kept[0]), "kept %v %v, want one file, which stderr names: %s", kept, err, &c.stderr)
}

// TestSecondSignal: the end takes as long as an upload does, and who will not wait says so twice.
func TestSecondSignal(t *testing.T) {
	address, dialed := listen(t)
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+strings.TrimPrefix(address, "tcp://"))
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "key")
	t.Setenv("TMPDIR", t.TempDir())
	c := start(t, "record", "--from-frames", framesFile, "--trace-out", "s3://bucket/run.jsonl")
	select {
	case <-dialed:
	case <-time.After(patience):
		t.Fatalf("nothing was uploaded: %s", &c.stderr)
	}
	ended := make(chan int)
	go func() { ended <- c.end(t) }()
	for {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		select {
		case code := <-ended:
			if by := c.ProcessState.Sys().(syscall.WaitStatus); code != -1 || by.Signal() != syscall.SIGTERM {
				t.Errorf("exit code %d, signal %v, want to be ended by SIGTERM: %s", code, by.Signal(), &c.stderr)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
