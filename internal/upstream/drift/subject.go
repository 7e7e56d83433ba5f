package drift

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/manifest"
)

// NightlyIndex has the builds of vLLM's main branch.
const NightlyIndex = "https://wheels.vllm.ai/nightly"

// A Request names what is checked: a frontend on disk, a wheel, or a release of an index, of which the newest is the
// default.
type Request struct {
	Build      compat.Build // zero if it is not named
	Wheel      string       // path or URL
	Frontend   string       // path of a vllm-rs
	Index      string       // URL; "" is the index that pip uses, for builds [NightlyIndex]
	Nightly    bool         // builds of the main branch are wanted
	Candidates bool         // the newest release may be a candidate
}

// Repeat returns the arguments of drift check that check a release again, or "" without such.
func (r Request) Repeat(build compat.Build) string {
	switch {
	case build == (compat.Build{}) || r.Frontend != "" || r.Wheel != "":
		return ""
	case r.Nightly:
		return build.String() + " --nightly"
	}
	return build.String()
}

// A Subject is the release that is checked.
type Subject struct {
	Build    compat.Build  // zero if it is not known
	Wheel    string        // file name of the wheel
	Uploaded time.Time     // zero if it is not known
	Source   pinned.Source // of its wheel; none for a local frontend
	Local    Frontend      // a frontend on disk
	Line     compat.Line   // that it is judged as
	Own      bool          // it is the release's own line, see [LineFor]

	index   *pypi.Index  // that has the release
	release pypi.Release // whose file is not chosen yet
}

// Choose finds what a request names, and the line that it is judged as. A subject is returned with an error too, as far
// as it is known.
func Choose(ctx context.Context, r Request, matrix *compat.Matrix, goldens *manifest.Manifest, log *slog.Logger) (Subject, error) {
	ctx, cancel := extract.Limited(ctx)
	defer cancel()
	s := Subject{Build: r.Build}
	choose := s.chooseRelease
	switch {
	case r.Frontend != "":
		choose = s.chooseFrontend
	case r.Wheel != "":
		choose = s.chooseWheel
	}
	err := choose(ctx, r, log)
	if err == nil {
		s.Line, s.Own, err = LineFor(matrix, goldens, s.Build.Version)
	}
	if err == nil && s.index != nil {
		err = s.chooseFile()
	}
	return s, err
}

// chooseFrontend takes a vllm-rs on disk.
func (s *Subject) chooseFrontend(ctx context.Context, r Request, _ *slog.Logger) error {
	path, err := filepath.Abs(r.Frontend)
	if err != nil {
		return err
	}
	s.Local.Binary = path
	if s.Local.SHA256, err = atomicfile.SHA256(path); err != nil {
		return fmt.Errorf("--frontend: %w", err)
	}
	if s.Build != (compat.Build{}) {
		return nil
	}
	if err := Runs(ctx, path); err != nil {
		return err
	}
	version, err := vllmrs.Version(ctx, path)
	if err != nil {
		return fmt.Errorf("--frontend: the release of the binary is not known: give it, as in drift check VERSION: %w", err)
	}
	if s.Build, err = compat.ParseBuild(version); err != nil {
		return fmt.Errorf("--frontend: the binary does not report a release: give it, as in drift check VERSION: %w", err)
	}
	return nil
}

// chooseWheel takes a wheel that was named by its path or its URL.
func (s *Subject) chooseWheel(ctx context.Context, r Request, log *slog.Logger) error {
	s.Wheel, s.Source = filepath.Base(r.Wheel), pinned.Source{Path: r.Wheel}
	if strings.Contains(r.Wheel, "://") {
		u, err := url.Parse(r.Wheel)
		if err != nil {
			return errors.New("the URL of the wheel is of no use: want https")
		}
		file := pypi.File{Name: path.Base(u.Path), URL: r.Wheel}
		if digest, ok := strings.CutPrefix(u.Fragment, "sha256="); ok { // as pip has it
			file.SHA256 = strings.ToLower(digest)
		}
		s.Wheel, s.Source = file.Name, pinned.Source{Index: &pypi.Index{Log: log}, File: file}
	}
	wheel, err := s.Source.Open(ctx)
	if err != nil {
		return err
	}
	defer wheel.Close()
	version, err := wheel.Version()
	if err != nil {
		return err
	}
	if s.Build, err = compat.ParseBuild(version); err != nil {
		return fmt.Errorf("wheel %s: %w", wheel.File.Name, err)
	}
	return nil
}

// chooseRelease takes a release of the index: the one that was named, else the newest.
func (s *Subject) chooseRelease(ctx context.Context, r Request, log *slog.Logger) error {
	index := &pypi.Index{URL: r.Index, Log: log}
	list := index.Releases
	if r.Nightly {
		index.URL, list = cmp.Or(index.URL, NightlyIndex), index.ReleasesAndBuilds
	}
	releases, err := list(ctx, "vllm")
	if err != nil {
		return err
	}
	switch {
	case s.Build != (compat.Build{}):
		s.release, err = pypi.Find(releases, s.Build)
	case r.Nightly:
		s.release, err = NewestBuild(releases)
	default:
		s.release, err = Newest(releases, r.Candidates)
	}
	if err != nil {
		return fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	s.index, s.Uploaded = index, s.release.Uploaded
	s.Build, err = compat.ParseBuild(s.release.Version)
	return err
}

// chooseFile takes the wheel of the release for this machine. Elsewhere too its sources can be read; that its programs
// do not run there, their layers report.
func (s *Subject) chooseFile() error {
	file, err := s.release.Wheel("linux", runtime.GOARCH)
	if err != nil {
		return fmt.Errorf("package index %s: %w", s.index.Where(), err)
	}
	s.Wheel, s.Source = file.Name, pinned.Source{Index: s.index, File: file}
	return nil
}
