package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// inputs are the files a run is made of. What is not given is taken from the
// working directory where it has a compat.toml, else from the binary.
type inputs struct {
	compat, manifest string
	bundle           string // has both, unless they are given
}

func (in *inputs) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&in.compat, "compat", "", "support window (default ./"+vcr.CompatPath+", else the one in the binary)")
	flags.StringVar(&in.manifest, "manifest", "", "registry of goldens (default $CONFORMANCE_MANIFEST, ./"+vcr.ManifestPath+", else the one in the binary)")
}

// loadInputs reads and checks both files. Findings that are errors end the command.
func loadInputs(env *environment, in inputs) (*compat.Matrix, *manifest.Manifest, error) {
	if err := openBundle(env, &in); err != nil {
		return nil, nil, err
	}
	window, findings := loadCompat(env, in.compat)
	registry, more := loadManifest(env, in.manifest, window)
	findings = append(findings, more...)
	if !tomlfile.HasErrors(findings) {
		findings = append(findings, conformance.CheckInputs(window, registry)...)
	}
	printDiagnostics(env, findings)
	if tomlfile.HasErrors(findings) {
		return nil, nil, fmt.Errorf("%s or %s cannot be used as it is", window.File, registry.File)
	}
	return window, registry, nil
}

// mostFindings are how many findings of a file are shown: who has more has another kind of problem.
const mostFindings = 100

// printDiagnostics tells what is wrong with the inputs. Of too many, errors come first.
func printDiagnostics(env *environment, findings []tomlfile.Diagnostic) {
	if len(findings) > mostFindings {
		findings = slices.Clone(findings)
		slices.SortStableFunc(findings, func(x, y tomlfile.Diagnostic) int { return strings.Compare(string(x.Severity), string(y.Severity)) })
	}
	for _, f := range findings[:min(len(findings), mostFindings)] {
		env.printErr(f)
	}
	if more := len(findings) - mostFindings; more > 0 {
		env.printErr(fmt.Sprintf("%s: and %d more", findings[mostFindings].File, more))
	}
}

// openBundle takes from the bundle the files that are not given. Their names begin with
// that of the bundle.
func openBundle(env *environment, in *inputs) error {
	if in.bundle == "" {
		return nil
	}
	file, err := golden.OpenBundle(in.bundle)
	if err != nil {
		return err
	}
	env.bundled = map[string][]byte{}
	for _, member := range []struct {
		path *string
		name string
		text func() ([]byte, error)
	}{{&in.compat, vcr.CompatPath, file.Compat}, {&in.manifest, vcr.ManifestPath, file.Manifest}} {
		if *member.path != "" {
			continue
		}
		text, err := member.text()
		if err != nil {
			return err
		}
		*member.path = in.bundle + ":" + path.Base(member.name)
		env.bundled[*member.path] = text
	}
	return nil
}

func loadCompat(env *environment, path string) (*compat.Matrix, []tomlfile.Diagnostic) {
	if path == "" && exists(vcr.CompatPath) {
		path = vcr.CompatPath
	}
	if text, ok := env.bundled[path]; ok {
		return compat.Parse(path, text)
	}
	if path != "" {
		return compat.Load(path)
	}
	return compat.Parse("(embedded) "+vcr.CompatPath, embedded(vcr.CompatPath))
}

func loadManifest(env *environment, path string, window *compat.Matrix) (*manifest.Manifest, []tomlfile.Diagnostic) {
	path = cmp.Or(path, env.getenv("CONFORMANCE_MANIFEST"))
	if path == "" && exists(vcr.ManifestPath) {
		path = vcr.ManifestPath
	}
	if text, ok := env.bundled[path]; ok {
		return manifest.Parse(path, text)
	}
	if path != "" {
		return manifest.Load(path)
	}
	registry, findings := manifest.Parse("(embedded) "+vcr.ManifestPath, embedded(vcr.ManifestPath))
	keepLines(registry, window)
	return registry, findings
}

// keepLines leaves out of the embedded registry what is of other lines than the
// window's: the user did not write it there.
func keepLines(registry *manifest.Manifest, window *compat.Matrix) {
	known := map[string]bool{}
	for _, l := range window.Lines {
		known[l.Name], known[strings.ToUpper(l.Name)] = true, true
	}
	registry.Goldens = slices.DeleteFunc(registry.Goldens, func(g manifest.Golden) bool { return !known[g.Line] })
	registry.Blocks = slices.DeleteFunc(registry.Blocks, func(b manifest.Block) bool { return !known[b.Label] })
}

func exists(path string) bool {
	_, err := os.Stat(filepath.FromSlash(path))
	return err == nil
}

// embedded reads a file that the build has put into the binary.
func embedded(path string) []byte {
	data, err := fs.ReadFile(vcr.Files, path)
	if err != nil {
		return nil // not reached: the build fails without the file
	}
	return data
}
