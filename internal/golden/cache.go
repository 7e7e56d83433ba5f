package golden

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// envCache names the directory of the cache.
const envCache = "VLLM_VCR_CACHE_DIR"

// tmpDir is the folder of the cache for what is being written.
const tmpDir = "tmp"

// A CacheError is a cache that cannot be used, which says nothing about goldens and their servers.
type CacheError struct {
	Dir string // of the cache; empty if there is none
	Err error
}

func (e *CacheError) Error() string {
	if e.Dir == "" {
		return "cache: " + e.Err.Error()
	}
	return "cache " + e.Dir + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *CacheError) Unwrap() error { return e.Err }

func (s *Store) cacheDir() (string, error) {
	if s.Cache != "" {
		return s.Cache, nil
	}
	if dir := os.Getenv(envCache); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w: set %s", err, envCache)
	}
	return filepath.Join(dir, "vllm-vcr", "goldens"), nil
}

// entryName is the path of a digest in the cache, in folders of two digits to keep each of them short.
func entryName(digest string) string {
	return filepath.Join("sha256", digest[:2], digest)
}

// cached returns the entry of the pinned digest, if there is one and it has that digest still. One that has not is left
// for the download to replace, so that no reader finds a gap meanwhile. The error is about the registered size.
func (s *Store) cached(p pin, form form) (g got, err error, ok bool) {
	dir, err := s.cacheDir()
	if err != nil {
		return got{}, nil, false // the download says it
	}
	file := filepath.Join(dir, entryName(p.sha256))
	f, err := openEntry(dir, p.sha256)
	if err == nil {
		g, err = p.read(f, form)
	}
	var mismatch *MismatchError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return got{}, nil, false
	case errors.As(err, &mismatch) && mismatch.GotSHA256 != p.sha256:
		s.log().Warn("cached golden is corrupt", "golden", p.location, "file", file)
		return got{}, nil, false
	case err != nil && mismatch == nil:
		s.log().Warn("cached golden not read", "golden", p.location, "file", file, "error", err)
		return got{}, nil, false
	}
	s.log().Debug("golden from the cache", "golden", p.location, "file", file)
	g.cached = true
	return g, err, true
}

// openEntry opens an entry through the root of the cache, so that no link leads out of it.
func openEntry(dir, digest string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	name := entryName(digest)
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	// Opening anything else may block for ever, or never end.
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	return root.Open(name)
}
