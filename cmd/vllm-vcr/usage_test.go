package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestVariablesAreKnown: no variable that a file of this repository names is called unknown.
func TestVariablesAreKnown(t *testing.T) {
	known := knownVariables(newRootCommand(quietEnvironment()))
	// Made up, for tests of this; or the beginning of a name.
	madeUp := []string{"VLLM_VCR_GOLDNE", "VLLM_VCR_X"}
	named := regexp.MustCompile(`VLLM_VCR_[A-Z0-9_]*[A-Z0-9]\b`)
	seen := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "goldens", "dist", ".cache", "wheels"}, entry.Name()):
			return filepath.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		if info, err := entry.Info(); err != nil || info.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range named.FindAllString(string(text), -1) {
			if _, found := slices.BinarySearch(known, name); !found && !strings.HasPrefix(name, testPrefix) && !slices.Contains(madeUp, name) && !seen[name] {
				t.Errorf("%s names %s: add it to otherVariables", path, name)
			}
			seen[name] = true
		}
		return err
	})
	require.True(t, err == nil && len(seen) >= 50, "%d variables seen: %v", len(seen), err)
	for _, name := range otherVariables {
		require.True(t, seen[name], "no file names %s: take it from otherVariables", name)
	}
}

// TestEnginesAsJSON: what capture engine prints has the documented keys.
func TestEnginesAsJSON(t *testing.T) {
	result := enginesJSON{Schema: schemaOf("capture-engine"), Engines: []engineJSON{
		{Kind: "engine", Engine: local.Engine{Release: "0.33.0", Home: "h", Python: "p", VLLMRS: "v", Origin: "o", Installed: true}},
		{Kind: "lock", Engine: local.Engine{Release: "0.34.0"}, LockFile: "0.34.0.toml", Wheels: 2},
	}}
	text, err := jsonout.Bytes(result)
	require.NoError(t, err)
	require.NoError(t, testenv.CheckJSON("../../docs/json.md", "capture engine", text))
}

// TestJSONIsDocumented: each command with --json that prints a document of its own has a section, and the section has its schema.
func TestJSONIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/json.md")
	require.NoError(t, err)
	seen := 0
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		f := cmd.LocalFlags().Lookup("json")
		if f == nil || !strings.Contains(f.Usage, "docs/json.md") {
			return
		}
		seen++
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		if path == "conform" { // its report has a schema of its own
			path = "conform --list"
		}
		schema := schemaOf(strings.ReplaceAll(strings.ReplaceAll(path, " --", "-"), " ", "-"))
		if !strings.Contains(string(page), "\n## "+path+"\n") || !strings.Contains(string(page), "- `schema`: `"+schema+"`\n") {
			t.Errorf("docs/json.md has no section %q with the schema %s", path, schema)
		}
	})
	require.True(t, seen >= 12, "%d commands have --json", seen)
}
