package golden

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// A source is a place that bytes come from.
type source struct {
	open   func(context.Context, span) (*body, error)
	remote bool // worth retrying and caching
}

// A span is the part of an object that is asked for: all from an offset on. The zero span is the whole object.
type span struct {
	offset  int64  // bytes
	etag    string // of the object that the bytes before the offset came from; empty: any
	version string // of the object in S3; empty: the newest
}

// A body is the bytes of an object from some offset on.
type body struct {
	io.ReadCloser
	offset   int64     // of the first byte; 0 if the server cannot begin elsewhere
	size     int64     // of the whole object in bytes; -1: not known
	etag     string    // empty: not known
	modified time.Time // when the object was stored; zero: not known
	version  string    // of the object in S3; empty: not known
}

// wholeFile is the body of a file, read from its start.
func wholeFile(f io.ReadCloser, err error) (*body, error) {
	if err != nil {
		return nil, err
	}
	return &body{ReadCloser: f, size: -1}, nil
}

// source tells from a location how to read it. It touches neither disk nor network.
func (s *Store) source(location string) (source, error) {
	scheme, rest, hasScheme := strings.Cut(location, "://")
	if !hasScheme {
		return s.relative(location)
	}
	switch strings.ToLower(scheme) {
	case "file":
		if !strings.HasPrefix(rest, "/") {
			return source{}, errors.New("a file location is file:// and an absolute path, such as file:///dir/file")
		}
		return fileSource(filepath.FromSlash(rest)), nil
	case "s3":
		bucket, key, _ := strings.Cut(rest, "/")
		if bucket == "" || key == "" {
			return source{}, errors.New("an S3 location is s3://bucket/key")
		}
		return source{open: s.openS3(bucket, key), remote: true}, nil
	case "https":
		where, err := url.Parse("https://" + rest)
		switch {
		case err != nil:
			return source{}, err
		case where.Host == "":
			return source{}, errors.New("a web location is https://host/path")
		case hasDots(where.Path):
			return source{}, errors.New("a segment of the path is . or .., which servers read as another path")
		}
		return source{open: s.openHTTPS(where, nil), remote: true}, nil
	case "hf":
		return s.hubSource(rest)
	case "bundle":
		return source{}, errors.New("only a whole bucket can be a bundle: bundle://FILE")
	}
	return source{}, fmt.Errorf("%w: scheme %q is not one of s3, https, hf and file", errors.ErrUnsupported, clip(scheme))
}

// relative is about locations without a scheme.
func (s *Store) relative(location string) (source, error) {
	switch {
	case location == "":
		return source{}, errors.New("the location is empty")
	case filepath.IsAbs(location):
		return fileSource(location), nil
	case s.FS == nil || s.Bucket != "":
		return fileSource(filepath.Join(s.Dir, location)), nil
	}
	name := path.Clean(filepath.ToSlash(location))
	if !fs.ValidPath(name) {
		return source{}, errors.New("the location leads out of the goldens that are built in")
	}
	return source{open: func(context.Context, span) (*body, error) { return wholeFile(s.FS.Open(name)) }}, nil
}

func fileSource(name string) source {
	return source{open: func(context.Context, span) (*body, error) {
		f, err := openRegular(name)
		if err != nil {
			return nil, err
		}
		return wholeFile(f, nil)
	}}
}

func openRegular(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	// Opening anything else may block for ever, or never end.
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	return os.Open(name)
}

// openHTTPS reads a web server, with the given headers.
func (s *Store) openHTTPS(where *url.URL, header http.Header) func(context.Context, span) (*body, error) {
	return func(ctx context.Context, part span) (*body, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		maps.Copy(req.Header, header)
		// Without this the transport asks for gzip and undoes it, and then also undoes that of a
		// golden which is stored with a Content-Encoding.
		req.Header.Set("Accept-Encoding", "identity")
		if part.offset > 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", part.offset))
			req.Header.Set("If-Match", part.etag)
		}
		resp, err := s.client(header).Do(req)
		if err != nil {
			return nil, err
		}
		b, err := webBody(resp, part)
		if err != nil {
			resp.Body.Close()
			return nil, err
		}
		return b, nil
	}
}

// webBody is what a web server answered to the question for a part.
func webBody(resp *http.Response, part span) (*body, error) {
	b := &body{ReadCloser: resp.Body, size: resp.ContentLength, etag: resp.Header.Get("Etag")}
	if modified, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		b.modified = modified
	}
	switch {
	case resp.StatusCode == http.StatusOK:
		return b, nil
	case resp.StatusCode == http.StatusPartialContent && part.offset > 0:
		var err error
		b.offset, b.size, err = parseContentRange(resp.Header.Get("Content-Range"))
		return b, err
	}
	return nil, &refusal{status: resp.StatusCode, retryAfter: retry.After(resp.Header)}
}

// client is the one for requests with the given headers.
func (s *Store) client(header http.Header) *http.Client {
	client := s.HTTP
	if client == nil {
		client = webClient()
	}
	return keepingToHTTPS(client, header)
}

// CheckBucket finds in a bucket what no location can have, before anything is looked for in it.
func CheckBucket(bucket string) error {
	scheme, rest, hasScheme := strings.Cut(bucket, "://")
	switch {
	case printable(bucket) != bucket:
		return errors.New("it has a character that is not printable")
	case !hasScheme:
		return nil // a directory
	case !slices.Contains([]string{"s3", "https", "hf", "file", "bundle"}, strings.ToLower(scheme)):
		return fmt.Errorf("its scheme %q is not one of s3, https, hf, file and bundle", clip(scheme))
	case rest == "" || rest[0] == '/' && !slices.Contains([]string{"file", "bundle"}, strings.ToLower(scheme)):
		return errors.New("it has a scheme and no name: want s3://name/prefix or https://host/path")
	case !isWeb(scheme):
		return nil
	case strings.ContainsAny(rest, `\?#`):
		return errors.New(`it has one of \ ? #: a location has no query, and a presigned URL is for one object`)
	case hasDots(rest):
		return errors.New("it has a . or .. segment")
	}
	return nil
}

func isWeb(scheme string) bool {
	return slices.Contains([]string{"s3", "https", "hf"}, strings.ToLower(scheme))
}

// hasDots tells whether a path has a segment that servers and clients may read as another path.
func hasDots(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(segment string) bool { return segment == "." || segment == ".." })
}
