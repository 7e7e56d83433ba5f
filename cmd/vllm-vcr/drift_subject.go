package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// A driftSubject is the release that is looked at.
type driftSubject struct {
	build    compat.Build
	wheel    string // path or URL, if it was named so
	uploaded time.Time
	source   drift.Source   // of its wheel; none beside a local frontend
	frontend drift.Frontend // a local one
}

// known tells whether the release has a name yet.
func (s *driftSubject) known() bool { return s.build != (compat.Build{}) }

// String is the name of the release, or "".
func (s *driftSubject) String() string {
	if !s.known() {
		return ""
	}
	return s.build.String()
}

// isWheel tells whether an argument names a wheel, by a URL or a path, rather than a version.
func isWheel(arg string) bool { return isURL(arg) || strings.HasSuffix(arg, ".whl") }

func isURL(arg string) bool { return strings.Contains(arg, "://") }

// name takes the argument of the command.
func (run *driftRun) name(args []string) (err error) {
	if len(args) == 0 {
		return nil
	}
	if isWheel(args[0]) {
		run.subject.wheel = args[0]
		return nil
	}
	if run.flags.nightly {
		run.subject.build, err = compat.ParseBuild(args[0])
		return err
	}
	version, err := compat.ParseVersion(args[0])
	run.subject.build = compat.Build{Version: version}
	return err
}

// chooseSubject finds the release to look at, and the line that it is judged as.
func chooseSubject(ctx context.Context, env *environment, run *driftRun) error {
	choose := chooseRelease
	switch {
	case run.flags.frontend != "":
		choose = chooseLocalFrontend
	case run.subject.wheel != "":
		choose = chooseWheel
	}
	ctx, cancel := extract.Limited(ctx)
	defer cancel()
	return choose(ctx, env, run)
}

// chooseLocalFrontend takes the binary of --frontend.
func chooseLocalFrontend(ctx context.Context, env *environment, run *driftRun) error {
	path, err := filepath.Abs(run.flags.frontend)
	if err != nil {
		return err
	}
	s := &run.subject
	s.frontend.Binary = path
	if s.frontend.SHA256, err = drift.Digest(path); err != nil {
		return fmt.Errorf("--frontend: %w", err)
	}
	run.result.Frontend = s.frontend
	if !s.known() {
		if s.build, err = releaseOf(ctx, path); err != nil {
			return err
		}
	}
	return run.chooseLine()
}

// releaseOf is the release that a binary says it is of.
func releaseOf(ctx context.Context, binary string) (compat.Build, error) {
	if err := drift.Runs(ctx, binary); err != nil {
		return compat.Build{}, err
	}
	said, err := vllmrs.Version(ctx, binary)
	if err != nil {
		return compat.Build{}, fmt.Errorf("--frontend: its release is not known: name it, as drift check VERSION: %w", err)
	}
	build, err := compat.ParseBuild(said)
	if err != nil {
		return build, fmt.Errorf("--frontend: it is of no release: name one, as drift check VERSION: %w", err)
	}
	return build, nil
}

// chooseWheel takes a wheel that was named by its path or its URL.
func chooseWheel(ctx context.Context, env *environment, run *driftRun) error {
	s := &run.subject
	s.source = drift.Source{Path: s.wheel}
	if isURL(s.wheel) {
		u, err := url.Parse(s.wheel)
		if err != nil {
			return fmt.Errorf("the URL of the wheel is of no use: want http or https")
		}
		s.source = drift.Source{Index: &pypi.Index{Log: env.log}, File: pypi.File{Name: path.Base(u.Path), URL: s.wheel}}
	}
	wheel, err := s.source.Open(ctx)
	if err != nil {
		return err
	}
	defer wheel.Close()
	version, err := wheel.Version()
	if err != nil {
		return err
	}
	if s.build, err = compat.ParseBuild(version); err != nil {
		return fmt.Errorf("wheel %s: %w", wheel.File.Name, err)
	}
	return run.chooseLine()
}

// chooseRelease takes a release of the index.
func chooseRelease(ctx context.Context, env *environment, run *driftRun) error {
	index := &pypi.Index{URL: run.flags.index, Log: env.log}
	if run.flags.nightly {
		index.URL = cmp.Or(index.URL, nightlyIndex)
	}
	release, err := run.release(ctx, index)
	if err != nil {
		return err
	}
	s := &run.subject
	s.uploaded = release.Uploaded
	if s.build, err = compat.ParseBuild(release.Version); err != nil {
		return err
	}
	if err := run.chooseLine(); err != nil {
		return err
	}
	// Elsewhere too its sources can be read; that its programs do not run there, their layers say.
	wheel, err := release.Wheel("linux", runtime.GOARCH)
	if err != nil {
		return fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	s.source = drift.Source{Index: index, File: wheel}
	return nil
}

// release is the one that was named, else the newest.
func (run *driftRun) release(ctx context.Context, index *pypi.Index) (release pypi.Release, err error) {
	list := index.Releases
	if run.flags.nightly {
		list = index.ReleasesAndBuilds
	}
	releases, err := list(ctx, "vllm")
	if err != nil {
		return release, err
	}
	switch {
	case run.subject.known():
		release, err = drift.Find(releases, run.subject.build)
	case run.flags.nightly:
		release, err = drift.NewestBuild(releases)
	default:
		release, err = drift.Newest(releases, run.flags.pre)
	}
	if err != nil {
		err = fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	return release, err
}

// fetch gets the frontend of the release.
func (s *driftSubject) fetch(ctx context.Context, cache string, log *slog.Logger) (drift.Frontend, error) {
	if s.frontend.Binary != "" {
		return s.frontend, nil
	}
	return drift.Fetch(ctx, s.source, cache, log)
}

// extract is what reads the sources of the release; nil beside a frontend of its own.
func (s *driftSubject) extract() func(context.Context) (drift.Extraction, error) {
	if s.frontend.Binary != "" {
		return nil
	}
	return s.source.Extract
}
