package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

const (
	wheelSuffix = ".whl"
	// maxWheel is the maximum size of a wheel in bytes: what an installer downloads before the first test runs.
	maxWheel = 20 << 20
)

// platforms are the tags of wheels. A static program runs with any C library. macOS 12 is the oldest that Go 1.26 supports.
var platforms = map[target]string{
	{"darwin", "amd64"}:  "macosx_12_0_x86_64",
	{"darwin", "arm64"}:  "macosx_12_0_arm64",
	{"linux", "amd64"}:   "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
	{"linux", "arm64"}:   "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
	{"windows", "amd64"}: "win_amd64",
	{"windows", "arm64"}: "win_arm64",
}

// A pyproject is what pyproject.toml says about the package of Python.
type pyproject struct {
	Project struct {
		Name           string                       `toml:"name"`
		Description    string                       `toml:"description"`
		Readme         string                       `toml:"readme"`
		RequiresPython string                       `toml:"requires-python"`
		License        string                       `toml:"license"`
		Classifiers    []string                     `toml:"classifiers"`
		Keywords       []string                     `toml:"keywords"`
		URLs           map[string]string            `toml:"urls"`
		Scripts        map[string]string            `toml:"scripts"`
		EntryPoints    map[string]map[string]string `toml:"entry-points"`
	} `toml:"project"`
}

// writeWheel writes the wheel of a target into dir: the package of Python in the folder p.python, with the program in it.
func (p *product) writeWheel(version string, t target, dir, program string) error {
	if p.python == "" {
		return nil
	}
	source := p.path(p.python)
	var about pyproject
	if _, err := toml.DecodeFile(filepath.Join(source, "pyproject.toml"), &about); err != nil {
		return err
	}
	version = pythonVersion(version)
	name := strings.ReplaceAll(about.Project.Name, "-", "_")
	readme, err := os.ReadFile(filepath.Join(source, about.Project.Readme))
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(p.root, "LICENSE"))
	if err != nil {
		return err
	}
	info := name + "-" + version + ".dist-info/"
	files := map[string][]byte{
		info + "licenses/LICENSE": license,
		info + "METADATA":         about.metadata(version, string(readme)),
		info + "entry_points.txt": about.entryPoints(),
		info + "WHEEL":            about.wheel(platforms[t]),
	}
	add := func(dir, folder, to string, kinds ...string) error {
		return fs.WalkDir(os.DirFS(dir), folder, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && slices.Contains(kinds, filepath.Ext(path)) {
				files[to+path], err = os.ReadFile(filepath.Join(dir, path))
			}
			return err
		})
	}
	if err := add(source, name, "", ".py", ".typed"); err != nil {
		return err
	}
	if err := add(p.root, "vectors", name+"/", ".json", ".msgpack", ".md"); err != nil {
		return err
	}
	binary := name + "/bin/" + filepath.Base(program)
	if files[binary], err = os.ReadFile(program); err != nil {
		return err
	}
	wheel := fmt.Sprintf("%s-%s-py3-none-%s%s", name, version, platforms[t], wheelSuffix)
	return packWheel(filepath.Join(dir, wheel), files, info+"RECORD", binary)
}

// packWheel writes a zip of the files and their digests, which has nothing that another machine would write otherwise.
func packWheel(path string, files map[string][]byte, record, executable string) (err error) {
	var all bytes.Buffer
	zw := zip.NewWriter(&all)
	zw.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	var digests strings.Builder
	add := func(name string, data []byte) {
		header := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
		header.SetMode(0o644)
		if name == executable {
			header.SetMode(0o755)
		}
		w, failed := zw.CreateHeader(header)
		if failed == nil {
			_, failed = w.Write(data)
		}
		err = errors.Join(err, failed)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		add(name, files[name])
		sum := sha256.Sum256(files[name])
		fmt.Fprintf(&digests, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	add(record, []byte(digests.String()+record+",,\n"))
	if err = errors.Join(err, zw.Close()); err != nil {
		return err
	}
	if all.Len() > maxWheel {
		return fmt.Errorf("%s has %d bytes: want at most %d", filepath.Base(path), all.Len(), maxWheel)
	}
	return os.WriteFile(path, all.Bytes(), 0o644)
}

var relativeLink = regexp.MustCompile(`\]\((\.\./)?([\w/-]+)(\.md)?(#[\w-]+)?\)`)

// metadata is METADATA, with the readme as the description. Links to other pages lead to the repository.
func (y *pyproject) metadata(version, readme string) []byte {
	var b bytes.Buffer
	line := func(key, value string) { fmt.Fprintf(&b, "%s: %s\n", key, value) }
	line("Metadata-Version", "2.4")
	line("Name", y.Project.Name)
	line("Version", version)
	line("Summary", y.Project.Description)
	line("License-Expression", y.Project.License)
	line("License-File", "LICENSE")
	line("Keywords", strings.Join(y.Project.Keywords, ","))
	for _, c := range y.Project.Classifiers {
		line("Classifier", c)
	}
	for _, label := range slices.Sorted(maps.Keys(y.Project.URLs)) {
		line("Project-URL", label+", "+y.Project.URLs[label])
	}
	line("Requires-Python", y.Project.RequiresPython)
	line("Description-Content-Type", "text/markdown")
	base := y.Project.URLs["Repository"] + "/blob/main/"
	b.WriteString("\n" + relativeLink.ReplaceAllStringFunc(readme, func(link string) string {
		to := strings.TrimPrefix(link, "](")
		if up, ok := strings.CutPrefix(to, "../"); ok {
			return "](" + base + up
		}
		return "](" + base + "docs/" + to
	}))
	return b.Bytes()
}

func (y *pyproject) entryPoints() []byte {
	groups := map[string]map[string]string{"console_scripts": y.Project.Scripts}
	maps.Copy(groups, y.Project.EntryPoints)
	var b bytes.Buffer
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "[%s]\n", group)
		for _, name := range slices.Sorted(maps.Keys(groups[group])) {
			fmt.Fprintf(&b, "%s = %s\n", name, groups[group][name])
		}
		b.WriteString("\n")
	}
	return b.Bytes()
}

func (y *pyproject) wheel(platform string) []byte {
	var b bytes.Buffer
	b.WriteString("Wheel-Version: 1.0\nGenerator: vllm-vcr dist\nRoot-Is-Purelib: false\n")
	for tag := range strings.SplitSeq(platform, ".") {
		fmt.Fprintf(&b, "Tag: py3-none-%s\n", tag)
	}
	return b.Bytes()
}

var preRelease = regexp.MustCompile(`^(alpha|beta|rc)\.?(\d+)$`)

// pythonVersion is a version as Python spells it: 1.2.3rc1 for 1.2.3-rc.1, and 0.0.0.dev0+main.gabc, which no index takes, for
// 0.0.0-main.gabc.
func pythonVersion(version string) string {
	numbers, suffix, found := strings.Cut(version, "-")
	if !found {
		return numbers
	}
	if m := preRelease.FindStringSubmatch(suffix); m != nil {
		return numbers + map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[m[1]] + m[2]
	}
	return numbers + ".dev0+" + strings.ToLower(suffix)
}
