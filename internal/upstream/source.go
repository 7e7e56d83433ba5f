package upstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pypi"
)

// maxFile bounds a Python file, in bytes.
const maxFile = 4 << 20

// A Source has the Python files of one release.
type Source interface {
	// Read returns those of the files that are there, by their path: "vllm/v1/engine/__init__.py".
	Read(ctx context.Context, paths []string) (map[string][]byte, error)
	// Version is the release, as what holds the files names it; "" if nothing does. What vllm/_version.py tells must be
	// the same but for the variant.
	Version() (string, error)
	// Where names the source in errors: a path, or a URL without credentials.
	Where() string
}

// A Wheel is a source of the members of a wheel, on disk or in an index.
type Wheel struct{ *pypi.Wheel }

// Read implements [Source].
func (w Wheel) Read(_ context.Context, paths []string) (map[string][]byte, error) {
	files, _, err := w.ReadFiles(paths, maxFile)
	return files, err
}

// Version implements [Source]. It is that of METADATA, which must be that of the name.
func (w Wheel) Version() (string, error) { return w.Wheel.Version() }

// Where implements [Source].
func (w Wheel) Where() string { return w.File.Name }

// A Folder is a source that holds a folder vllm: an unpacked wheel, a folder of installed packages, or a checkout.
type Folder struct {
	path    string
	version string
}

// OpenFolder makes a source of a folder. The version counts if the folder itself does not tell.
func OpenFolder(path, version string) (*Folder, error) {
	info, err := os.Stat(filepath.Join(path, ours))
	if err != nil || !info.IsDir() {
		const want = "want a checkout, an unpacked wheel, or the site-packages of an installation"
		return nil, fmt.Errorf("folder %s: it holds no folder %s: %s", path, ours, want)
	}
	if version == "" {
		version = installedVersion(path)
	}
	return &Folder{path, version}, nil
}

// installedVersion is what the one vllm-VERSION.dist-info beside the package says.
func installedVersion(path string) string {
	found, err := filepath.Glob(filepath.Join(path, ours+"-*.dist-info"))
	if err != nil || len(found) != 1 {
		return ""
	}
	name := strings.TrimSuffix(filepath.Base(found[0]), ".dist-info")
	return strings.TrimPrefix(name, ours+"-")
}

// Read implements [Source].
func (f *Folder) Read(ctx context.Context, paths []string) (map[string][]byte, error) {
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
			return nil, fmt.Errorf("folder %s: %s is no regular file", f.path, p)
		case info.Size() > maxFile:
			return nil, fmt.Errorf("folder %s: %s has more than %d bytes", f.path, p, maxFile)
		}
		if files[p], err = os.ReadFile(filepath.Join(f.path, filepath.FromSlash(p))); err != nil {
			return nil, fmt.Errorf("folder %s: %w", f.path, err)
		}
	}
	return files, nil
}

// Version implements [Source].
func (f *Folder) Version() (string, error) { return f.version, nil }

// Where implements [Source].
func (f *Folder) Where() string { return f.path }
