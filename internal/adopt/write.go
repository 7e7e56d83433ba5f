package adopt

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/vllm-vcr/conformance/internal/tomlfile"
)

// Write puts all files in place, or none: what was written before a failure is put back as it was. The error names what
// could not be put back. A file that somebody has changed since [Prepare] is left alone, and nothing is written.
func (p *Plan) Write() error {
	for _, f := range p.Files {
		now, err := readFile(f.Path)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, f.Before) || (now == nil) != (f.Before == nil) {
			return fmt.Errorf("%s was changed by somebody else in the meantime: nothing was written, run this again", f.Path)
		}
	}
	for i, f := range p.Files {
		if err := replace(f.Path, f.After); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", f.Path, err), restore(p.Files[:i]))
		}
	}
	return nil
}

// restore puts back what files were, the last first.
func restore(files []File) error {
	var failed []error
	for _, f := range slices.Backward(files) {
		if err := replace(f.Path, f.Before); err != nil {
			failed = append(failed, fmt.Errorf("%s is changed, and could not be put back: %w", f.Path, err))
		}
	}
	return errors.Join(failed...)
}

// replace gives a file another content, so that there is always a whole one. Of nil there is no file.
func replace(path string, data []byte) error {
	if data == nil {
		return os.Remove(path)
	}
	if exists(path) {
		return tomlfile.Replace(path, data)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // after the rename there is nothing of that name
	_, err = temp.Write(data)
	if err := errors.Join(err, temp.Chmod(0o644), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
