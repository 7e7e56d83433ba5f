package golden

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// envCache names the directory of the cache.
const envCache = "VLLM_VCR_CACHE"

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

// entry is the path of a digest, in folders of two digits to keep each of them short.
func entry(dir, digest string) string {
	return filepath.Join(dir, "sha256", digest[:2], digest)
}

// cached returns the entry of the pinned digest, if there is one and it has that digest still. One
// that has not is left for the download to replace, so that nobody finds a gap meanwhile.
func (s *Store) cached(p pin) ([]byte, bool) {
	dir, err := s.cacheDir()
	if err != nil {
		return nil, false // keep says it
	}
	data, err := readEntry(entry(dir, p.sha256), p.limit())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false
	case err != nil:
		s.log().Warn("cached golden not read", "golden", p.location, "error", err)
		return nil, false
	case digest(data) != p.sha256:
		s.log().Warn("cached golden is corrupt", "golden", p.location, "file", entry(dir, p.sha256))
		return nil, false
	}
	s.log().Debug("golden from the cache", "golden", p.location, "file", entry(dir, p.sha256))
	return data, true
}

func readEntry(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readUpTo(f, limit)
}

// keep writes the entry of a digest beside its place and renames it, so that an entry is whole or
// absent.
func (s *Store) keep(digest string, data []byte) error {
	dir, err := s.cacheDir()
	if err != nil {
		return err
	}
	name := entry(dir, digest)
	for _, parent := range []string{filepath.Join(dir, "tmp"), filepath.Dir(name)} {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(filepath.Join(dir, "tmp"), digest[:8]+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	if err := errors.Join(writeAll(f, data), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// writeAll makes the file readable for all and writable for nobody: an entry never changes.
func writeAll(f *os.File, data []byte) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(0o444); err != nil {
		return err
	}
	return f.Sync()
}
