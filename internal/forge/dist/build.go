package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	slashpath "path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
)

// A target is a system and an architecture as Go names them.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

// allTargets are those of a release.
var allTargets = []target{
	{"darwin", "amd64"},
	{"darwin", "arm64"},
	{"linux", "amd64"},
	{"linux", "arm64"},
	{"windows", "amd64"},
	{"windows", "arm64"},
}

// build writes the archives, wheels and SBOMs of the targets and their checksums.txt into the folder out. What an earlier build
// left there is replaced when all have been built, and not before.
func (p *product) build(ctx context.Context, version string, targets []target, out string, env []string) error {
	env, err := p.environment(ctx, env)
	if err != nil {
		return err
	}
	if err := p.requireCompiler(ctx, env); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(out, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	// To find a tool takes longer than to run it.
	tool, err := output(ctx, p.tools, env, "go", "tool", "-n", "cyclonedx-gomod")
	if err != nil {
		return fmt.Errorf("SBOM: %w", err)
	}
	// Linkers use one processor.
	failures := make([]error, len(targets))
	free := make(chan struct{}, runtime.NumCPU())
	var running sync.WaitGroup
	for i, t := range targets {
		free <- struct{}{}
		fmt.Fprintf(p.log, "%s %s %s\n", p.name, version, t)
		running.Go(func() {
			defer func() { <-free }()
			if err := p.buildTarget(ctx, version, t, fresh, strings.TrimSpace(string(tool)), env); err != nil {
				failures[i] = fmt.Errorf("%s: %w", t, err)
			}
		})
	}
	running.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	sums, err := sumArchives(fresh)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(fresh, checksumsName), []byte(sums.String()), 0o644); err != nil {
		return err
	}
	fmt.Fprint(p.log, sums)
	return replaceFiles(out, fresh, p.name)
}

// buildTarget writes the archive, the wheel and the SBOM of one target into dir.
func (p *product) buildTarget(ctx context.Context, version string, t target, dir, sbomTool string, env []string) error {
	work, err := os.MkdirTemp(dir, ".work-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	entries := []entry{
		{path: filepath.Join(p.root, "LICENSE"), mode: 0o644},
		{path: filepath.Join(p.root, "README.md"), mode: 0o644},
	}
	manual, err := p.writeManual(version, work)
	if err != nil {
		return err
	}
	entries = append(entries, manual...)
	build := []string{
		"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.version=" + version, "-o", work + string(filepath.Separator),
	}
	var binaries []string
	for _, name := range slices.Concat([]string{p.name}, p.helpers) {
		build = append(build, "./cmd/"+name)
		binary := filepath.Join(work, name)
		if t.os == "windows" {
			binary += ".exe"
		}
		binaries = append(binaries, binary)
		entries = append(entries, entry{path: binary, mode: 0o755})
	}
	if _, err := output(ctx, p.root, append(slices.Clone(env), "GOOS="+t.os, "GOARCH="+t.arch), "go", build...); err != nil {
		return err
	}
	base := filepath.Join(dir, fmt.Sprintf("%s_%s_%s_%s", p.name, version, t.os, t.arch))
	if err := p.writeSBOM(ctx, version, binaries, base+sbomSuffix, sbomTool, env); err != nil {
		return err
	}
	if err := pack(base+archiveSuffix, entries); err != nil {
		return err
	}
	return p.writeWheel(version, t, dir, binaries[0])
}

// kept are the settings of the go command that say where things are, and change no byte of what it builds.
var kept = []string{
	"GOPATH", "GOCACHE", "GOMODCACHE",
	"GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOINSECURE", "GOAUTH",
}

// environment is that of the go command: this process's, but of the settings of Go, which may also stand in a file of
// the user's, only those that change nothing. more comes last and wins.
func (p *product) environment(ctx context.Context, more []string) ([]string, error) {
	out, err := output(ctx, p.root, nil, "go", append([]string{"env", "-json"}, kept...)...)
	if err != nil {
		return nil, err
	}
	var settings map[string]string
	if err := json.Unmarshal(out, &settings); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "GO") || strings.HasPrefix(s, "CGO_")
	})
	for _, name := range kept {
		if value := settings[name]; value != "" {
			env = append(env, name+"="+value)
		}
	}
	env = append(env, "GOENV=off", "GOTOOLCHAIN=local", "GOWORK=off", "CGO_ENABLED=0")
	return append(env, more...), nil
}

