package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// What these tests put into the environment, and must not find in anything that is written.
const (
	badAccount = "210987654321"
	badToken   = "session-token-of-the-tests"
	badRole    = "arn:aws:iam::" + badAccount + ":role/goldens"
)

// A consumer is a repository without goldens, whose bucket is on a real S3 server, and a machine that has fetched nothing.
type consumer struct {
	dir, cache, out string
	server          *testenv.S3Server
	golden          manifest.Golden   // 0.33/edge-s1
	object          string            // the file of its object
	env             map[string]string // of the next runs
	mostBytes       int64             // that a run may take of memory
	poisoned        bool              // the cache holds what is no golden, by intent
}

func newConsumer(t *testing.T) *consumer {
	t.Helper()
	c := &consumer{dir: t.TempDir(), out: t.TempDir(), server: testenv.S3(t), mostBytes: mostBytes}
	c.cache = filepath.Join(t.TempDir(), "cache")
	for _, name := range []string{vcr.CompatPath, vcr.ManifestPath} {
		c.write(t, name, embedded(name))
	}
	mf, _ := manifest.Load(filepath.Join(c.dir, vcr.ManifestPath))
	for _, g := range mf.ForLine("0.33") {
		if g.ID == "edge-s1" {
			c.golden = g
		}
	}
	c.object = filepath.Join(c.server.Dir, "goldens", filepath.FromSlash(c.golden.BucketPath))
	c.store(t, c.object, c.bytes(t))
	c.env = c.server.Env()
	return c
}

// bytes are those of the golden.
func (c *consumer) bytes(t *testing.T) []byte {
	t.Helper()
	data, err := fs.ReadFile(vcr.Files, vcr.GoldensPath+"/"+c.golden.BucketPath)
	require.NoError(t, err)
	return data
}

func (c *consumer) write(t *testing.T, name string, data []byte) {
	t.Helper()
	c.store(t, filepath.Join(c.dir, filepath.FromSlash(name)), data)
}

func (c *consumer) store(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)))
}

// register replaces a key of the golden in the manifest, or adds it.
func (c *consumer) register(t *testing.T, key, value string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, vcr.ManifestPath))
	require.NoError(t, err)
	begin := bytes.Index(text, []byte("line = \"0.33\"\nid = \"edge-s1\"\n"))
	end := begin + bytes.Index(text[begin:], []byte("\n\n"))
	entry := string(text[begin:end])
	line := key + " = " + value
	old := regexp.MustCompile(`(?m)^` + key + ` = .*$`)
	if old.MatchString(entry) {
		entry = old.ReplaceAllLiteralString(entry, line)
	} else {
		entry += "\n" + line
	}
	c.write(t, vcr.ManifestPath, []byte(string(text[:begin])+entry+string(text[end:])))
}

// An outcome is what a run left behind.
type outcome struct {
	code           int
	stdout, stderr string
}

// run runs the command in the repository.
func (c *consumer) run(t *testing.T, args ...string) outcome {
	t.Helper()
	o := c.start(t, args...)
	require.NoError(t, o.Start())
	return c.ended(t, o)
}

// A started run.
type started struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

func (c *consumer) start(t *testing.T, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	limited := fmt.Sprintf(`ulimit -d %d; exec vllm-vcr "$@"`, c.mostBytes>>10)
	s := &started{Cmd: exec.CommandContext(ctx, "sh", append([]string{"-c", limited, "vllm-vcr"}, args...)...)}
	s.Dir, s.Stdout, s.Stderr = c.dir, &s.stdout, &s.stderr
	s.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.out, "VLLM_VCR_CACHE=" + c.cache, "TMPDIR=" + t.TempDir(),
	}
	for name, value := range c.env { // the last of a name counts
		s.Env = append(s.Env, name+"="+value)
	}
	return s
}

// ended waits for the end of a run, and demands what holds for every one: no secret anywhere, nothing half-written, no
// trace of a panic, little memory.
func (c *consumer) ended(t *testing.T, s *started) outcome {
	t.Helper()
	var exit *exec.ExitError
	if err := s.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	o := outcome{s.ProcessState.ExitCode(), s.stdout.String(), s.stderr.String()}
	t.Logf("%s\nexit code %d\n%s%s", strings.Join(s.Args[3:], " "), o.code, o.stdout, o.stderr)
	wantSecretsKept(t, "stdout", regexp.MustCompile(`(?m)^::add-mask::.*$`).ReplaceAllString(o.stdout, ""))
	wantSecretsKept(t, "stderr", o.stderr)
	if strings.Contains(o.stdout+o.stderr, "goroutine ") {
		t.Error("it panicked, or had not enough memory")
	}
	c.wantWhole(t)
	return o
}

