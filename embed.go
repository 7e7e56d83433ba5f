// Package vcr embeds what the runner needs to run anywhere: the compat matrix,
// the manifest of goldens, the goldens that released vLLM engines emitted, what is
// captured anew, what is known to fail, and pages for people.
package vcr

import "embed"

// Paths in [Files], the same as in the repository.
const (
	CompatPath   = "compat.toml"
	ManifestPath = "conformance/manifest.toml"
	// ExpectationsPath is what is known to fail.
	ExpectationsPath = "conformance.toml"
	GoldensPath      = "testdata/goldens"
	// TargetsPath is what is captured.
	TargetsPath = "capture/targets.toml"
	// DocsPath is the folder of the pages for people. All are embedded but cli.md and findings.md, which the program can write.
	DocsPath = "docs"
	// ModelPath is the model directory that real frontends are started with: configuration and tokenizer, no weights.
	ModelPath = "testdata/model/tiny"
	// DeployPath is what a cluster needs before the first capture.
	DeployPath = "deploy"
	// ChartPath is the Helm chart of what `vllm-vcr deploy` renders.
	ChartPath = "deploy/chart"
)

// Files holds the files of these paths, and what is below [GoldensPath] and [ModelPath].
//
//go:embed compat.toml capture/targets.toml capture/sessions conformance/manifest.toml conformance.toml testdata/goldens compat/rules.md manifest/rules.md internal/capture/target/rules.md docs/[^cf]*.md docs/c[^l]*.md docs/f[^i]*.md testdata/model/tiny deploy/*.yaml all:deploy/chart
var Files embed.FS
