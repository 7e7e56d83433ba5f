package drift

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

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
	for name, data := range contents {
		path := filepath.Join(dir, name)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := replace(path, 0o644, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			return "", err
		}
	}
	return dir, nil
}