// mostBytes is what a run may take of memory. Go asks for 64 MiB at a time.
const mostBytes = 256 << 20

// wantWhole looks at all files that runs have left: the cache has whole goldens only, and no file has a secret.
func (c *consumer) wantWhole(t *testing.T) {
	t.Helper()
	for _, dir := range []string{c.dir, c.out, c.cache} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			c.wantWholeFile(t, path)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func (c *consumer) wantWholeFile(t *testing.T, path string) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Size() > 64<<20 {
		return // of the test
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	if base := filepath.Base(path); base != filepath.Base(vcr.CompatPath) && base != filepath.Base(vcr.ManifestPath) {
		wantSecretsKept(t, path, string(data))
	}
	base := filepath.Base(path)
	if strings.Contains(base, ".vllm-vcr-") {
		t.Errorf("half-written: %s", path)
	}
	below, err := filepath.Rel(c.cache, path)
	if err != nil || !filepath.IsLocal(below) || c.poisoned {
		return
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != base {
		t.Errorf("in the cache, and no golden: %s", below)
	}
}

func wantSecretsKept(t *testing.T, where, text string) {
	t.Helper()
	for _, secret := range []string{testenv.S3SecretKey, testenv.S3AccessKey, badAccount, badToken, "X-Amz-Signature=", "hunter2"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s has %q in it", where, secret)
		}
	}
}

// wants demands an exit code, and a message of one line that begins with one of the patterns; the other patterns match
// somewhere in the line.
func (o outcome) wants(t *testing.T, code int, patterns ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d", o.code, code)
	}
	for line := range strings.SplitSeq(o.stdout+o.stderr, "\n") {
		if matchesAll(line, patterns) {
			return
		}
	}
	t.Errorf("no line has all of %q", patterns)
}

func matchesAll(line string, patterns []string) bool {
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(line) {
			return false
		}
	}
	return true
}

// one are the flags that select the golden of a consumer.
var one = []string{"--line", "0.33", "--golden", "edge-s1"}

// pulls and conforms runs both, with a report.
func (c *consumer) pulls(t *testing.T, code int, args, patterns []string) {
	t.Helper()
	os.RemoveAll(c.cache)
	t.Run("pull", func(t *testing.T) {
		c.run(t, append(append([]string{"golden", "pull"}, one...), args...)...).wants(t, code, patterns...)
	})
	os.RemoveAll(c.cache)
	t.Run("conform", func(t *testing.T) {
		dir := filepath.Join(c.out, "report")
		o := c.run(t, append(append([]string{"conform", "--assertion", "integrity", "--report-dir", dir}, one...), args...)...)
		o.wants(t, code, patterns...)
		_, err := os.Stat(filepath.Join(dir, "report.json"))
		if has := err == nil; has != (code != 2) {
			t.Errorf("report: %v", err)
		}
		os.RemoveAll(dir)
	})
}

const fork = `{"pull_request": {"head": {"repo": {"full_name": "stranger/conformance", "fork": true}}, "base": {"repo": {"full_name": "vllm-vcr/conformance"}}}}`

// inFork makes the next runs those of a pull request from a fork.
func (c *consumer) inFork(t *testing.T) {
	t.Helper()
	event := filepath.Join(t.TempDir(), "event.json")
	c.store(t, event, []byte(fork))
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		c.env[name] = ""
	}
	c.env["GITHUB_EVENT_NAME"], c.env["GITHUB_EVENT_PATH"], c.env["GITHUB_ACTIONS"] = "pull_request", event, "true"
}

// before puts a server before the real one that says something else to requests for objects.
func (c *consumer) before(t *testing.T, answer http.HandlerFunc) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	c.env["AWS_ENDPOINT_URL_S3"] = server.URL
}

// saysS3 answers as S3 does when it refuses.
func saysS3(status int, code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, message)
	}
}

