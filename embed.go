// Package vcr embeds what the runner needs to run anywhere: the compat matrix,
// the manifest of goldens, the goldens that released vLLM engines emitted, what is
// captured anew, what is known to fail, and a page on each finding.
package vcr

import (
	"archive/zip"
	"embed"
	"io/fs"
	"strings"
)

// Paths in [Files], the same as in the repository.
const (
	CompatPath   = "compat.toml"
	ManifestPath = "conformance/manifest.toml"
	// ExpectationsPath is what is known to fail.
	ExpectationsPath = "conformance/expectations.toml"
	GoldensPath      = "testdata/goldens"
	// TargetsPath is what is captured.
	TargetsPath = "capture/targets.toml"
	// ModelPath is the model directory that real frontends are started with: configuration and tokenizer, no weights.
	ModelPath = "testdata/model/tiny"
	// DeployPath is what a cluster needs before the first capture.
	DeployPath = "deploy"
)

// Files holds the files of these paths, and what is below [GoldensPath] and [ModelPath].
//
//go:embed compat.toml capture/targets.toml capture/sessions conformance/manifest.toml conformance/expectations.toml testdata/goldens testdata/model/tiny deploy/*.yaml
var Files embed.FS

// FindingsPath is a page on each code of a finding.
const FindingsPath = "docs/findings.md"

// packedPages is written by `go test . -run TestPages -update`.
//
//go:embed docs/pages.zip
var packedPages string

// Pages are [FindingsPath] and the guides, by their paths in the repository. As only somebody who reads one needs them, they are packed.
func Pages() fs.FS {
	pages, err := zip.NewReader(strings.NewReader(packedPages), int64(len(packedPages)))
	if err != nil {
		panic(err) // not reached: the tests read it
	}
	return pages
}
