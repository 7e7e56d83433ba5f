package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
)

// newReportMeta is what a report says of a run that began at started. window is the
// support window as it was loaded, others the further files that decided what was
// run; those of the binary begin with "(embedded) ".
func newReportMeta(env *environment, opts reportOptions, started time.Time, window string, others ...string) report.Meta {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	titles := findingTitles()
	m := report.Meta{
		Tool: report.Tool{Name: "vllm-vcr", Version: buildVersion(), Commit: buildCommit()}, Started: started,
		OS: runtime.GOOS, Arch: runtime.GOARCH, Arguments: opts.command("vllm-vcr", "conform"),
		Root: repositoryRoot(env, dir), Dir: dir, Window: window, Deterministic: opts.deterministic, TempDir: os.TempDir(), Host: host,
		Title: func(c conformance.Code) string { return titles[c] },
	}
	for _, path := range append([]string{window}, others...) {
		if sum, ok := fileDigest(env, path); ok {
			m.Inputs = append(m.Inputs, report.Input{Path: path, SHA256: sum})
		}
	}
	return m
}

// fileDigest is the sha256 of a file. What cannot be read any more has none.
func fileDigest(env *environment, path string) (sum string, ok bool) {
	data, err := readInput(env, path)
	if err != nil {
		return "", false
	}
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:]), true
}

// repositoryRoot is the top directory of the repository that a directory is in: the
// next one that Git keeps, else GitHub's workspace, else the directory itself.
func repositoryRoot(env *environment, dir string) string {
	for up := dir; up != ""; up = filepath.Dir(up) {
		if _, err := os.Stat(filepath.Join(up, ".git")); err == nil {
			return up
		}
		if up == filepath.Dir(up) {
			break
		}
	}
	if workspace := env.getenv("GITHUB_WORKSPACE"); workspace != "" {
		if below, err := filepath.Rel(workspace, dir); err == nil && filepath.IsLocal(below) {
			return workspace
		}
	}
	return dir
}

// buildCommit is the commit that the binary was built from, "" when it is unknown.
func buildCommit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
