package load

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"strings"
)

// A Header is the line before the bytes of a file.
type Header struct {
	File string `json:"file"`
	// Size is that of the whole file, of which the bytes from Offset on follow.
	Size   int64 `json:"size"`
	Offset int64 `json:"offset"`
	// SHA256 is that of the whole file, in hex.
	SHA256 string `json:"sha256"`
}

// ErrUsage is in errors of requests for what cannot be.
var ErrUsage = errors.New("")

func podUsage(format string, args ...any) error {
	return fmt.Errorf("%s%w", fmt.Sprintf(format, args...), ErrUsage)
}

// Send writes the header of a file, and its bytes from offset on. It reads the file twice, as the header has the digest of
// all of it; what changes meanwhile is an error. The file lies in the folder itself and is not a link.
func (d Dir) Send(w io.Writer, name string, offset int64) error {
	file, err := d.open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	before, err := file.Stat()
	if err != nil {
		return err
	}
	if offset < 0 || offset > before.Size() {
		return podUsage("%s has %d bytes: want an offset from 0 to that, not %d", name, before.Size(), offset)
	}
	head, whole, err := digests(file, offset)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	line, err := json.Marshal(Header{File: name, Size: before.Size(), Offset: offset, SHA256: hex.EncodeToString(whole)})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("send %s: %w", name, err)
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	sent, err := io.Copy(io.MultiWriter(w, head), io.LimitReader(file, before.Size()-offset))
	if err != nil {
		return fmt.Errorf("send %s: %w after %d bytes", name, err, sent)
	}
	if string(head.Sum(nil)) != string(whole) || !d.still(before, name) {
		return fmt.Errorf("%s changed while it was uploaded: run the command again", name)
	}
	return nil
}

// digests are the state of a digest behind offset bytes, and the digest of all.
func digests(r io.Reader, offset int64) (head hash.Hash, whole []byte, err error) {
	sum := sha256.New()
	if _, err := io.CopyN(sum, r, offset); err != nil {
		return nil, nil, err
	}
	cloner, ok := sum.(hash.Cloner)
	if !ok {
		return nil, nil, errors.New("this build's SHA-256 cannot be cloned")
	}
	copied, err := cloner.Clone()
	if err != nil {
		return nil, nil, err
	}
	if _, err := io.Copy(sum, r); err != nil {
		return nil, nil, err
	}
	return copied, sum.Sum(nil), nil
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
