package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/manifest"
)

// The names that the capture commands still use.
type (
	app        = environment
	s3Flags    = s3Options
	storeFlags = storeOptions
)

func newApp(stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) *environment {
	return newEnvironment(stdout, stderr, lookupEnv)
}

func (env *environment) tell(text any)                     { env.printErr(text) }
func (env *environment) root() *cobra.Command              { return newRootCommand(env) }
func (env *environment) runURL() string                    { return workflowRunURL(env) }
func (env *environment) progress(r conformance.Result)     { logResult(env, r) }
func (env *environment) learnBeside(matrix string) error   { return loadProfilesBeside(env, matrix) }
func (env *environment) tellFindings(f []tomlfile.Diagnostic) { printDiagnostics(env, f) }

func (env *environment) orEnv(value, name string) string {
	if set := env.getenv(name); value == "" {
		return set
	}
	return value
}

func (env *environment) load(in inputs) (*compat.Matrix, *manifest.Manifest, error) {
	return loadInputs(env, &in)
}

func (env *environment) loadCompat(path string) (*compat.Matrix, []tomlfile.Diagnostic) {
	return loadCompat(path)
}

func (env *environment) loadManifest(path string, matrix *compat.Matrix) (*manifest.Manifest, []tomlfile.Diagnostic) {
	return loadManifest(env, path, matrix)
}
