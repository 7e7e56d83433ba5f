package load

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
)

// A Header is the line before the bytes of a file.
type Header struct {
	File   string `json:"file"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // in hex
}

// ErrUsage is in errors of requests for what cannot be.
var ErrUsage = errors.New("")

func podUsage(format string, args ...any) error {
	return fmt.Errorf("%s%w", fmt.Sprintf(format, args...), ErrUsage)
}

// Send writes the header of a file, and its bytes. It reads the file twice, as the header has the digest; what changes meanwhile is an
// error. The file lies in the folder itself and is not a link.
func (d Dir) Send(w io.Writer, name string) error {
	file, err := d.open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	before, err := file.Stat()
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	line, err := jsonout.Line(Header{File: name, Size: before.Size(), SHA256: digest})
	if err != nil {
		return err
	}
	if _, err := w.Write(line); err != nil {
		return fmt.Errorf("send %s: %w", name, err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	sum.Reset()
	sent, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(file, before.Size()))
	if err != nil {
		return fmt.Errorf("send %s: %w after %d bytes", name, err, sent)
	}
	if hex.EncodeToString(sum.Sum(nil)) != digest || !d.still(before, name) {
		return fmt.Errorf("%s changed while it was uploaded: run the command again", name)
	}
	return nil
}

// open opens a regular file of the folder.
func (d Dir) open(name string) (*os.File, error) {
	if name == "" || strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
		return nil, podUsage("file %q: want the name of a file in %s, without a folder", name, d.Path)
	}
	root, err := os.OpenRoot(d.Path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, podUsage("%s is not a regular file", d.path(name))
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	if opened, err := file.Stat(); err != nil || !os.SameFile(info, opened) {
		file.Close()
		return nil, errors.Join(err, fmt.Errorf("%s has changed while it was opened", d.path(name)))
	}
	return file, nil
}

// still reports whether a name is that of the file it was, unchanged.
func (d Dir) still(before fs.FileInfo, name string) bool {
	now, err := os.Lstat(d.path(name))
	return err == nil && os.SameFile(before, now) && now.Size() == before.Size() && now.ModTime().Equal(before.ModTime())
}
