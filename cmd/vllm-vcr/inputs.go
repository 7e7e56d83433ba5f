package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// inputs are the files a run is made of. What is not given is taken from the
// working directory where it has a compat.toml, else from the binary.
type inputs struct {
	compat, manifest string
	bundle           string // has both, unless they are given

	checked checkedJSON       // what loadInputs found
	bundled map[string][]byte // what loadInputs took out of the bundle, by the names that it gave
}

// What flags of several commands do.
const (
	compatUsage   = "compat matrix, the `FILE` that lists the supported vLLM lines (default ./" + vcr.CompatPath + ", else the one in the binary)"
	manifestUsage = "manifest, the `FILE` that lists the goldens (default $CONFORMANCE_MANIFEST, ./" + vcr.ManifestPath + ", else the one in the binary)"
	editedUsage   = "manifest, the `FILE` that lists the goldens; it is edited (default $CONFORMANCE_MANIFEST, else ./" + vcr.ManifestPath + ")"
	indexUsage    = "`URL` of the Python package index (default $PIP_INDEX_URL, $UV_DEFAULT_INDEX, $UV_INDEX_URL, else " + pypi.DefaultURL + ")"
	peersUsage    = "absolute path of the `FOLDER` for installed engines (default in the folder vllm-vcr of the user's cache directory)"
	outputUsage   = "`FILE` to write instead of stdout"
	linesUsage    = "vLLM lines, such as 0.33; a release such as v0.33.0 selects its line; may be repeated (default all)"
	workUsage     = "`FOLDER` for recordings and logs, with a subfolder LINE/ID for each target"
	uploadUsage   = "store the goldens in this place instead of --goldens: `s3://BUCKET/PREFIX` or file:///FOLDER"
)

func (in *inputs) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&in.compat, "compat", "", compatUsage)
	flags.StringVar(&in.manifest, "manifest", "", manifestUsage)
	grouped(flags, "Configuration files")
}

// loadInputs reads and checks the compat matrix and the manifest. A diagnostic that is an error ends the command.
func loadInputs(env *environment, in *inputs) (*compat.Matrix, *manifest.Manifest, error) {
	if err := in.openBundle(); err != nil {
		return nil, nil, err
	}
	matrix, diagnostics := in.loadCompat()
	mf, more := in.loadManifest(env, matrix)
	diagnostics = append(diagnostics, more...)
	if isEmbedded(matrix.File) && !isEmbedded(mf.File) {
		// The user did not write that lines are validated: those without fidelity goldens do not gate.
		for i := range matrix.Lines {
			line := &matrix.Lines[i]
			line.FidelityValidated = line.FidelityValidated && slices.ContainsFunc(mf.ForLine(line.Name), func(g manifest.Golden) bool { return g.Role == manifest.Fidelity })
		}
	}
	if !tomlfile.HasErrors(diagnostics) {
		diagnostics = append(diagnostics, conformance.CheckInputs(matrix, mf)...)
	}
	in.checked = checkedJSON{
		Schema: schemaOf("compat-check"), Compat: matrix.File, Lines: len(matrix.Lines), Manifest: mf.File, Goldens: len(mf.Goldens),
		Diagnostics: diagnosticsResult(diagnostics),
	}
	return matrix, mf, refuse(env, matrix.File+" or "+mf.File, diagnostics)
}

// maxDiagnostics is how many diagnostics of a file are printed. More have one cause, such as a wrong file.
const maxDiagnostics = 100

// printDiagnostics prints diagnostics. Of too many, it prints errors first.
func printDiagnostics(env *environment, diagnostics []tomlfile.Diagnostic) {
	if len(diagnostics) > maxDiagnostics {
		diagnostics = slices.Clone(diagnostics)
		slices.SortStableFunc(diagnostics, func(x, y tomlfile.Diagnostic) int { return strings.Compare(string(x.Severity), string(y.Severity)) })
	}
	for _, f := range diagnostics[:min(len(diagnostics), maxDiagnostics)] {
		env.printErr(f)
	}
	if more := len(diagnostics) - maxDiagnostics; more > 0 {
		env.printErr(fmt.Sprintf("%s: and %d more", diagnostics[maxDiagnostics].File, more))
	}
}

