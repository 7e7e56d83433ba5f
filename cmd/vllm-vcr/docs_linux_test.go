package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// aDigest stands for those that a page leaves to its reader.
const aDigest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

// TestCapturingPage runs the commands of docs/capturing.md that need neither GPU nor cluster, as a reader would: in a
// checkout, with a player in place of the engine, and with targets as the page has them. What goes to a cluster is kept.
func TestCapturingPage(t *testing.T) {
	t.Parallel()
	const page = "../../docs/capturing.md"
	dir := t.TempDir()
	checkout := filepath.Join(dir, "checkout")
	require.NoError(t, os.CopyFS(checkout, vcr.Files))
	writable(t, checkout)
	kubectl := filepath.Join(dir, "bin", "kubectl")
	writeAll(t, map[string]string{
		kubectl:                                  "#!/bin/sh\ncat >>'" + dir + "/applied'\n",
		filepath.Join(checkout, ".gitignore"):    ".cache/\n",
		filepath.Join(checkout, vcr.TargetsPath): targetsOf(t, page),
	})
	shell := func(block string) string {
		t.Helper()
		return runBlock(t, checkout, block, "VLLM_VCR_PEERS="+testenv.EnginePeers(t, testenv.PlayerForEngine), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	}
	shell("git init --quiet && git add . && git -c user.name=a -c user.email=a@example.com commit --quiet --message=all")
	blocks, _ := shellBlocks(t, page)
	if len(blocks) < 4 {
		t.Fatalf("%s has only %d commands", page, len(blocks))
	}
	var said strings.Builder
	for _, block := range blocks {
		said.WriteString(shell(strings.ReplaceAll(block, "sha256:…", aDigest)))
	}
	applied, err := os.ReadFile(filepath.Join(dir, "applied"))
	require.NoError(t, err)
	for text, wants := range map[string][]string{
		said.String(): {
			"answers as before", "checked, replayed and registered in", "PASS: every gate holds", "**The replay holds: ",
			"qwen3-8b-multiturn-nocache-s13",
		},
		string(applied): {"kind: ClusterQueue"},
	} {
		for _, want := range wants {
			require.Contains(t, text, want)
		}
	}
}

var tomlBlock = regexp.MustCompile("(?s)```toml\n(.*?)```")

// targetsOf are the targets of this repository and those of a page.
func targetsOf(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	ours, err := vcr.Files.ReadFile(vcr.TargetsPath)
	require.NoError(t, err)
	theirs := tomlBlock.FindSubmatch(text)
	if theirs == nil {
		t.Fatalf("%s shows no targets", page)
	}
	return string(ours) + "\n" + string(bytes.ReplaceAll(theirs[1], []byte("sha256:…"), []byte(aDigest)))
}

// writeAll writes files, and makes their folders.
func writeAll(t *testing.T, files map[string]string) {
	t.Helper()
	for path, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testenv.WriteProgram(t, path, text)
	}
}

// TestInspectingPage runs the commands of docs/inspecting.md, and compares the pictures that the page shows with those that
// the commands draw.
func TestInspectingPage(t *testing.T) {
	dir := t.TempDir()
	blocks, _ := shellBlocks(t, "../../docs/inspecting.md")
	if len(blocks) < 6 {
		t.Fatalf("the page has only %d commands", len(blocks))
	}
	for _, block := range blocks {
		runBlock(t, dir, block)
	}
	page, err := os.ReadFile("../../docs/inspecting.md")
	require.NoError(t, err)
	shown := regexp.MustCompile(`\]\(inspecting/(.*?\.svg)\)`).FindAllSubmatch(page, -1)
	if len(shown) < 3 {
		t.Fatalf("the page shows only %d pictures", len(shown))
	}
	for _, name := range shown {
		drawn, err := os.ReadFile(filepath.Join(dir, "pictures", string(name[1])))
		require.NoError(t, err)
		path := filepath.Join("../../docs/inspecting", string(name[1]))
		if *update {
			require.NoError(t, os.WriteFile(path, drawn, 0o644))
		}
		if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, drawn) {
			t.Errorf("%s is not what the command of the page draws (%v): go test ./cmd/vllm-vcr -run TestInspectingPage -update rewrites it", path, err)
		}
	}
}