// TestBadStore is what users meet at a bucket.
func TestBadStore(t *testing.T) {
	t.Parallel()
	s3 := []string{"--bucket", "s3://goldens"}
	tests := []struct {
		name   string
		before func(*testing.T, *consumer)
		args   []string
		code   int
		says   []string
	}{
		{name: "all is well", args: s3, says: []string{`from s3://goldens/conformance/|^PASS: `}},
		{
			name: "fork without identity", before: func(t *testing.T, c *consumer) { c.inFork(t) }, args: append(s3, "--role-to-assume", badRole),
			code: 3, says: []string{`golden s3://goldens/conformance/.*edge-s1`, `GitHub gives none to pull requests from forks`, `\[fork-pull-request\]`},
		},
		{
			name: "fork that must sign", before: func(t *testing.T, c *consumer) { c.inFork(t) }, args: append(s3, "--anonymous", "false"),
			code: 3, says: []string{`golden s3://goldens/`, `unsigned requests are switched off`, `let it use goldens that are public`, `\[fork-pull-request\]`},
		},
		{
			name: "fork at a private bucket", before: func(t *testing.T, c *consumer) { c.inFork(t) }, args: s3,
			code: 3, says: []string{`golden s3://goldens/`, `403 Forbidden`, `let it use goldens that are public`, `\[fork-pull-request\]`},
		},
		{
			name: "bucket typo", args: []string{"--bucket", "s3://godlens"},
			code: 3, says: []string{`golden s3://godlens/`, `there is no such bucket: check CONFORMANCE_BUCKET`, `\[no-bucket\]`},
		},
		{name: "wrong region", args: append(s3, "--region", "eu-west-1"), says: []string{`the bucket is in another region than configured.*region=us-east-1 set=eu-west-1`}},
		{name: "no region", args: append(s3, "--region", "Frankfurt am Main"), code: 2, says: []string{`--region|region`, `is not one such as eu-west-1`}},
		{name: "no role", args: append(s3, "--role-to-assume", "arn:aws:iam::"+badAccount+":user/x"), code: 2, says: []string{`role`, `is not an ARN such as`}},
		{name: "no endpoint", args: append(s3, "--endpoint-url", "s3.example.org"), code: 2, says: []string{`endpoint`, `is not an URL such as`}},
		{
			name: "expired token", args: s3, code: 3, says: []string{`400 Bad Request: ExpiredToken`, `the AWS credentials have expired`, `\[credentials-expired\]`},
			before: func(t *testing.T, c *consumer) {
				c.env["AWS_SESSION_TOKEN"] = badToken
				c.before(t, saysS3(400, "ExpiredToken", "The provided token has expired: "+badToken+" of account "+badAccount+"\n::error::x"))
			},
		},
		{
			name: "overwritten", args: s3, code: 1, says: []string{`golden s3://goldens/.*edge-s1`, `not the bytes that were registered`, `was stored 20.* and the golden was captured 2025-01-02T03:04:05Z: it was overwritten since`},
			before: func(t *testing.T, c *consumer) {
				c.register(t, "captured_at", "2025-01-02T03:04:05Z")
				c.store(t, c.object, []byte("other bytes"))
			},
		},
		{
			name: "older than the capture", args: s3, code: 1, says: []string{`golden s3://goldens/.*edge-s1`, `not the bytes that were registered`, `is older than the golden`},
			before: func(t *testing.T, c *consumer) {
				c.register(t, "captured_at", "2999-01-02T03:04:05Z")
				c.store(t, c.object, []byte("other bytes"))
			},
		},
		{
			name: "registered as smaller", args: s3, code: 1, says: []string{`more than 22000 bytes, want 22000`},
			before: func(t *testing.T, c *consumer) { c.register(t, "size", "22000") },
		},
		{
			name: "registered as larger", args: s3, code: 1, says: []string{`22242 bytes, want 24000, but sha256 is .* as registered: correct the size`},
			before: func(t *testing.T, c *consumer) { c.register(t, "size", "24000") },
		},
		{
			name: "registered as huge", args: s3, code: 3, says: []string{`registered size is 9000000000000000000 bytes`, `--max-golden-size`},
			before: func(t *testing.T, c *consumer) { c.register(t, "size", "9000000000000000000") },
		},
		{name: "larger than allowed", args: append(s3, "--max-golden-size", "1000"), code: 3, says: []string{`--max-golden-size`}},
		{
			name: "mirrors that fail in different ways", args: s3, code: 1, says: []string{
				`golden s3://goldens/.*404 Not Found.*; and at its next location, golden s3://godlens/.*\[no-bucket\]; and at its next location, golden https://127.0.0.1:1/.*refused.*; and at its next location, golden file:///.*sha256`,
			},
			before: func(t *testing.T, c *consumer) {
				other := filepath.ToSlash(filepath.Join(t.TempDir(), "other.jsonl.gz"))
				c.store(t, other, []byte("other bytes"))
				c.register(t, "mirrors", fmt.Sprintf(`["s3://godlens/a.jsonl.gz", "https://127.0.0.1:1/a.jsonl.gz", "file:///%s"]`, strings.TrimLeft(other, "/")))
				os.Remove(c.object)
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newConsumer(t)
			if test.before != nil {
				test.before(t, c)
			}
			c.pulls(t, test.code, test.args, test.says)
		})
	}
}
