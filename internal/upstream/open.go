package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/pypi"
)

// ErrNotNamed is in the error of a name that no release can have, nor any file.
var ErrNotNamed = errors.New("want a version, a wheel, a folder or a URL")

// ErrYanked is in the error of a release that was withdrawn.
var ErrYanked = errors.New("it was yanked")

// Options say how a name is looked up.
type Options struct {
	Index   *pypi.Index // nil is the one that pip would ask
	Version string      // of a folder that tells none
	Yanked  bool        // a release that was withdrawn is wanted all the same
}

// A Release is a source that was opened by its name. Close it after use.
type Release struct {
	Source
	// Warning is what its reader should know: that it was yanked, and why. Mostly empty.
	Warning string

	wheel *pypi.Wheel // nil for a folder
}

// Close closes a wheel on disk.
func (r *Release) Close() error {
	if r.wheel == nil {
		return nil
	}
	return r.wheel.Close()
}

// Downloaded is how many bytes were downloaded until now, the directory of the wheel included.
func (r *Release) Downloaded() int64 {
	if r.wheel == nil {
		return 0
	}
	return r.wheel.Downloaded()
}

// Open finds what a person names: the URL of a wheel, a folder, a wheel on disk, or a version in the index, in this
// order. A version that was yanked is [ErrYanked] unless the options want it.
func Open(ctx context.Context, name string, o Options) (*Release, error) {
	if o.Index == nil {
		o.Index = &pypi.Index{}
	}
	info, err := os.Stat(name)
	isFolder := err == nil && info.IsDir()
	if o.Version != "" && !isFolder {
		return nil, fmt.Errorf("a version beside %s: only a folder may need one: %w", shownName(name), ErrNotNamed)
	}
	switch {
	case strings.Contains(name, "://"):
		return openURL(ctx, name, o.Index)
	case isFolder:
		folder, err := OpenFolder(name, o.Version)
		if err != nil {
			return nil, err
		}
		return &Release{Source: folder}, nil
	case err == nil || strings.HasSuffix(name, ".whl"):
		wheel, err := pypi.OpenFile(name)
		if err != nil {
			return nil, err
		}
		return &Release{Source: Wheel{wheel}, wheel: wheel}, nil
	}
	return openVersion(ctx, name, o)
}

// shownName keeps what a URL may have of credentials out of errors.
func shownName(name string) string {
	if u, err := url.Parse(name); err == nil && u.Host != "" {
		return u.Redacted()
	}
	return name
}

func openURL(ctx context.Context, name string, index *pypi.Index) (*Release, error) {
	u, err := url.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("the URL of the wheel cannot be read: %w", ErrNotNamed)
	}
	return openWheel(ctx, index, pypi.File{Name: path.Base(u.Path), URL: name})
}

func openWheel(ctx context.Context, index *pypi.Index, file pypi.File) (*Release, error) {
	wheel, err := index.OpenWheel(ctx, file)
	if err != nil {
		return nil, err
	}
	return &Release{Source: Wheel{wheel}, wheel: wheel}, nil
}

// openVersion opens a wheel of a release. All of a release hold the same Python sources.
func openVersion(ctx context.Context, name string, o Options) (*Release, error) {
	build, err := compat.ParseBuild(name)
	if err != nil {
		return nil, fmt.Errorf("%q is no version, and there is no such file: %w", name, ErrNotNamed)
	}
	releases, err := o.Index.ReleasesAndBuilds(ctx, ours)
	if err != nil {
		return nil, err
	}
	for _, r := range releases {
		b, err := compat.ParseBuild(r.Version)
		if err != nil || b != build {
			continue
		}
		file, warning, err := wheelOf(r, o.Yanked)
		if err != nil {
			return nil, fmt.Errorf("package index %s: release %s: %w", o.Index.Where(), r.Version, err)
		}
		opened, err := openWheel(ctx, o.Index, file)
		if err == nil {
			opened.Warning = warning
		}
		return opened, err
	}
	return nil, fmt.Errorf("package index %s has no release %s of %s", o.Index.Where(), build, ours)
}

// wheelOf chooses a wheel of a release: the usual platform first.
func wheelOf(r pypi.Release, yanked bool) (file pypi.File, warning string, err error) {
	if r.Yanked {
		why := r.Reason
		if why == "" {
			why = "no reason is given"
		}
		if !yanked {
			return file, "", fmt.Errorf("%w (%s): pass --yanked to read it all the same", ErrYanked, why)
		}
		warning = fmt.Sprintf("release %s was yanked: %s", r.Version, why)
		files := r.Files
		r.Files = nil
		for _, f := range files {
			f.Yanked = false
			r.Files = append(r.Files, f)
		}
		r.Yanked = false
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if file, err = r.Wheel("linux", arch); err == nil {
			return file, warning, nil
		}
	}
	return file, "", err
}
