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
)

// maxWhole bounds a wheel that is downloaded whole, in bytes, as it is kept in memory.
const maxWhole = 64 << 20

// A Wheel is an open wheel, of which members can be read. It is safe for use by several goroutines.
type Wheel struct {
	File File

	where   string
	archive *zip.Reader
	parts   *parts
}

// OpenWheel reads the directory of a wheel by range requests; members are read when they are asked for, until ctx
// ends. A server that has no range requests is asked for the whole file if that has at most 64 MiB.
func (x *Index) OpenWheel(ctx context.Context, f File) (*Wheel, error) {
	u, err := url.Parse(f.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of %q is of no use: want http or https", f.Name)
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
	if w.archive, err = zip.NewReader(w.parts, w.parts.size); err != nil {
		return nil, w.unreadable(err)
	}
	return w, nil
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
	if digest := hex.EncodeToString(sum[:]); digest != f.SHA256 {
		return fmt.Errorf("package index %s: the file has sha256 %s, the index says %q", shown(p.url), digest, f.SHA256)
	}
	p.size, p.tail = int64(len(got.body)), window{data: got.body}
	p.downloaded = p.size
	return nil
}

// Open returns a member. Its end is an error unless it has the size and the CRC-32 that the directory says. A
// member that is not there is [fs.ErrNotExist].
func (w *Wheel) Open(name string) (io.ReadCloser, error) {
	for _, f := range w.archive.File {
		if f.Name != name {
			continue
		}
		start, err := f.DataOffset()
		if err != nil {
			return nil, w.unreadable(err)
		}
		w.parts.expect(start, f.CompressedSize64)
		r, err := f.Open()
		if err != nil {
			return nil, w.unreadable(err)
		}
		return &member{r, w, name}, nil
	}
	return nil, fmt.Errorf("%s holds no %s: %w", w.where, name, fs.ErrNotExist)
}

// ReadFile returns a member of at most limit bytes.
func (w *Wheel) ReadFile(name string, limit int64) ([]byte, error) {
	r, err := w.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var data bytes.Buffer
	n, err := io.Copy(&data, io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("%s: %s has more than %d bytes", w.where, name, limit)
	}
	return data.Bytes(), nil
}

// Downloaded is how many bytes of the wheel were downloaded until now.
func (w *Wheel) Downloaded() int64 {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	return w.parts.downloaded
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
