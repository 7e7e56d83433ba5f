package extract

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// ours is the package whose modules are read.
const ours = "vllm"

// maxFile limits a Python file, in bytes; the largest of vLLM has 320 kB.
const maxFile = 1 << 20

// A source has the Python files of one release.
type source interface {
	// read returns those of the files that exist, by their path: "vllm/v1/engine/__init__.py".
	read(ctx context.Context, paths []string) (map[string][]byte, error)
	// version is the release, as what contains the files names it; "" if nothing does. The version in vllm/_version.py
	// must be the same, apart from the variant.
	version() (string, error)
	// where names the source in errors: a path, or a URL without credentials.
	where() string
}

// A wheel is a source of the members of a wheel, on disk or in an index.
type wheel struct{ *pypi.Wheel }

func (w wheel) read(_ context.Context, paths []string) (map[string][]byte, error) {
	return w.ReadFiles(paths, maxFile)
}

// version is that of METADATA, which must be that of the name.
func (w wheel) version() (string, error) { return w.Version() }

func (w wheel) where() string { return w.File.Name }

// A folder is a source that contains a folder vllm: an unpacked wheel, a folder of installed packages, or a checkout.
type folder struct{ path, named string }

// openFolder makes a source of a folder. The version counts if the folder itself has none, which is that of the one
// vllm-VERSION.dist-info next to the package.
func openFolder(path, version string) (*folder, error) {
	info, err := os.Stat(filepath.Join(path, ours))
	if err != nil || !info.IsDir() {
		const want = "want a checkout, an unpacked wheel, or the site-packages of an installation"
		return nil, fmt.Errorf("folder %s: it has no folder %s: %s", path, ours, want)
	}
	found, err := filepath.Glob(filepath.Join(path, ours+"-*.dist-info"))
	if version == "" && err == nil && len(found) == 1 {
		version = strings.TrimPrefix(strings.TrimSuffix(filepath.Base(found[0]), ".dist-info"), ours+"-")
	}
	return &folder{path, version}, nil
}

func (f *folder) read(ctx context.Context, paths []string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, p := range paths {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		info, err := os.Stat(filepath.Join(f.path, filepath.FromSlash(p)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("folder %s: %w", f.path, err)
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("folder %s: %s is not a regular file", f.path, p)
		case info.Size() > maxFile:
			return nil, fmt.Errorf("folder %s: %s has more than %d bytes", f.path, p, maxFile)
		}
		if files[p], err = os.ReadFile(filepath.Join(f.path, filepath.FromSlash(p))); err != nil {
			return nil, fmt.Errorf("folder %s: %w", f.path, err)
		}
	}
	return files, nil
}

func (f *folder) version() (string, error) { return f.named, nil }

func (f *folder) where() string { return f.path }

// ErrNotNamed is in the error of a name that no release can have, nor any file.
var ErrNotNamed = errors.New("want a version, a wheel, a folder or a URL")

// A release is a source that was opened by its name.
type release struct {
	source
	warning string // for the user: that it was yanked, and why. Mostly empty.

	wheel *pypi.Wheel // nil for a folder
}

// close closes a wheel on disk.
func (r *release) close() {
	if r.wheel != nil {
		_ = r.wheel.Close() // it was only read
	}
}

// downloaded is how many bytes were downloaded until now, the directory of the wheel included.
func (r *release) downloaded() int64 {
	if r.wheel == nil {
		return 0
	}
	return r.wheel.Downloaded()
}

// open finds what a request names, in this order: a file of the index, the URL of a wheel, a folder, a wheel on disk,
// or a version in the index. A version that was yanked is an error unless it is wanted all the same.
func open(ctx context.Context, index *pypi.Index, r Request) (*release, error) {
	name := r.Name
	info, err := os.Stat(name)
	isFolder := err == nil && info.IsDir()
	u, urlErr := url.Parse(name)
	switch {
	case r.Wheel != nil:
		return openWheel(ctx, index, *r.Wheel, "")
	case r.Version != "" && !isFolder:
		if urlErr == nil && u.Host != "" {
			name = u.Redacted() // it may have credentials
		}
		return nil, fmt.Errorf("%s and a version: only a folder may need one: %w", name, ErrNotNamed)
	case strings.Contains(name, "://"):
		if urlErr != nil {
			return nil, fmt.Errorf("the URL of the wheel cannot be read: %w", ErrNotNamed)
		}
		return openWheel(ctx, index, pypi.File{Name: path.Base(u.Path), URL: name}, "")
	case isFolder:
		f, err := openFolder(name, r.Version)
		if err != nil {
			return nil, err
		}
		return &release{source: f}, nil
	case err == nil || strings.HasSuffix(name, ".whl"):
		w, err := pypi.OpenFile(name)
		if err != nil {
			return nil, err
		}
		return &release{source: wheel{w}, wheel: w}, nil
	}
	return openVersion(ctx, index, name, r.Yanked)
}

func openWheel(ctx context.Context, index *pypi.Index, file pypi.File, warning string) (*release, error) {
	w, err := index.OpenWheel(ctx, file)
	if err != nil {
		return nil, err
	}
	return &release{source: wheel{w}, warning: warning, wheel: w}, nil
}

// openVersion opens a wheel of a release. All of a release hold the same Python sources.
func openVersion(ctx context.Context, index *pypi.Index, name string, yanked bool) (*release, error) {
	build, err := compat.ParseBuild(name)
	if err != nil {
		if _, err := compat.ParseBuild(name + ".0"); err == nil {
			return nil, fmt.Errorf("this build has no line %s, and a release has a name such as %[1]s.0: %w", name, ErrNotNamed)
		}
		return nil, fmt.Errorf("%q is not a version, and there is no such file: %w", name, ErrNotNamed)
	}
	releases, err := index.ReleasesAndBuilds(ctx, ours)
	if err != nil {
		return nil, err
	}
	r, err := pypi.Find(releases, build)
	if err != nil {
		return nil, fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	file, warning, err := wheelOf(r, yanked)
	if err != nil {
		return nil, fmt.Errorf("package index %s: release %s: %w", index.Where(), r.Version, err)
	}
	return openWheel(ctx, index, file, warning)
}

// wheelOf chooses a wheel of a release: that for the most common platform first.
func wheelOf(r pypi.Release, yanked bool) (file pypi.File, warning string, err error) {
	if r.Yanked {
		why := cmp.Or(r.Reason, "no reason is given")
		if !yanked {
			return file, "", fmt.Errorf("it was yanked (%s): pass --yanked to read it all the same", why)
		}
		warning = fmt.Sprintf("release %s was yanked: %s", r.Version, why)
		r.Yanked, r.Files = false, slices.Clone(r.Files)
		for i := range r.Files {
			r.Files[i].Yanked = false
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if file, err = r.Wheel("linux", arch); err == nil {
			return file, warning, nil
		}
	}
	return file, "", err
}
