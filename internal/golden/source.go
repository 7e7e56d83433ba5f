package golden

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A source is a place that bytes come from.
type source struct {
	open   func(context.Context, Span) (*Body, error)
	remote bool // worth retrying and caching
}

// A Span is the part of an object that is requested: all from an offset on. The zero Span is the whole object.
type Span struct {
	Offset  int64  // bytes
	ETag    string // of the object that the bytes before the offset came from; empty: any
	Version string // of the object in S3; empty: the newest
}

// A Body is the bytes of an object from some offset on.
type Body struct {
	io.ReadCloser
	Offset   int64     // of the first byte; 0 if the server cannot begin elsewhere
	Size     int64     // of the whole object in bytes; -1: not known
	ETag     string    // empty: not known
	Modified time.Time // when the object was stored; zero: not known
	Version  string    // of the object in S3; empty: not known
}

// An ObjectStore holds objects in buckets, as S3 does.
type ObjectStore interface {
	// Open returns the bytes of an object. It makes one try.
	Open(ctx context.Context, bucket, key string, part Span) (*Body, error)
	// Create makes an object of a file, in several tries if that may help. It never overwrites: where there is an object
	// of other bytes, the error is that of [Upload.OtherBytes].
	Create(ctx context.Context, bucket, key string, file Upload) (Created, error)
}

// A Connector makes the ObjectStore of a Store, without a request. That of S3 is s3store.Options.
type Connector interface {
	Connect(Transport) ObjectStore
}

// A Transport is how a Store reaches servers.
type Transport struct {
	HTTP    *http.Client // nil: none was given
	Backoff func(try int) time.Duration
	Stall   time.Duration // 0: the default of [retry.Watch]
	Log     *slog.Logger
}

// objects is the store of the objects of s3:// locations.
func (s *Store) objects() (ObjectStore, error) {
	if s.S3 == nil {
		return nil, fmt.Errorf("%w: this program cannot read s3:// locations", errors.ErrUnsupported)
	}
	s.connect.Do(func() {
		s.connected = s.S3.Connect(Transport{HTTP: s.HTTP, Backoff: s.backoff, Stall: s.Stall, Log: s.log()})
	})
	return s.connected, nil
}

// BucketAndKey takes an S3 location without its scheme apart. In place of a bucket it may have the ARN of an access point, which is the
// one that contains a slash.
func BucketAndKey(location string) (bucket, key string, err error) {
	bucket, key, _ = strings.Cut(location, "/")
	if strings.HasPrefix(bucket, "arn:") && strings.HasSuffix(bucket, ":accesspoint") {
		name, rest, _ := strings.Cut(key, "/")
		bucket, key = bucket+"/"+name, rest
	}
	if bucket == "" || key == "" {
		return "", "", errors.New("an S3 location is s3://bucket/key")
	}
	return bucket, key, nil
}

// wholeFile is the body of a file, read from its start.
func wholeFile(f io.ReadCloser, err error) (*Body, error) {
	if err != nil {
		return nil, err
	}
	return &Body{ReadCloser: f, Size: -1}, nil
}

// source returns how a location is read. It touches neither disk nor network.
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
		bucket, key, err := BucketAndKey(rest)
		if err != nil {
			return source{}, err
		}
		open := func(ctx context.Context, part Span) (*Body, error) {
			objects, err := s.objects()
			if err != nil {
				return nil, err
			}
			return objects.Open(ctx, bucket, key, part)
		}
		return source{open: open, remote: true}, nil
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
	return source{open: func(context.Context, Span) (*Body, error) { return wholeFile(s.FS.Open(name)) }}, nil
}

func fileSource(name string) source {
	return source{open: func(context.Context, Span) (*Body, error) {
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

// CheckBucket finds in a bucket what no location can have, before anything is looked for in it.
func CheckBucket(bucket string) error {
	scheme, rest, hasScheme := strings.Cut(bucket, "://")
	switch {
	case strings.ContainsFunc(bucket, func(r rune) bool { return !strconv.IsPrint(r) }):
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

// hasDots reports whether a path has a segment that servers and clients may read as another path.
func hasDots(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(segment string) bool { return segment == "." || segment == ".." })
}

// hubSource is a file of a dataset repository: org/repo/path, or org/repo@revision/path, as the hub's own tools also
// with datasets/ before it.
func (s *Store) hubSource(rest string) (source, error) {
	segments := strings.Split(strings.TrimPrefix(rest, "datasets/"), "/")
	if len(segments) < 3 || strings.Contains("/"+rest+"/", "//") {
		return source{}, errors.New("a location of the hub is hf://organization/repository/path or hf://organization/repository@revision/path")
	}
	repo, revision, pinned := strings.Cut(segments[1], "@")
	if !pinned {
		revision = "main"
	}
	if repo == "" || revision == "" || hasDots(repo+"/"+revision) {
		return source{}, errors.New("a location of the hub is hf://organization/repository@revision/path")
	}
	where, err := hub()
	if err != nil {
		return source{}, err
	}
	where = where.JoinPath(escaped("datasets", segments[0], repo, "resolve", revision)...)
	where = where.JoinPath(escaped(segments[2:]...)...)
	header := http.Header{}
	if token := os.Getenv(envHubToken); token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return source{open: s.openHTTPS(where, header), remote: true}, nil
}

// Names of the environment that every client of the hub goes by.
const (
	envHub      = "HF_ENDPOINT"
	envHubToken = "HF_TOKEN"
)

const defaultHub = "https://huggingface.co"

// hub is the address of the hub. A token is sent to it, so the connection must be private.
func hub() (*url.URL, error) {
	text := os.Getenv(envHub)
	if text == "" {
		text = defaultHub
	}
	where, err := url.Parse(text)
	if err != nil || where.Scheme != "https" && !isPlainLoopback(where) || where.Host == "" || where.RawQuery != "" || where.User != nil {
		return nil, fmt.Errorf("%s is %q, want an address such as %s", envHub, clip(shown(text)), defaultHub)
	}
	return where, nil
}

// isPlainLoopback reports whether a URL is of http on this machine, which no other machine can read.
func isPlainLoopback(where *url.URL) bool {
	ip := net.ParseIP(where.Hostname())
	return where.Scheme == "http" && (where.Hostname() == "localhost" || ip != nil && ip.IsLoopback())
}

// escaped are segments that stand for themselves in a URL.
func escaped(segments ...string) []string {
	var out []string
	for _, segment := range segments {
		out = append(out, url.PathEscape(segment))
	}
	return out
}
