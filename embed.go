// Package vcr embeds what the runner needs to run anywhere: the support window,
// the registry of goldens, and the goldens that released vLLM engines emitted.
package vcr

import "embed"

// Paths in [Files], the same as in the repository.
const (
	CompatPath   = "compat.toml"
	ManifestPath = "conformance/manifest.toml"
	GoldensPath  = "testdata/goldens"
)

// Files holds the files of [CompatPath], [ManifestPath] and below [GoldensPath].
//
//go:embed compat.toml conformance/manifest.toml testdata/goldens
var Files embed.FS
