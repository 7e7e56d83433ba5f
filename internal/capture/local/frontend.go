package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

const (
	frontendCommand = "vllm-rs"
	// digestFile lies beside a frontend, and has the sha256 that it had when it was fetched, verified: what one of a release
	// that is unknown here is compared with later.
	digestFile = "sha256"
)

// ensureFrontend fetches the release's vllm-rs unless it is there, is what was published, and runs.
func (in *installer) ensureFrontend(ctx context.Context, path string) (installed bool, err error) {
	err = in.runs(ctx, path)
	if err == nil {
		return false, nil
	}
	if exists(path) {
		in.Progress(fmt.Sprintf("%s cannot be used, and is downloaded again: %v", path, err))
	}
	wheel, err := in.file(ctx, "vllm", in.Release, runtime.GOARCH)
	if err != nil {
		return false, err
	}
	step := "take vllm-rs out of " + wheel.Name
	if pinned.Lookup(in.Release) == nil {
		step += ", all of which is downloaded and verified, as the release is new"
	}
	in.Progress(step)
	tmp, err := in.temporary()
	if err != nil {
		return false, err
	}
	defer in.clean()
	fetched := filepath.Join(tmp, "frontend", frontendCommand)
	if err := os.MkdirAll(filepath.Dir(fetched), 0o755); err != nil {
		return false, err
	}
	digest, downloaded, err := pinned.Source{Index: in.index, File: wheel}.Frontend(ctx, fetched, in.Log)
	if err != nil {
		return false, err
	}
	in.Log.Info("frontend fetched", "sha256", digest, "downloaded", downloaded, "wheel", wheel.Size)
	if err := os.WriteFile(filepath.Join(tmp, "frontend", digestFile), []byte(digest+"\n"), 0o644); err != nil {
		return false, err
	}
	if err := in.runs(ctx, fetched); err != nil {
		return false, err
	}
	return true, in.place(filepath.Dir(fetched), filepath.Dir(path))
}

// runs returns why a frontend must not run, or does not. It is hashed each time before it is started.
func (in *installer) runs(ctx context.Context, path string) error {
	digest, err := atomicfile.SHA256(path)
	if err != nil {
		return err
	}
	if err := pinned.CheckFrontend(in.Release, digest); err != nil {
		return err
	}
	if pinned.Lookup(in.Release) == nil {
		noted, err := os.ReadFile(filepath.Join(filepath.Dir(path), digestFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if want := strings.TrimSpace(string(noted)); digest != want {
			return fmt.Errorf("it has sha256 %s, want %q, as it was fetched", digest, want)
		}
	}
	if _, err := in.run(ctx, nil, path, "serve", "--help"); err != nil {
		return fmt.Errorf("%s does not run here: %w", frontendCommand, err)
	}
	return nil
}

// file is the wheel of a project's release for an architecture, as Go names it.
func (in *installer) file(ctx context.Context, project, version, goarch string) (pypi.File, error) {
	releases, err := in.index.Releases(ctx, project)
	if err != nil {
		return pypi.File{}, err
	}
	for _, r := range releases {
		if r.Version == version {
			file, err := r.Wheel(runtime.GOOS, goarch)
			if err != nil {
				err = fmt.Errorf("package index %s: %s: %w", in.index.Where(), project, err)
			}
			return file, err
		}
	}
	return pypi.File{}, fmt.Errorf("package index %s has no %s %s: its newest is %s", in.index.Where(), project, version,
		releases[len(releases)-1].Version)
}
