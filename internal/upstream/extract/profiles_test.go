package extract

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// inWheels are the releases of which testdata/wheels has the members that are read. What is in these files is part of
// vLLM, and licensed as testdata/wheels/README.md says.
var inWheels = []string{"0.33.0", "0.27.1"}

func wheelPath(version string) string {
	return "testdata/wheels/vllm-" + version + "-cp38-abi3-manylinux_2_28_x86_64.whl"
}

// older are releases without a line, which releases are compared with.
var older = []string{"0.23.0", "0.24.0", "0.25.0", "0.27.0"}

// committed are the releases that a profile is committed of, and its path.
func committed(t *testing.T) map[string]string {
	t.Helper()
	text, err := vcr.Files.ReadFile(vcr.CompatPath)
	require.NoError(t, err)
	matrix, findings := compat.Parse(vcr.CompatPath, text)
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	paths := map[string]string{}
	for _, l := range matrix.Lines {
		if !l.IsTracker() {
			paths[strings.TrimPrefix(l.Tag, "v")] = filepath.Join("../../wire/protocol/profiles", l.Name+".json")
		}
	}
	for _, version := range older {
		paths[version] = filepath.Join("../wirediff/testdata/profiles", version+".json")
	}
	if len(paths) < 13 {
		t.Fatalf("%d releases, want at least 13", len(paths))
	}
	return paths
}

// TestProfilesOfWheels: the profiles in the binary are what is extracted from the releases.
func TestProfilesOfWheels(t *testing.T) {
	for _, version := range inWheels {
		t.Run(version, func(t *testing.T) {
			release, err := open(t.Context(), &pypi.Index{}, Request{Name: wheelPath(version)})
			require.NoError(t, err)
			defer release.close()
			compareProfile(t, committed(t)[version], release)
		})
	}
}

func compareProfile(t *testing.T, path string, source source) {
	t.Helper()
	p, gaps, err := extractFrom(t, source)
	require.NoError(t, err)
	for _, g := range gaps {
		t.Errorf("gap: %s", g)
	}
	got := profileText(t, p)
	// In memory too a value is written as in a file: a comparison looks at its text.
	if known, err := protocol.ReadProfile(strings.NewReader(got)); err != nil || Text(known) != Text(p) {
		t.Errorf("the profile is another one once it was written and read, %v", err)
	}
	if *update && os.Getenv(envNetwork) != "" {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	if diff := gocmp.Diff(readText(t, path), got); diff != "" {
		t.Errorf("%s is not what the release declares (go generate ./internal/wire/protocol rewrites it), -committed +extracted:\n%s",
			path, diff)
	}
}

const (
	envNetwork = "VLLM_VCR_NETWORK"
	envEngines = "VLLM_VCR_ENGINES"
)

// TestProfilesOfTheIndex reads all releases that a profile is committed of from the package index. With -update it
// rewrites the profiles and the wheels of testdata.
func TestProfilesOfTheIndex(t *testing.T) {
	if os.Getenv(envNetwork) == "" {
		t.Skip("needs the package index: set " + envNetwork + "=1")
	}
	for version, path := range committed(t) {
		t.Run(version, func(t *testing.T) {
			release, err := open(t.Context(), &pypi.Index{}, Request{Name: version})
			require.NoError(t, err)
			defer release.close()
			seen := &spied{release, map[string][]byte{}}
			compareProfile(t, path, seen)
			if n := release.downloaded(); n == 0 || n > 8e6 {
				t.Errorf("%d bytes downloaded, want at most 8 MB", n)
			}
			if *update && slices.Contains(inWheels, version) {
				maps.Copy(seen.files, metadata(t, release, version))
				writeWheel(t, wheelPath(version), seen.files)
			}
		})
	}
}

// metadata are the members of a wheel that say what it is, and its licence.
func metadata(t *testing.T, release source, version string) map[string][]byte {
	t.Helper()
	info := "vllm-" + version + ".dist-info/"
	files, err := release.read(t.Context(), []string{info + "METADATA", info + "licenses/LICENSE"})
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	return files
}

// TestInstalledEngines compares profiles with what Python says of the structs of installed engines once they are
// imported.
func TestInstalledEngines(t *testing.T) {
	versions := strings.Fields(os.Getenv(envEngines))
	if len(versions) == 0 {
		t.Skip("imports engines: set " + envEngines + " to versions that .ci/peers engine installed, such as \"0.33.0 0.27.1\"")
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			home := filepath.Join(testenv.PeersDir(t), "engines", version)
			folders, err := filepath.Glob(filepath.Join(home, "lib", "python*", "site-packages"))
			if err != nil || len(folders) != 1 {
				t.Fatalf("%s has %d folders of packages: %v", home, len(folders), err)
			}
			release, err := open(t.Context(), &pypi.Index{}, Request{Name: folders[0]})
			require.NoError(t, err)
			p, gaps, err := extractFrom(t, release)
			if err != nil || len(gaps) > 0 {
				t.Fatalf("%v, gaps %v", err, gaps)
			}
			require.Equal(t, p.Version, version, "version")
			require.NoDiff(t, gocmp.Diff(imported(t, home, p), declared(p)), "-imported +extracted")
		})
	}
}

// A runtimeStruct is what an imported struct tells of itself.
type runtimeStruct struct {
	Array, OmitDefaults bool
	Tag                 string
	Fields              []string // "name", with "?" if it has a default
}

func declared(p *protocol.Profile) map[string]runtimeStruct {
	structs := map[string]runtimeStruct{}
	for name, s := range p.Structs {
		r := runtimeStruct{Array: s.Encoding == "array", OmitDefaults: s.OmitDefaults, Tag: s.Tag}
		for _, f := range s.Fields {
			field := f.Name
			if !f.Required {
				field += "?"
			}
			r.Fields = append(r.Fields, field)
		}
		structs[name] = r
	}
	for name, e := range p.Enums {
		r := runtimeStruct{}
		for _, m := range e.Members {
			r.Fields = append(r.Fields, m.Name+"="+string(m.Value))
		}
		structs[name] = r
	}
	return structs
}

// imported asks the engine's own Python.
func imported(t *testing.T, home string, p *protocol.Profile) map[string]runtimeStruct {
	t.Helper()
	modules := map[string]string{}
	for name, s := range p.Structs {
		modules[name] = s.Module
	}
	for name, e := range p.Enums {
		modules[name] = e.Module
	}
	input, err := json.Marshal(modules)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(home, "bin", "python3"), "testdata/imported.py")
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "%s", stderr.String())
	structs := map[string]runtimeStruct{}
	// vLLM writes its log to stdout too: the answer is the last line.
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], &structs); err != nil {
		t.Fatal(errors.Join(err, errors.New(stderr.String())))
	}
	return structs
}
