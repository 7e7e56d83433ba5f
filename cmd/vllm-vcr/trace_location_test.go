package main

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A trace that no record of which has tokens.
const locatedTrace = `{"meta":{"model":"served"}}
{"prompt_tokens":100,"cached_tokens":0,"output_tokens":4,"ttft_ms":20.03,"itl_ms":[10.01,10.02,10.03],"concurrency":1,"arrival_ms":0}
`

// TestTraceLocations: wherever a trace is read, it may be in a bucket, on a web server or on the hub.
func TestTraceLocations(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(locatedTrace)); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, z.Close())
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		switch {
		case strings.HasSuffix(r.URL.Path, "missing"):
			http.Error(w, "no", http.StatusNotFound)
		case strings.HasSuffix(r.URL.Path, "moved"):
			http.Redirect(w, r, "http://127.0.0.1:1/elsewhere", http.StatusFound)
		case strings.HasSuffix(r.URL.Path, "steps"):
			w.Write([]byte(`{"ts_ms":1.5,"scheduler":{"num_running_reqs":7,"kv_cache_usage":0.25}}` + "\n"))
		case strings.HasSuffix(r.URL.Path, "packed"):
			w.Write(packed.Bytes())
		default:
			w.Write([]byte(locatedTrace))
		}
	}))
	defer server.Close()
	for name, value := range map[string]string{
		"HF_ENDPOINT": server.URL, "HF_TOKEN": "hunter2", "AWS_ENDPOINT_URL_S3": server.URL, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
		"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
	file := filepath.Join(t.TempDir(), "run.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(locatedTrace), 0o600))
	tests := []struct {
		name, location string
		args           []string
		code           int
		asks, says     string
	}{
		{name: "web", location: server.URL + "/run.jsonl", asks: "/run.jsonl", says: `served`},
		{name: "packed under another name", location: server.URL + "/packed", asks: "/packed", says: `served`},
		{name: "hub", location: "hf://org/repo@v1/runs/run.jsonl", asks: "/datasets/org/repo/resolve/v1/runs/run.jsonl", says: `served`},
		{name: "bucket", location: "s3://bucket/runs/run.jsonl", asks: "/bucket/runs/run.jsonl", says: `served`},
		{name: "timeline", args: []string{"inspect", "timeline"}, location: server.URL + "/run.jsonl", asks: "/run.jsonl", says: `#`},
		{name: "not there", location: server.URL + "/missing", code: 3, asks: "/missing", says: `error: trace http://127.0.0.1:\d+/missing: HTTP status 404 Not Found: check the location \[no-key\]`},
		{name: "not on the hub", location: "hf://org/repo/missing", code: 3, asks: "/datasets/org/repo/resolve/main/missing", says: `error: trace hf://org/repo/missing: HTTP status 404.*HF_TOKEN`},
		{name: "sent elsewhere", location: server.URL + "/moved", code: 3, asks: "/moved", says: `redirects to a http address`},
		{name: "anybody can listen", location: "http://traces.invalid/run.jsonl", code: 2, says: `plain http, which anybody on the way can change`},
		{name: "no such scheme", location: "gs://bucket/run.jsonl", code: 2, says: `error: trace gs://bucket/run.jsonl: .*scheme "gs" is not one of s3, https, hf and file`},
		{name: "no key", location: "s3://bucket", code: 2, says: `an S3 location is s3://bucket/key`},
		{name: "converted, and fetched once", args: []string{"inspect", "convert", "--to", "otlp", "-o", filepath.Join(t.TempDir(), "spans.json")}, location: server.URL + "/packed", asks: "/packed", says: `1 requests from trace`},
		{name: "step statistics", args: []string{"inspect", "summary", file, "--step-stats"}, location: server.URL + "/steps", asks: "/steps", says: `running +7\.0 requests on average`},
		{name: "steps of a timeline", args: []string{"inspect", "timeline", file, "--perfetto", filepath.Join(t.TempDir(), "run.json"), "--step-stats"}, location: server.URL + "/steps", asks: "/steps"},
		{name: "arrivals, fetched once", args: []string{"capture", "load", "http://127.0.0.1:1", "--model", "m", "--workload", "arrivals", "--arrival-trace"}, location: server.URL + "/run.jsonl", code: 3, asks: "/run.jsonl", says: `connection refused`},
		{name: "arrivals that are not there", args: []string{"capture", "load", "http://127.0.0.1:1", "--model", "m", "--workload", "arrivals", "--arrival-trace"}, location: server.URL + "/missing", code: 3, asks: "/missing", says: `HTTP status 404`},
		{name: "play", args: []string{"play", "--trace"}, location: server.URL + "/run.jsonl", code: 2, asks: "/run.jsonl", says: `/run.jsonl: no record has output_token_ids.*--replay-steps`},
		{name: "times of play", args: []string{"play", "--pace", "instant", "--latency-trace"}, location: server.URL + "/missing", code: 2, says: `--pace instant`},
		{name: "plays", args: []string{"play", "--handshake-timeout", "1ms", "--frontend-handshake", "ipc:///nowhere/at/all", "--replay-steps"}, location: "s3://bucket/packed", code: 3, asks: "/bucket/packed", says: `handshake`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			asked = nil
			if test.args == nil {
				test.args = []string{"inspect", "summary"}
			}
			var out, problems bytes.Buffer
			env := newEnvironment(&out, &problems, os.LookupEnv)
			if code := env.main(t.Context(), append(test.args, test.location)); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			said := out.String() + problems.String()
			require.True(t, regexp.MustCompile(test.says).MatchString(said), "want %q in\n%s", test.says, said)
			require.True(t, !strings.Contains(said, "hunter2"), "a secret is told:\n%s", said)
			require.Equal(t, strings.Join(asked, " "), test.asks, "asked for")
		})
	}
}
