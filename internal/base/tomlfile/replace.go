package tomlfile

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
)

// Replace puts an edited text in the place of a file, so that there is always a whole
// one. A link stays a link, and the mode is kept.
func Replace(path string, data []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // after the rename there is nothing of that name
	_, err = temp.Write(data)
	err = cmp.Or(err, temp.Chmod(info.Mode().Perm()), temp.Sync())
	if err := errors.Join(err, temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
