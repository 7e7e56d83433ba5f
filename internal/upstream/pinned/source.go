package pinned

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/frontends/pyclient"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

const (
	frontendMember = "vllm/vllm-rs"
	maxFrontend    = 1 << 30 // bytes
	// A server that sends a little now and then never stalls.
	partTime  = 15 * time.Minute // for some 25 MB
	wholeTime = 30 * time.Minute // for some 340 MB
)

// ErrUnverified is in the error of code that cannot be verified: its release is unknown here, and no index lists a
// sha256 of the wheel.
var ErrUnverified = errors.New("no sha256 of the wheel is known, and nothing in it is run")

var errNoWheel = errors.New("no wheel of the release is named")

// A Source is the wheel of a release: a file of an index or of a URL, or one on disk.
type Source struct {
	Index *pypi.Index
	File  pypi.File
	// Path is that of a wheel on disk. It is trusted because it was named: nothing of it is compared.
	Path string
}

// Open opens the wheel, which the caller closes. What is read of it then is not verified.
func (s Source) Open(ctx context.Context) (*pypi.Wheel, error) {
	switch {
	case s.Path != "":
		return pypi.OpenFile(s.Path)
	case s.Index == nil:
		return nil, errNoWheel
	}
	return s.Index.OpenWheel(ctx, s.File)
}

// Key names the wheel by its content, as far as that is known.
func (s Source) Key() (key string, sure bool, err error) {
	switch {
	case s.Path != "":
		key, err = atomicfile.SHA256(s.Path)
		return key, true, err
	case s.File.SHA256 != "":
		return s.File.SHA256, true, nil
	case s.Index == nil:
		return "", false, errNoWheel
	}
	sum := sha256.Sum256([]byte(s.File.URL))
	return "unsure-" + hex.EncodeToString(sum[:]), false, nil
}

// Frontend writes the vllm-rs of the wheel to path, as a program, and returns its sha256 and how many bytes were
// downloaded. Nothing is at path unless it is verified.
func (s Source) Frontend(ctx context.Context, path string, log *slog.Logger) (digest string, downloaded int64, err error) {
	whole, err := s.learn(ctx, log)
	if err != nil {
		return "", whole, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, partTime, fmt.Errorf("vllm-rs could not be downloaded within %v", partTime))
	defer cancel()
	wheel, err := s.Open(ctx)
	if err != nil {
		return "", whole, err
	}
	defer wheel.Close()
	sum := sha256.New()
	err = atomicfile.WriteFunc(path, 0o755, func(file io.Writer) error {
		if err := wheel.Copy(io.MultiWriter(file, sum), frontendMember, maxFrontend); err != nil {
			return err
		}
		digest = hex.EncodeToString(sum.Sum(nil))
		return s.CheckFrontend(digest)
	})
	return digest, whole + wheel.Downloaded(), err
}

// CheckFrontend compares the sha256 of a vllm-rs with that of the release. Of a release that is unknown there is
// nothing to compare with.
func (s Source) CheckFrontend(digest string) error {
	if s.Path != "" {
		return nil
	}
	return CheckFrontend(s.version(), digest)
}

// CheckFrontend compares the sha256 of a vllm-rs with those of a release. Of a release that is unknown there is nothing
// to compare with.
func CheckFrontend(version, digest string) error {
	return Lookup(version).check("vllm-rs", digest, func(w Wheel) string { return w.Frontend })
}

// Python returns what compares the digest of a release's Python files, as [pyclient.Digest] makes it, with what it must
// be.
func (s Source) Python(ctx context.Context, log *slog.Logger) (check func(digest string) error, err error) {
	if s.Path != "" {
		return func(string) error { return nil }, nil
	}
	if _, err := s.learn(ctx, log); err != nil {
		return nil, err
	}
	return func(digest string) error {
		return Lookup(s.version()).check("the Python", digest, func(w Wheel) string { return w.Python })
	}, nil
}

func (r *Release) check(what, digest string, of func(Wheel) string) error {
	if r == nil {
		return nil
	}
	var known []string
	for _, w := range r.Wheels {
		if want := of(w); want != "" {
			known = append(known, want)
		}
	}
	if slices.Contains(known, digest) {
		return nil
	}
	return fmt.Errorf("%s of vLLM %s has sha256 %s, and what was published has %s: these are other bytes, and they are not run",
		what, r.Version, digest, strings.Join(known, " or "))
}

// learn makes sure that the release is known, and returns how many bytes that took. One that is not known is downloaded
// whole once, and must be what the index lists.
func (s Source) learn(ctx context.Context, log *slog.Logger) (downloaded int64, err error) {
	switch {
	case s.Path != "" || Lookup(s.version()) != nil:
		return 0, nil
	case s.Index == nil:
		return 0, errNoWheel
	case s.File.SHA256 == "":
		return 0, fmt.Errorf("%s: %w", s.File.Name, ErrUnverified)
	}
	dir, err := os.MkdirTemp("", "vllm-vcr-wheel-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	log.Info("this release is new: its whole wheel is downloaded and verified", "wheel", s.File.Name, "bytes", s.File.Size)
	path, err := s.Save(ctx, dir)
	if err != nil {
		return 0, err
	}
	wheel, err := DigestsOf(path)
	if err != nil {
		return s.File.Size, err
	}
	Learn(&Release{Version: s.version(), Wheels: []Wheel{wheel}})
	return s.File.Size, nil
}

// version is what the release is known by: one whose name has none is known by its wheel.
func (s Source) version() string { return cmp.Or(s.File.Version(), "of wheel "+s.File.SHA256) }

// Save downloads the whole wheel into a folder, under its name. Nothing is left there unless it has the sha256 that the
// index lists.
func (s Source) Save(ctx context.Context, dir string) (path string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wholeTime, fmt.Errorf("%s could not be downloaded within %v", s.File.Name, wholeTime))
	defer cancel()
	if filepath.Base(s.File.Name) != s.File.Name {
		return "", fmt.Errorf("%q is not a name of a wheel", s.File.Name)
	}
	wheel, err := s.Open(ctx)
	if err != nil {
		return "", err
	}
	defer wheel.Close()
	path = filepath.Join(dir, s.File.Name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	if err := errors.Join(wheel.Save(file), file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	return path, nil
}

// DigestsOf are those of a wheel on disk.
func DigestsOf(path string) (w Wheel, err error) {
	w.Name = filepath.Base(path)
	if w.SHA256, err = atomicfile.SHA256(path); err != nil {
		return w, err
	}
	wheel, err := pypi.OpenFile(path)
	if err != nil {
		return w, err
	}
	defer wheel.Close()
	sum := sha256.New()
	switch err := wheel.Copy(sum, frontendMember, maxFrontend); {
	case err == nil:
		w.Frontend = hex.EncodeToString(sum.Sum(nil))
	case !errors.Is(err, fs.ErrNotExist):
		return w, err
	}
	w.Python, err = pyclient.Digest(wheel)
	return w, err
}
