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
	firstPart = 256 << 10 // where it is not known how much is needed; twice as much of what follows it
	largePart = 4 << 20
	nextGap   = 256 << 10 // what may lie between two parts that follow each other
	maxKept   = 32 << 20  // parts that are kept
)

// parts reads a file by range requests, as an [io.ReaderAt]. It is read from its beginning to its end mostly, so the part
// that follows the last one has twice its size.
type parts struct {
	index *Index
	ctx   context.Context
	url   *url.URL

	size int64 // 0 until it is known, which is before anything but the end is read
	tail piece // the end; as the size

	mu         sync.Mutex
	kept       []piece // the last one fetched is the last
	etag       string  // strong, "" if the server has none
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
		p.tail, err = p.fetch(max(p.size-tailSize, 0), p.size)
		return err
	}
	got, err := p.get(fmt.Sprintf("bytes=-%d", tailSize))
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
		for i := 0; i < len(p.kept) && data == nil; i++ {
			data = p.kept[i].from(off)
		}
		if data == nil {
			if err := p.fetchNext(off); err != nil {
				return n, &partError{err}
			}
			continue
		}
		k := copy(to[n:], data)
		n, off = n+k, off+int64(k)
	}
	return n, nil
}

// fetchNext fetches the part that begins at an offset before the tail.
func (p *parts) fetchNext(off int64) error {
	size, kept := int64(firstPart), int64(0)
	for i, part := range p.kept {
		kept += int64(len(part.data))
		if gap := off - part.at - int64(len(part.data)); i == len(p.kept)-1 && 0 <= gap && gap <= nextGap {
			size = min(2*int64(len(part.data)), largePart)
		}
	}
	fetched, err := p.fetch(off, min(off+size, p.tail.at))
	if err != nil {
		return err
	}
	for len(p.kept) > 0 && kept+size > maxKept {
		kept -= int64(len(p.kept[0].data))
		p.kept = slices.Delete(p.kept, 0, 1)
	}
	p.kept = append(p.kept, fetched)
	return nil
}

// fetch downloads the bytes from start to before end, of the same file as those before.
func (p *parts) fetch(start, end int64) (piece, error) {
	got, err := p.get(fmt.Sprintf("bytes=%d-%d", start, end-1))
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
func (p *parts) get(span string) (*answer, error) {
	header := http.Header{"Range": {span}, "Accept-Encoding": {"identity"}}
	if p.etag != "" {
		header.Set("If-Match", p.etag)
	}
	got, err := p.index.get(p.ctx, request{url: p.url, header: header, want: http.StatusPartialContent, limit: largePart})
	if err != nil {
		return nil, err
	}
	etag := got.header.Get("Etag")
	if strings.HasPrefix(etag, "W/") {
		etag = ""
	}
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
