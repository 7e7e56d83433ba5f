// Package atomicfile writes files that appear at once and whole, or not at all: a reader, a crash or a full disk never leaves
// half of one. A file is written in the same folder, brought to the disk and renamed. [SHA256] reads one.
package atomicfile

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Write gives the file at path the content data and the mode perm. See [WriteFunc].
func Write(path string, data []byte, perm fs.FileMode) error {
	return WriteFunc(path, perm, func(w io.Writer) error { return write(w, data) })
}

// WriteFunc gives the file at path the content that content writes, and the mode perm. Its folder must exist. A link at path
// is replaced, not followed, unless it leads to something that is not a regular file, or is one of the system, such as
// /dev/stdout: that is written to. An error of the file names path; one of content is returned as it is.
func WriteFunc(path string, perm fs.FileMode, content func(io.Writer) error) error {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return named(path, syscall.EISDIR) // to rename to it says that the file exists
	}
	if err == nil && (!info.Mode().IsRegular() || ofSystem(path)) {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return named(path, err)
		}
		err = fill(path, file, content)
		return errors.Join(err, named(path, file.Close()))
	}
	return place(path, perm, content, os.Rename)
}

// ofSystem reports whether a name is one of the system's for an open file, which may be a regular one: that of a redirection.
func ofSystem(path string) bool {
	path, err := filepath.Abs(path)
	return err == nil && (strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/"))
}

// WriteIn gives the file of a name in root the content that content writes, and the mode perm. It writes to no other place,
// whatever others have put into root: a link, or whatever else is not a folder, is replaced. The folders of the name are made. Errors
// are those of [WriteFunc].
func WriteIn(root *os.Root, name string, perm fs.FileMode, content func(io.Writer) error) error {
	path := filepath.Join(root.Name(), name)
	folder := filepath.Dir(name)
	for dir := folder; dir != "."; dir = filepath.Dir(dir) {
		if info, err := root.Lstat(dir); err == nil && !info.IsDir() {
			if err := root.Remove(dir); err != nil {
				return named(path, err)
			}
		}
	}
	if err := root.MkdirAll(folder, 0o755); err != nil {
		return named(path, err)
	}
	temp := filepath.Join(folder, "."+filepath.Base(name)+"."+rand.Text()+".new")
	file, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return named(path, err)
	}
	defer func() { _ = root.Remove(temp) }() // after the rename there is nothing of that name
	if err := fill(path, file, content); err != nil {
		return errors.Join(err, named(path, file.Close()))
	}
	if err := errors.Join(file.Chmod(perm), file.Sync(), file.Close()); err != nil {
		return named(path, err)
	}
	return named(path, root.Rename(temp, name))
}

// Create is like [WriteFunc] for a file that must not exist: if something has that name already, even a link to nothing, it
// stays, and the error is [fs.ErrExist].
func Create(path string, perm fs.FileMode, content func(io.Writer) error) error {
	if _, err := os.Lstat(path); err == nil {
		return named(path, fs.ErrExist)
	}
	return place(path, perm, content, renameNew)
}

// Replace gives the existing file at path the content data. Its mode stays; a link stays a link, and the file that it leads
// to is replaced.
func Replace(path string, data []byte) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return named(path, err)
	}
	info, err := os.Stat(target)
	if err != nil {
		return named(path, err)
	}
	return place(target, info.Mode().Perm(), func(w io.Writer) error { return write(w, data) }, os.Rename)
}

func write(w io.Writer, data []byte) error {
	_, err := io.Copy(w, bytes.NewReader(data))
	return err
}

// place writes a file beside path and lets rename bring it there.
func place(path string, perm fs.FileMode, content func(io.Writer) error, rename func(from, to string) error) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.new")
	if err != nil {
		return named(path, err)
	}
	unfinished.Store(temp.Name(), nil)
	defer unfinished.Delete(temp.Name())
	defer os.Remove(temp.Name()) // after the rename there is nothing of that name
	if err := fill(path, temp, content); err != nil {
		return errors.Join(err, named(path, temp.Close()))
	}
	if err := errors.Join(temp.Chmod(perm), temp.Sync(), temp.Close()); err != nil {
		return named(path, err)
	}
	return named(path, rename(temp.Name(), path))
}

// unfinished are the names of files that are being written.
var unfinished sync.Map

// Abandon removes what is being written, for a process that ends now without waiting for the writers: they get errors.
func Abandon() {
	unfinished.Range(func(name, _ any) bool {
		_ = os.Remove(name.(string))
		return true
	})
}

// fill writes the content into the file. An error of the file counts more than what content makes of it.
func fill(path string, file *os.File, content func(io.Writer) error) error {
	sink := &sink{file: file}
	buffered := bufio.NewWriterSize(sink, 1<<16)
	err := content(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if sink.failed != nil {
		return named(path, sink.failed)
	}
	return err
}

// A sink remembers why its file could not be written.
type sink struct {
	file   *os.File
	failed error
}

func (s *sink) Write(data []byte) (int, error) {
	n, err := s.file.Write(data)
	s.failed = err
	return n, err
}

// renameNew gives a whole file its name, unless something has that name: a link is made or is not, while a rename would
// replace. On file systems without links the name is taken first.
func renameNew(temp, name string) error {
	err := os.Link(temp, name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Rename(temp, name))
}

// named is an error with the name of the file in place of that of the temporary one.
func named(path string, err error) error {
	if err == nil {
		return nil
	}
	var inPath *fs.PathError
	var inLink *os.LinkError
	switch {
	case errors.As(err, &inPath):
		err = inPath.Err
	case errors.As(err, &inLink):
		err = inLink.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: the folder %s does not exist: %w", path, filepath.Dir(path), err)
	}
	return fmt.Errorf("write %s: %w", path, err)
}

// SHA256 returns the digest of the file at path in hexadecimal digits. A file that is not regular, such as a pipe, which might
// never end, is an error.
func SHA256(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
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
