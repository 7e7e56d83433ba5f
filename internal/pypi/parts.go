package pypi

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// What is downloaded at a time, in bytes.
const (
	tailSize  = 1 << 20   // the end of a wheel, which holds the directory of 5,000 members
	smallPart = 256 << 10 // where it is not known how much is needed
	largePart = 8 << 20   // within a member
	afterData = 24        // what may follow the data of a member, and is read with it
)

// parts reads a file by range requests, as an [io.ReaderAt].
type parts struct {
	index *Index
	ctx   context.Context
	url   *url.URL

	size int64  // 0 until it is known, which is before anything but the end is read
	tail window // the end; as the size

	mu          sync.Mutex
	last        window
	held        []*window // by those who read many members at once
	from, until int64     // where the member lies that is being read

	answers    sync.Mutex // guards what is known from answers; taken last
	etag       string     // strong, "" if the server has none
	downloaded int64
}

// A window is a piece of the file.
type window struct {
	at   int64
	data []byte
}

// from returns what the window holds from an offset on.
func (w window) from(off int64) []byte {
	if off < w.at || off >= w.at+int64(len(w.data)) {
		return nil
	}
	return w.data[off-w.at:]
}

// partError is what went wrong while a part was fetched.
type partError struct{ error }

func (e *partError) Unwrap() error { return e.error }

// openTail fetches the end of the file, and from it the size if the index has not told.
func (p *parts) openTail() (err error) {
	if p.size > 0 {
		p.tail, err = p.fetch(p.ctx, max(p.size-tailSize, 0), p.size)
		return err
	}
	got, err := p.get(p.ctx, fmt.Sprintf("bytes=-%d", tailSize))
	if err != nil {
		return err
	}
	start, end, total, ok := contentRange(got.header)
	if !ok || end != total || end-start != int64(len(got.body)) {
		return p.wrong(got)
	}
	p.size, p.tail = total, window{start, got.body}
	return nil
}

// expect announces that a member is read next: its compressed bytes lie from start on.
func (p *parts) expect(start int64, length uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.until = start, start+int64(min(length, uint64(max(p.size-start, 0))))+afterData
}

// ReadAt implements [io.ReaderAt].
func (p *parts) ReadAt(to []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, zip.ErrFormat
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for n < len(to) {
		if off >= p.size {
			return n, io.EOF
		}
		data := p.known(off)
		if data == nil {
			if p.last, err = p.fetch(p.ctx, off, p.end(off)); err != nil {
				return n, &partError{err}
			}
			continue
		}
		k := copy(to[n:], data)
		n, off = n+k, off+int64(k)
	}
	return n, nil
}

// known is what was fetched from an offset on, nil if nothing was.
func (p *parts) known(off int64) []byte {
	if data := p.tail.from(off); data != nil {
		return data
	}
	for _, w := range p.held {
		if data := w.from(off); data != nil {
			return data
		}
	}
	return p.last.from(off)
}

// hold keeps a piece of the file until it is released.
func (p *parts) hold(w window) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, &w)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = slices.DeleteFunc(p.held, func(h *window) bool { return h == &w })
	}
}

// lacks tells whether what begins at an offset is not of the end, which was fetched at first.
func (p *parts) lacks(off int64) bool { return p.tail.from(off) == nil }

// total is how many bytes were downloaded.
func (p *parts) total() int64 {
	p.answers.Lock()
	defer p.answers.Unlock()
	return p.downloaded
}

// end is where the part from an offset on is to end.
func (p *parts) end(off int64) int64 {
	end := off + smallPart
	if p.from <= off && off < p.until {
		end = min(max(p.until, end), off+largePart)
	}
	return min(end, p.size)
}

// fetch downloads the bytes from start to before end, of the same file as those before.
func (p *parts) fetch(ctx context.Context, start, end int64) (window, error) {
	got, err := p.get(ctx, fmt.Sprintf("bytes=%d-%d", start, end-1))
	if err != nil {
		return window{}, err
	}
	from, to, total, ok := contentRange(got.header)
	switch {
	case !ok || from != start || to != end || int64(len(got.body)) != end-start:
		return window{}, p.wrong(got)
	case total != p.size:
		return window{}, fmt.Errorf("package index %s: the file has %d bytes, want %d: it is another than that of the index",
			shown(p.url), total, p.size)
	}
	return window{start, got.body}, nil
}

// get asks for a range, of the same file as those before.
func (p *parts) get(ctx context.Context, span string) (*answer, error) {
	header := http.Header{"Range": {span}, "Accept-Encoding": {"identity"}}
	p.answers.Lock()
	if p.etag != "" {
		header.Set("If-Match", p.etag)
	}
	p.answers.Unlock()
	got, err := p.index.get(ctx, request{url: p.url, header: header, want: http.StatusPartialContent, limit: largePart})
	if err != nil {
		return nil, err
	}
	etag := got.header.Get("Etag")
	if strings.HasPrefix(etag, "W/") {
		etag = ""
	}
	p.answers.Lock()
	defer p.answers.Unlock()
	if p.etag != "" && etag != p.etag {
		return nil, fmt.Errorf("package index %s: %w", shown(p.url), errReplaced)
	}
	p.etag = etag
	p.downloaded += int64(len(got.body))
	return got, nil
}

var errReplaced = errors.New("the file was replaced while it was read: try again")

func (p *parts) wrong(got *answer) error {
	return fmt.Errorf("package index %s: asked for a range, it answers %q with %d bytes",
		shown(p.url), got.header.Get("Content-Range"), len(got.body))
}

// contentRange is the range of an answer, from start to before end, and the size of the file.
func contentRange(h http.Header) (start, end, total int64, ok bool) {
	n, err := fmt.Sscanf(h.Get("Content-Range"), "bytes %d-%d/%d", &start, &end, &total)
	return start, end + 1, total, n == 3 && err == nil && start <= end && end < total
}
