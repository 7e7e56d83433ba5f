package pypi

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// maxWhole bounds a wheel that is downloaded whole, in bytes, as it is kept in memory.
const maxWhole = 64 << 20

// A Wheel is an open wheel, of which members can be read. It is safe for use by several goroutines.
type Wheel struct {
	File File

	where   string               // as errors name it
	members map[string]*zip.File // by name; nil for one that is there twice
	parts   *parts               // nil for a file on disk
	disk    *os.File             // nil for a URL
	begins  func() (map[string]int64, error)
}

// OpenWheel reads the directory of a wheel by range requests; members are read when they are asked for, until ctx
// ends. The file may come from no index, and have a URL only: its size is that of the server then, and its name that
// of the URL. A server that has no range requests is asked for the whole file if that has at most 64 MiB and the
// index told its digest.
func (x *Index) OpenWheel(ctx context.Context, f File) (*Wheel, error) {
	u, err := url.Parse(f.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the URL of wheel %q is of no use: want http or https", f.Name)
	}
	if f.Name == "" {
		f.Name = path.Base(u.Path)
	}
	w := &Wheel{File: f, where: shown(u), parts: &parts{index: x, ctx: ctx, url: u, size: f.Size}}
	err = w.parts.openTail()
	var refused *statusError
	if errors.As(err, &refused) && refused.status == http.StatusOK {
		err = x.downloadWhole(ctx, f, w.parts)
	}
	if err != nil {
		return nil, err
	}
	if err := w.readDirectory(w.parts, w.parts.size); err != nil {
		return nil, err
	}
	return w, nil
}

// OpenFile opens a wheel on disk, which [Wheel.Close] closes. A path that is no regular file is an error.
func OpenFile(path string) (*Wheel, error) {
	info, err := os.Stat(path) // before it is opened: a pipe would wait for its writer
	if err != nil {
		return nil, fmt.Errorf("wheel: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("wheel %s: it is not a regular file", path)
	}
	disk, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("wheel: %w", err)
	}
	w := &Wheel{File: File{Name: filepath.Base(path), Size: info.Size()}, where: path, disk: disk}
	if err := w.readDirectory(disk, info.Size()); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close closes a wheel on disk. One that is read by range requests has nothing to close.
func (w *Wheel) Close() error {
	if w.disk == nil {
		return nil
	}
	return w.disk.Close()
}

// downloadWhole fills the parts with all of a file.
func (x *Index) downloadWhole(ctx context.Context, f File, p *parts) error {
	if f.Size > maxWhole {
		return fmt.Errorf("package index %s: the server has no range requests, and the file is too large to download whole: "+
			"it has %d bytes, the limit is %d: name another index", shown(p.url), f.Size, maxWhole)
	}
	got, err := x.get(ctx, request{url: p.url, want: http.StatusOK, limit: maxWhole})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(got.body)
	if digest := hex.EncodeToString(sum[:]); f.SHA256 != "" && digest != f.SHA256 {
		return fmt.Errorf("package index %s: the file has sha256 %s, the index says %s", shown(p.url), digest, f.SHA256)
	}
	p.size, p.tail = int64(len(got.body)), window{data: got.body}
	p.downloaded = p.size
	return nil
}

// readDirectory finds the members.
func (w *Wheel) readDirectory(r io.ReaderAt, size int64) error {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return w.unreadable(err)
	}
	w.members = make(map[string]*zip.File, len(archive.File))
	for _, f := range archive.File {
		if !fs.ValidPath(strings.TrimSuffix(f.Name, "/")) {
			return w.unreadable(fmt.Errorf("its directory names %q, which is no place in a wheel", f.Name))
		}
		if _, again := w.members[f.Name]; again {
			w.members[f.Name] = nil
			continue
		}
		w.members[f.Name] = f
	}
	w.begins = sync.OnceValues(func() (map[string]int64, error) { return beginnings(r, size) })
	return nil
}

// Names returns the names of all members, sorted. They are paths within the wheel, with slashes.
func (w *Wheel) Names() []string {
	var names []string
	for name := range w.members {
		if !strings.HasSuffix(name, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// find returns a member; one that is not there is [fs.ErrNotExist].
func (w *Wheel) find(name string) (*zip.File, error) {
	f, found := w.members[name]
	switch {
	case !found:
		return nil, fmt.Errorf("%s holds no %s: %w", w.where, name, fs.ErrNotExist)
	case f == nil:
		return nil, fmt.Errorf("%s holds %s more than once: which one is meant cannot be known", w.where, name)
	}
	return f, nil
}

// Open returns a member. Its end is an error unless it has the size and the CRC-32 that the directory says. A
// member that is not there is [fs.ErrNotExist].
func (w *Wheel) Open(name string) (io.ReadCloser, error) {
	f, err := w.find(name)
	if err != nil {
		return nil, err
	}
	if w.parts != nil {
		start, err := f.DataOffset()
		if err != nil {
			return nil, w.unreadable(err)
		}
		w.parts.expect(start, f.CompressedSize64)
	}
	r, err := f.Open()
	if err != nil {
		return nil, w.unreadable(err)
	}
	return &member{r, w, name}, nil
}

// Copy writes a member of at most limit bytes to dst. One that the directory says to be larger is refused before
// anything of it is downloaded, and of one that has more bytes than the directory says no more are written.
func (w *Wheel) Copy(dst io.Writer, name string, limit int64) error {
	f, err := w.find(name)
	if err != nil {
		return err
	}
	if f.UncompressedSize64 > uint64(max(limit, 0)) {
		return w.tooLarge(name, limit)
	}
	r, err := w.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(dst, r) // ends with an error before there is more than the directory says
	return err
}

func (w *Wheel) tooLarge(name string, limit int64) error {
	return fmt.Errorf("%s: %s has more than %d bytes", w.where, name, limit)
}

// ReadFile returns a member of at most limit bytes.
func (w *Wheel) ReadFile(name string, limit int64) ([]byte, error) {
	var data bytes.Buffer
	if err := w.Copy(&data, name, limit); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// Downloaded is how many bytes of the wheel were downloaded until now.
func (w *Wheel) Downloaded() int64 {
	if w.parts == nil {
		return 0
	}
	return w.parts.total()
}

// unreadable names the wheel in an error of its archive; that of a request names it already.
func (w *Wheel) unreadable(err error) error {
	var request *partError
	if errors.As(err, &request) {
		return request.error
	}
	return fmt.Errorf("%s cannot be read as a wheel: %w", w.where, err)
}

// A member names itself in the errors of reading it.
type member struct {
	io.ReadCloser
	wheel *Wheel
	name  string
}

func (m *member) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%s: %w", m.name, m.wheel.unreadable(err))
	}
	return n, err
}