// openBundle reads from the bundle the files that are not given.
func (in *inputs) openBundle() error {
	if in.bundle == "" {
		return nil
	}
	file, err := golden.OpenBundle(in.bundle)
	if err != nil {
		return err
	}
	in.bundled = map[string][]byte{}
	for _, member := range []struct {
		given, name string
		text        func() ([]byte, error)
	}{{in.compat, vcr.CompatPath, file.Compat}, {in.manifest, vcr.ManifestPath, file.Manifest}} {
		if member.given != "" {
			continue
		}
		if in.bundled[in.memberName(member.name)], err = member.text(); err != nil {
			return err
		}
	}
	return nil
}

// memberName is what a file of the bundle is called in messages and reports.
func (in *inputs) memberName(name string) string { return in.bundle + ":" + path.Base(name) }

func (in *inputs) loadCompat() (*compat.Matrix, []tomlfile.Diagnostic) {
	name := in.memberName(vcr.CompatPath)
	if text, ok := in.bundled[name]; ok {
		return compat.Parse(name, text)
	}
	return loadCompat(in.compat)
}

func (in *inputs) loadManifest(env *environment, matrix *compat.Matrix) (*manifest.Manifest, []tomlfile.Diagnostic) {
	name := in.memberName(vcr.ManifestPath)
	if text, ok := in.bundled[name]; ok {
		return manifest.Parse(name, text)
	}
	return loadManifest(env, in.manifest, matrix)
}

// read is a file of a run, as [loadInputs] names it.
func (in *inputs) read(path string) ([]byte, error) {
	if text, ok := in.bundled[path]; ok {
		return text, nil
	}
	if inside, ok := strings.CutPrefix(path, report.Embedded); ok {
		return embedded(inside), nil
	}
	return os.ReadFile(path)
}

func isEmbedded(name string) bool { return strings.HasPrefix(name, report.Embedded) }

func loadCompat(path string) (*compat.Matrix, []tomlfile.Diagnostic) {
	if path == "" && exists(vcr.CompatPath) {
		path = vcr.CompatPath
	}
	if path != "" {
		return compat.Load(path)
	}
	return compat.Parse(report.Embedded+vcr.CompatPath, embedded(vcr.CompatPath))
}

