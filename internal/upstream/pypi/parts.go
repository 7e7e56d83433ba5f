package pypi

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	size int64 // 0 until it is known, which is before anything but the end is read
	tail piece // the end; as the size

	mu          sync.Mutex
	last        piece
	held        []*piece // by those who read many members at once
	from, until int64    // where the member lies that is being read

	answers    sync.Mutex // guards what is known from answers; taken last
	etag       string     // strong, "" if the server has none
	downloaded int64
}

// A piece is a part of the file that was fetched.
type piece struct {
	at   int64
	data []byte
}

// from returns what the piece holds from an offset on.
func (w piece) from(off int64) []byte {
	if off < w.at || off >= w.at+int64(len(w.data)) {
		return nil
	}
	return w.data[off-w.at:]
}

// partError is what went wrong while a part was fetched.
type partError struct{ error }

func (e *partError) Unwrap() error { return e.error }

// maxWhole bounds a wheel that is downloaded whole, in bytes, as it is kept in memory.
const maxWhole = 64 << 20

// open fetches the end of a file, and with it the size if the index has not given it. A server that has no range
// requests is asked for all of the file.
func (p *parts) open(f File) error {
	err := p.openTail()
	var refused *statusError
	if !errors.As(err, &refused) || refused.status != http.StatusOK {
		return err
	}
	if f.Size > maxWhole {
		return fmt.Errorf("package index %s: the server has no range requests, and the file is too large to download whole: "+
			"it has %d bytes, the limit is %d: name another index", shown(p.url), f.Size, maxWhole)
	}
	got, err := p.index.get(p.ctx, request{url: p.url, want: http.StatusOK, limit: maxWhole})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(got.body)
	if digest := hex.EncodeToString(sum[:]); f.SHA256 != "" && digest != f.SHA256 {
		return fmt.Errorf("package index %s: the file has sha256 %s, the index says %s", shown(p.url), digest, f.SHA256)
	}
	p.size, p.tail = int64(len(got.body)), piece{data: got.body}
	p.downloaded = p.size
	return nil
}

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
	p.size, p.tail = total, piece{start, got.body}
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
		data := p.tail.from(off)
		for i := 0; i < len(p.held) && data == nil; i++ {
			data = p.held[i].from(off)
		}
		if data == nil {
			data = p.last.from(off)
		}
		if data == nil {
			end := off + smallPart
			if p.from <= off && off < p.until {
				end = min(max(p.until, end), off+largePart)
			}
			if p.last, err = p.fetch(p.ctx, off, min(end, p.size)); err != nil {
				return n, &partError{err}
			}
			continue
		}
		k := copy(to[n:], data)
		n, off = n+k, off+int64(k)
	}
	return n, nil
}

// hold keeps a piece of the file until it is released.
func (p *parts) hold(w piece) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, &w)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = slices.DeleteFunc(p.held, func(h *piece) bool { return h == &w })
	}
}

// fetch downloads the bytes from start to before end, of the same file as those before.
func (p *parts) fetch(ctx context.Context, start, end int64) (piece, error) {
	got, err := p.get(ctx, fmt.Sprintf("bytes=%d-%d", start, end-1))
	if err != nil {
		return piece{}, err
	}
	from, to, total, ok := contentRange(got.header)
	switch {
	case !ok || from != start || to != end || int64(len(got.body)) != end-start:
		return piece{}, p.wrong(got)
	case total != p.size:
		return piece{}, fmt.Errorf("package index %s: the file has %d bytes, want %d: it is another than that of the index",
			shown(p.url), total, p.size)
	}
	return piece{start, got.body}, nil
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
	return fmt.Errorf("package index %s: the answer to a range request is %q with %d bytes",
		shown(p.url), got.header.Get("Content-Range"), len(got.body))
}

// contentRange returns the range of an answer, from start to before end, and the size of the file.
func contentRange(h http.Header) (start, end, total int64, ok bool) {
	n, err := fmt.Sscanf(h.Get("Content-Range"), "bytes %d-%d/%d", &start, &end, &total)
	return start, end + 1, total, n == 3 && err == nil && start <= end && end < total
}
