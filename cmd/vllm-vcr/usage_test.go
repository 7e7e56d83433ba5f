package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	if err != nil || len(seen) < 50 {
		t.Errorf("%d variables seen: %v", len(seen), err)
	}
	for _, name := range otherVariables {
		if !seen[name] {
			t.Errorf("no file names %s: take it from otherVariables", name)
		}
	}
}