func loadManifest(env *environment, path string, matrix *compat.Matrix) (*manifest.Manifest, []tomlfile.Diagnostic) {
	path = cmp.Or(path, env.getenv("CONFORMANCE_MANIFEST"))
	if path == "" && exists(vcr.ManifestPath) {
		path = vcr.ManifestPath
	}
	if path != "" {
		return manifest.Load(path)
	}
	mf, diagnostics := manifest.Parse(report.Embedded+vcr.ManifestPath, embedded(vcr.ManifestPath))
	known := map[string]bool{} // the user did not write goldens of other lines there
	for _, l := range matrix.Lines {
		known[l.Name], known[strings.ToUpper(l.Name)] = true, true
	}
	mf.Goldens = slices.DeleteFunc(mf.Goldens, func(g manifest.Golden) bool { return !known[g.Line] })
	mf.Blocks = slices.DeleteFunc(mf.Blocks, func(b manifest.Block) bool { return !known[b.Label] })
	return mf, diagnostics
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

// maxPatternFile bounds a file of patterns, in bytes.
const maxPatternFile = 1 << 20

// readPatterns reads the values of a flag that takes patterns: one that begins with @
// names a file that holds one a line, with # before comments. A pattern that cannot be
// read is an error that names its place.
func readPatterns(flag string, values []string) ([]string, error) {
	var patterns []string
	for _, value := range values {
		path, isFile := strings.CutPrefix(value, "@")
		if !isFile {
			if _, err := conformance.ParsePattern(value); err != nil {
				return nil, fmt.Errorf("%s: %w", flag, err)
			}
			patterns = append(patterns, value)
			continue
		}
		more, err := patternFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		patterns = append(patterns, more...)
	}
	return patterns, nil
}

// patternFile reads a file of patterns. One without any is an error: it would select
// nothing, which a flag that is not given does not mean.
func patternFile(path string) ([]string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxPatternFile:
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxPatternFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var patterns []string
	var wrong []error
	for i, line := range strings.Split(string(data), "\n") {
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if _, err := conformance.ParsePattern(text); err != nil {
			wrong = append(wrong, fmt.Errorf("%s:%d: %w", path, i+1, err))
		}
		patterns = append(patterns, text)
	}
	if len(patterns) == 0 {
		return nil, fmt.Errorf("%s: has no pattern", path)
	}
	return patterns, errors.Join(wrong...)
}

// profilesFlag names the folder of wire profiles that this build does not have.
const profilesFlag = "profiles"

// loadProfiles takes in the wire profiles of --profiles, or else those next to the compat matrix that the command works
// with: every command knows the lines of the compat matrix.
func loadProfiles(env *environment, cmd *cobra.Command) error {
	if env.profiles == "" {
		return loadProfilesBeside(env, cmp.Or(flagText(cmd, "compat"), vcr.CompatPath))
	}
	env.profilesNamed = true
	info, err := os.Stat(env.profiles)
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err == nil {
		err = loadProfileFolder(env, env.profiles, os.DirFS(env.profiles))
	}
	if err != nil {
		return fmt.Errorf("--%s %s: %w", profilesFlag, env.profiles, err)
	}
	return learnReleases(env.profiles)
}

// loadProfilesBeside takes in the profiles next to a compat matrix, if it has any and no others were named.
func loadProfilesBeside(env *environment, matrix string) error {
	if env.profilesNamed || !exists(matrix) {
		return nil
	}
	return loadLineProfiles(env, filepath.Join(filepath.Dir(matrix), drift.ProfilesPath))
}

// loadLineProfiles takes in the profiles of a folder that may have none, or be about something else.
func loadLineProfiles(env *environment, dir string) error {
	if err := learnReleases(dir); err != nil {
		return err
	}
	files := protocol.LineFiles(os.DirFS(dir))
	if names, err := fs.Glob(files, "*.json"); err != nil || len(names) == 0 {
		return err
	}
	if err := loadProfileFolder(env, dir, files); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// learnReleases takes in what may run of releases that this build does not know, from the folder of the profiles.
func learnReleases(dir string) error {
	if err := pinned.LearnAll(os.DirFS(dir)); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func loadProfileFolder(env *environment, dir string, files fs.FS) (err error) {
	if err := protocol.LearnAll(files); err != nil {
		return err
	}
	env.profiles, err = filepath.Abs(dir)
	return err
}

// refuse prints diagnostics, and returns an error if one of them is an error.
func refuse(env *environment, file string, diagnostics []tomlfile.Diagnostic) error {
	printDiagnostics(env, diagnostics)
	if tomlfile.HasErrors(diagnostics) {
		return fmt.Errorf("%s has errors: correct what is listed above", file)
	}
	return nil
}

// A vLLM version is given as a line or as a release, each with or without the v of tags: 0.33, v0.33, 0.33.0, v0.33.0. Flags
// that choose lines of the compat matrix read it by [compat.Matrix.Lookup], all others by tagOf or releaseNamed.

// tagOf is a version as the tag of a release, v0.33.0, or as the name of a line, 0.33. Other text stays as it is, and
// is reported where the version is needed.
func tagOf(version string) string {
	if v, err := compat.ParseVersion(version); err == nil {
		return v.Tag()
	}
	if bare := strings.TrimPrefix(version, "v"); drift.IsLine(bare) {
		return bare
	}
	return version
}

// releaseNamed is a version as a release, 0.33.0. A line is that of its tag in the compat matrix, else of the profile that this
// build has of it.
func releaseNamed(version string, matrix *compat.Matrix) string {
	tag := tagOf(version)
	if l, ok := matrix.Lookup(tag); ok && l.Name == tag && !compat.IsTracker(l.Name) {
		tag = l.Tag
	} else if p, err := protocol.LoadProfile(tag); err == nil && p.Line == tag {
		tag = p.Version
	}
	if v, err := compat.ParseVersion(tag); err == nil {
		return v.String()
	}
	return tag
}

// releasesOf are the releases of arguments, by the compat matrix of this folder. What is a file stays as it is.
func releasesOf(arguments []string) []string {
	matrix, _ := loadCompat("") // commands that need it print its diagnostics
	releases := slices.Clone(arguments)
	for i, a := range arguments {
		if !exists(a) {
			releases[i] = releaseNamed(a, matrix)
		}
	}
	return releases
}
