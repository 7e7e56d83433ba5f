package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile writes a file that appears at once, whole, or not at all. What is there
// and no regular file, such as /dev/stdout, is written to instead of replaced.
func WriteFile(path string, write func(io.Writer) error) error {
	how := replace
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		how = writeTo
	}
	if err := how(path, write); err != nil {
		return fmt.Errorf("write %s: %w", path, reason(err))
	}
	return nil
}

// reason is an error without the name of the temporary file.
func reason(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

func writeTo(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return finish(file, write)
}

// replace writes a file beside the one at path and puts it in its place.
func replace(path string, write func(io.Writer) error) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".vllm-vcr-*")
	if err != nil {
		return err
	}
	if err = finish(temp, write); err == nil {
		if err = os.Chmod(temp.Name(), 0o644); err == nil {
			err = os.Rename(temp.Name(), path)
		}
	}
	if err != nil {
		os.Remove(temp.Name())
	}
	return err
}

// finish writes and closes a file.
func finish(file *os.File, write func(io.Writer) error) error {
	buffered := bufio.NewWriterSize(file, 1<<16)
	err := write(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	return errors.Join(err, file.Close())
}