// requireCompiler fails unless the go command is of the release that the toolchain line of go.mod names.
func (p *product) requireCompiler(ctx context.Context, env []string) error {
	out, err := output(ctx, p.root, env, "go", "mod", "edit", "-json")
	if err != nil {
		return err
	}
	var mod struct{ Toolchain string }
	if err := json.Unmarshal(out, &mod); err != nil {
		return fmt.Errorf("go mod edit -json: %w", err)
	}
	if mod.Toolchain == "" {
		return fmt.Errorf("%s has no toolchain line: releases need one exact compiler", filepath.Join(p.root, "go.mod"))
	}
	out, err = output(ctx, p.root, env, "go", "env", "GOVERSION")
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(out)); got != mod.Toolchain {
		return fmt.Errorf("the compiler is %s, but go.mod says toolchain %s, and another one builds other bytes: "+
			"install it, or let the go command do so with GOTOOLCHAIN=%[2]s", got, mod.Toolchain)
	}
	return nil
}

// output runs a program in a folder and returns what it wrote. When it fails, the error says what it complained of.
func output(ctx context.Context, dir string, env []string, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", program, args[0], err, said.Bytes())
	}
	return out, nil
}

// replaceFiles moves the files of fresh into out, and removes what an earlier build of the product left there.
func replaceFiles(out, fresh, name string) error {
	old, err := filepath.Glob(filepath.Join(out, strings.ReplaceAll(name, "-", "?")+"?*"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if strings.HasSuffix(path, archiveSuffix) || strings.HasSuffix(path, sbomSuffix) || strings.HasSuffix(path, wheelSuffix) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	built, err := os.ReadDir(fresh)
	if err != nil {
		return err
	}
	for _, file := range built {
		if err := os.Rename(filepath.Join(fresh, file.Name()), filepath.Join(out, file.Name())); err != nil {
			return err
		}
	}
	return nil
}

const sbomSuffix = ".cdx.json"

// writeSBOM writes what binaries say they were linked from as CycloneDX JSON. It is about the first of them, and has the
// components of all.
func (p *product) writeSBOM(ctx context.Context, version string, binaries []string, path, tool string, env []string) error {
	var written [][]byte
	for _, binary := range binaries {
		_, err := output(ctx, p.tools, env, tool,
			"bin", "-json", "-noserial", "-std", "-version", "v"+version, "-output", path, binary)
		if err != nil {
			return fmt.Errorf("SBOM: %w", err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		written = append(written, text)
	}
	settled, err := settleSBOM(written...)
	if err != nil {
		return fmt.Errorf("SBOM: %w", err)
	}
	return os.WriteFile(path, settled, 0o644)
}

// settleSBOM returns the first SBOM with the components and dependencies of the others, and without what another run would
// say otherwise: when it was written, and the digests of the program that wrote it, which each machine builds for itself.
func settleSBOM(written ...[]byte) ([]byte, error) {
	var bom map[string]any
	for i, text := range written {
		var other map[string]any
		if err := json.Unmarshal(text, &other); err != nil {
			return nil, err
		}
		if components, _ := other["components"].([]any); len(components) == 0 {
			return nil, errors.New("it lists no component")
		}
		if i == 0 {
			bom = other
			continue
		}
		addMissing(bom, other, "components", "bom-ref")
		addMissing(bom, other, "dependencies", "ref")
	}
	metadata, ok := bom["metadata"].(map[string]any)
	if !ok {
		return nil, errors.New("it has no metadata")
	}
	delete(metadata, "timestamp")
	tools, _ := metadata["tools"].([]any)
	for _, tool := range tools {
		if tool, ok := tool.(map[string]any); ok {
			delete(tool, "hashes")
		}
	}
	return jsonout.Bytes(bom)
}

// addMissing appends to the list of a key what only the list of the other has, by the name that each element has under id.
func addMissing(bom, other map[string]any, key, id string) {
	list, _ := bom[key].([]any)
	more, _ := other[key].([]any)
	has := map[any]bool{}
	for _, element := range list {
		if element, ok := element.(map[string]any); ok {
			has[element[id]] = true
		}
	}
	for _, element := range more {
		if element, ok := element.(map[string]any); ok && !has[element[id]] {
			list = append(list, element)
		}
	}
	if len(list) > 0 {
		bom[key] = list
	}
}

const archiveSuffix = ".tar.gz"

// An entry is a file that goes into an archive under its own name, in a folder of the archive or in none.
type entry struct {
	path   string
	mode   int64
	folder string
}

func (e entry) name() string { return slashpath.Join(e.folder, filepath.Base(e.path)) }

// pack writes a gzipped tar of the entries, which holds nothing that another machine would say otherwise: they are
// sorted by name, belong to user and group 0, and are of 1970.
func pack(path string, entries []entry) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Its header has neither a name nor a time unless they are set. The best compression saves 0.3 % and takes 2.5 times as long.
	zw := gzip.NewWriter(file)
	tw := tar.NewWriter(zw)
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b entry) int {
		return cmp.Compare(a.name(), b.name())
	})
	for _, e := range sorted {
		if err := e.write(tw); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), zw.Close())
}

func (e entry) write(tw *tar.Writer) error {
	file, err := os.Open(e.path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	err = tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: e.name(), Size: info.Size(), Mode: e.mode,
		ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = io.Copy(tw, file)
	return err
}
