package main

import (
	"fmt"
	"io"
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

// shellBlocks are the blocks of a page that begin with ```sh, with the line of each.
func shellBlocks(t *testing.T, page string) (blocks []string, lines []int) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	var block []string
	inside := false
	for i, line := range strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n") {
		switch line := strings.TrimLeft(line, " "); { // a block in a list is indented
		case line == "```sh":
			inside, block = true, nil
			lines = append(lines, i+1)
		case inside && line == "```":
			inside = false
			blocks = append(blocks, strings.Join(block, "\n"))
		case inside:
			block = append(block, line)
		}
	}
	return blocks, lines
}

// runBlock runs a block as a reader of the page would, and returns what it printed.
func runBlock(t *testing.T, dir, block string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", block)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "GITHUB_ACTIONS=", "CONFORMANCE_BUCKET="), env...)
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "%s\n%s", block, out)
	return string(out)
}

// TestDeployingPage runs the commands of docs/deploying.md that need no cluster.
func TestDeployingPage(t *testing.T) {
	t.Parallel()
	blocks, _ := shellBlocks(t, "../../docs/deploying.md")
	if len(blocks) < 4 {
		t.Fatalf("the page has only %d commands", len(blocks))
	}
	dir := t.TempDir()
	for _, block := range blocks {
		runBlock(t, dir, block)
	}
	for _, name := range []string{"compose.yaml", "my-pool.yaml", "pd/kustomization.yaml", "replay.yaml", "golden.yaml"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGoldensPage runs the commands of docs/goldens.md one after the other, as a reader would, in a checkout and with a
// real S3 server.
func TestGoldensPage(t *testing.T) {
	server := testenv.S3(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, vcr.Files))
	writable(t, dir)
	buckets(t, server.Dir, dir)

	env := []string{"VLLM_VCR_CACHE_DIR=" + t.TempDir()}
	for name, value := range server.Env() {
		env = append(env, name+"="+value)
	}
	blocks, _ := shellBlocks(t, "../../docs/goldens.md")
	if len(blocks) < 5 {
		t.Fatalf("the page has only %d commands", len(blocks))
	}
	for _, block := range blocks {
		t.Logf("%s\n%s", block, runBlock(t, dir, block, env...))
	}
}

// TestGoldensPageMessages: what docs/goldens.md says of messages is about messages that there are.
func TestGoldensPageMessages(t *testing.T) {
	page, err := os.ReadFile("../../docs/goldens.md")
	require.NoError(t, err)
	files := []string{"../../internal/forge/action/identity.go"}
	for _, folder := range []string{"golden", "golden/s3store"} {
		found, err := filepath.Glob("../../internal/" + folder + "/*.go")
		require.NoError(t, err)
		files = append(files, found...)
	}
	var sources strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		sources.Write(text)
	}
	_, table, _ := strings.Cut(string(page), "| it says | because |")
	messages := regexp.MustCompile("(?m)^\\| `(.*?)` \\|").FindAllStringSubmatch(table, -1)
	if len(messages) < 6 {
		t.Fatalf("messages %q, want some more", messages)
	}
	for _, message := range messages {
		for part := range strings.SplitSeq(message[1], "…") {
			if part = strings.Trim(part, " :;,"); !strings.Contains(sources.String(), part) {
				t.Errorf("no message says %q", part)
			}
		}
	}
}

// writable undoes that embedded files are read-only.
func writable(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o600)
	})
	require.NoError(t, err)
}

// buckets makes the buckets of the page, and the recording that it begins with.
func buckets(t *testing.T, server, checkout string) {
	t.Helper()
	mf, _ := manifest.Load(filepath.Join(checkout, vcr.ManifestPath))
	goldens := filepath.Join(checkout, vcr.GoldensPath)
	for _, dir := range []string{"my-goldens", "my-mirror/goldens"} {
		require.NoError(t, os.MkdirAll(filepath.Join(server, dir), 0o755))
	}
	for _, g := range mf.Goldens {
		var to string
		switch {
		case g.Line == "0.32":
			to = filepath.Join(server, "my-mirror/goldens", g.BucketPath)
		case g.Line == "0.33" && g.ID == "multiturn-s7":
			to = filepath.Join(checkout, "run.jsonl.gz")
		default:
			continue
		}
		data, err := os.ReadFile(g.Location("", goldens))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, data, 0o644)
		}
		if err != nil {
			t.Fatal(fmt.Errorf("%s/%s: %w", g.Line, g.ID, err))
		}
	}
}

// TestTopics: help prints every page of the documentation as it is.
func TestTopics(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		want, err := os.ReadFile(page)
		require.NoError(t, err)
		var stdout strings.Builder
		env := newEnvironment(&stdout, io.Discard, func(string) (string, bool) { return "", false })
		if code := env.main(t.Context(), []string{"help", filepath.Base(page)}); code != 0 || stdout.String() != string(want) {
			t.Errorf("help %s: exit code %d, %d bytes, the page has %d", filepath.Base(page), code, stdout.Len(), len(want))
		}
	}
}
