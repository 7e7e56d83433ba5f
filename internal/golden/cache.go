package golden

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// envCache names the directory of the cache.
const envCache = "VLLM_VCR_CACHE"

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
// for the download to replace, so that nobody finds a gap meanwhile. The error is about the registered size.
func (s *Store) cached(p pin, form form) (g got, err error, ok bool) {
	dir, err := s.cacheDir()
	if err != nil {
		return got{}, nil, false // the download says it
	}
	file := filepath.Join(dir, entryName(p.sha256))
	g, err = readEntry(dir, p, form)
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

// readEntry reads an entry through the root of the cache, so that no link leads out of it.
func readEntry(dir string, p pin, form form) (got, error) {
	f, err := openEntry(dir, p.sha256)
	if err != nil {
		return got{}, err
	}
	return p.read(f, form)
}

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

// A draft is a file of the cache that is being written. It becomes an entry by one rename, so that an entry is whole or
// absent.
type draft struct {
	*os.File
	root *os.Root
	name string // in the root; empty once it is an entry
}

func newDraft(dir, digest string) (*draft, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d := &draft{root: root, name: filepath.Join(tmpDir, digest[:8]+"-"+rand.Text())}
	if err = root.MkdirAll(tmpDir, 0o755); err == nil {
		err = root.MkdirAll(filepath.Dir(entryName(digest)), 0o755)
	}
	if err == nil {
		d.File, err = root.OpenFile(d.name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	removeAbandoned(root)
	return d, nil
}

// abandoned is the age at which nobody writes a draft any more.
const abandoned = 24 * time.Hour

// removeAbandoned removes what killed processes left.
func removeAbandoned(root *os.Root) {
	drafts, _ := fs.ReadDir(root.FS(), tmpDir)
	for _, d := range drafts {
		if info, err := d.Info(); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = root.Remove(filepath.Join(tmpDir, d.Name())) // another process may have
		}
	}
}

// keep makes the draft the entry of the digest: readable for all and writable for nobody, as an entry never changes. It
// does not wait for the disk: what a crash leaves is hashed before it is used, and waiting took a quarter of a download.
func (d *draft) keep(digest string) error {
	if err := errors.Join(d.Chmod(0o444), d.File.Close()); err != nil {
		return err
	}
	name := entryName(digest)
	err := d.root.Rename(d.name, name)
	if err != nil {
		// A folder of that name is in the way, or on Windows an entry that is corrupt.
		if err = d.root.RemoveAll(name); err == nil {
			err = d.root.Rename(d.name, name)
		}
	}
	if err == nil {
		d.name = ""
	}
	return err
}

// discard removes the draft, unless it became an entry.
func (d *draft) discard() {
	if d.name != "" {
		d.File.Close()
		d.root.Remove(d.name)
	}
	d.root.Close()
}
