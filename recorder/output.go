package recorder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/vllm-vcr/conformance/trace"
)

// A Destination is where an output goes once it is whole.
type Destination struct {
	// Path is a local path, or with Upload what that takes. Its suffix decides
	// what is in the file: ".gz" is gzipped.
	Path string
	// Overwrite lets an existing file be replaced. Upload does not use it.
	Overwrite bool
	// Upload, if not nil, takes the finished file and returns where it is then. The
	// file waits in [os.TempDir] and is removed after a success.
	// path is that of the file's own destination: of a further engine, its own.
	Upload func(ctx context.Context, path, file string) (where string, err error)
}

// File is an output under a temporary name, which becomes the destination in one
// step when it is whole. What reads the destination never sees half of it, and
// what a killed process leaves is readable under the temporary name: it keeps
// the suffix, run.jsonl.gz is written as run.partial-1a2b3c4d.jsonl.gz.
//
// A destination that exists and is not a regular file, a pipe or a device, is
// written in place.
type File struct {
	dest    Destination
	f       *os.File
	w       io.Writer // f, unless a test puts something in between
	inPlace bool
	written int64
	err     error // sticky
}

// errFinished is returned by a File after Commit or Abandon.
var errFinished = errors.New("the output is finished")

// Create makes the file that is to become d. The error names what is wrong with
// the destination: it exists, or its folder does not.
func Create(d Destination) (*File, error) {
	if d.Path == "" {
		return nil, errors.New("no path for the output")
	}
	if d.Upload != nil {
		return createBeside(d, filepath.Join(os.TempDir(), filepath.Base(d.Path)))
	}
	switch info, err := os.Stat(d.Path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("output: %w", err)
	case info.IsDir():
		return nil, fmt.Errorf("output %s is a folder; name a file in it", d.Path)
	case !info.Mode().IsRegular():
		f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("output: %w", err)
		}
		return &File{dest: d, f: f, w: f, inPlace: true}, nil
	case !d.Overwrite:
		return nil, errExists(d.Path)
	}
	return createBeside(d, d.Path)
}

// Probe reports whether an output can be made, and leaves nothing behind. What is
// written in place is not opened: that could end what somebody reads from it.
func Probe(d Destination) error {
	if info, err := os.Stat(d.Path); d.Upload == nil && err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		return nil
	}
	f, err := Create(d)
	if err == nil {
		f.Abandon()
	}
	return err
}

func errExists(path string) error {
	return fmt.Errorf("output %s exists already; move it away, or allow overwriting", path)
}

// createBeside makes a new file in the folder of path.
func createBeside(d Destination, path string) (*File, error) {
	const attempts = 100
	for try := 0; ; try++ {
		f, err := os.OpenFile(partialName(path, rand.Uint32()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil {
			return &File{dest: d, f: f, w: f}, nil
		}
		if !errors.Is(err, fs.ErrExist) || try == attempts {
			return nil, fmt.Errorf("output: %w", err)
		}
	}
}

// partialName is the temporary name of a file.
func partialName(path string, mark uint32) string {
	return beforeSuffix(path, fmt.Sprintf(".partial-%08x", mark))
}

// beforeSuffix puts the mark before the suffix of path, of which ".gz" is only a part.
func beforeSuffix(path, mark string) string {
	stem := strings.TrimSuffix(path, ".gz")
	stem = strings.TrimSuffix(stem, filepath.Ext(stem))
	return stem + mark + path[len(stem):]
}

// Name returns the path of the bytes written so far.
func (o *File) Name() string { return o.f.Name() }

// Gzip reports whether the destination's name is that of a gzip file.
func (o *File) Gzip() bool { return trace.IsGzip(o.dest.Path) }

// Write appends p. After a failure every further call returns it.
func (o *File) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	o.written += int64(n)
	if err != nil {
		o.err = err
	}
	return n, err
}

// Commit syncs the file and gives it its name, or uploads it, and returns where
// it is. After an error the file is left; the error names it.
func (o *File) Commit(ctx context.Context) (where string, err error) {
	if o.err != nil {
		return "", o.failed(o.err)
	}
	o.err = errFinished
	if o.inPlace {
		return o.dest.Path, o.f.Close()
	}
	err = o.f.Sync()
	if closing := o.f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return "", o.failed(err)
	}
	if o.dest.Upload != nil {
		where, err := o.dest.Upload(ctx, o.dest.Path, o.Name())
		if err != nil {
			return "", fmt.Errorf("output %s is complete but was not uploaded: %w; it is kept in %s", o.dest.Path, err, o.Name())
		}
		return where, os.Remove(o.Name())
	}
	if err := o.rename(); err != nil {
		return "", o.failed(err)
	}
	return o.dest.Path, nil
}

func (o *File) failed(err error) error {
	return fmt.Errorf("output %s: %w; what was written is in %s", o.dest.Path, err, o.Name())
}

// rename moves the file to its place. Without Overwrite it is linked there,
// which fails if something has come up meanwhile, as a rename would not.
func (o *File) rename() error {
	if o.dest.Overwrite {
		err := os.Rename(o.Name(), o.dest.Path)
		o.syncFolder()
		return err
	}
	err := os.Link(o.Name(), o.dest.Path)
	switch {
	case errors.Is(err, fs.ErrExist):
		return errExists(o.dest.Path)
	case err == nil:
		o.syncFolder()
		return os.Remove(o.Name())
	}
	// The file system has no links.
	if _, err := os.Lstat(o.dest.Path); !errors.Is(err, fs.ErrNotExist) {
		return errExists(o.dest.Path)
	}
	return os.Rename(o.Name(), o.dest.Path)
}

// syncFolder makes the new name last. Not every system can, and the file itself
// is safe without.
func (o *File) syncFolder() {
	if dir, err := os.Open(filepath.Dir(o.dest.Path)); err == nil {
		_ = dir.Sync()
		_ = dir.Close()
	}
}

// Abandon ends an output that is not to become the destination, and returns the
// name of what was written; "" if that is nothing, or was written in place.
func (o *File) Abandon() (partial string) {
	if o.err != errFinished {
		_ = o.f.Close()
	}
	o.err = errFinished
	switch {
	case o.inPlace:
		return ""
	case o.written == 0:
		_ = os.Remove(o.Name())
		return ""
	}
	return o.Name()
}

// truncate cuts the file behind its safe bytes, so that half a line which a full
// disk took does not make it unreadable.
func (o *File) truncate(safe int64) {
	if o.inPlace || safe >= o.written || o.f.Truncate(safe) != nil {
		return
	}
	o.written = safe
}
