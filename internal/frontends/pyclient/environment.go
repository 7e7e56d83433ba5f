package pyclient

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/vllm-vcr/conformance/compat"
)

// An Environment is an installed CPU engine, whose packages a release can run on.
type Environment struct {
	Release string // of the engine: "0.33.0"
	Python  string // path of its interpreter
}

// Nearest returns the environment for a release among those of the CPU engines that are installed below a folder: that
// of the release, else of the newest release before it, else of the oldest.
func Nearest(dir string, release compat.Version) (Environment, error) {
	engines := filepath.Join(dir, "engines")
	entries, err := os.ReadDir(engines)
	if err != nil && !os.IsNotExist(err) {
		return Environment{}, fmt.Errorf("look for environments: %w", err)
	}
	var best compat.Version
	var found Environment
	for _, entry := range entries {
		v, err := compat.ParseVersion(entry.Name())
		if err != nil {
			continue
		}
		python := filepath.Join(engines, entry.Name(), "bin", "python")
		if !whole(filepath.Dir(filepath.Dir(python)), python) {
			continue
		}
		if found.Python == "" || v.Nearer(best, release) {
			best, found = v, Environment{Release: entry.Name(), Python: python}
		}
	}
	if found.Python == "" {
		return found, fmt.Errorf("no environment with torch is installed in %s: a CPU engine has one", engines)
	}
	return found, nil
}

// whole tells whether an environment was finished, and its interpreter is there.
func whole(home, python string) bool {
	_, unfinished := os.Stat(filepath.Join(home, "whole"))
	info, err := os.Stat(python)
	return unfinished == nil && err == nil && info.Mode().IsRegular()
}
