package golden

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"
)

// DefaultMaxSize is the largest golden that is read unless [Store.MaxSize] says otherwise: 256 MiB,
// some hundred times the size of a usual one.
const DefaultMaxSize = 256 << 20

// Store fetches goldens. Its zero value reads files, and S3 and the web as the environment says; its
// fields are to be set before the first use. It is safe for use by several goroutines, and must not
// be copied.
type Store struct {
	// Bucket is where goldens without a location of their own are: "s3://name/prefix", "file:///dir"
	// or a directory. Here it only decides that FS is not used: the caller puts it into the location.
	Bucket string
	// Dir is the directory that relative files are below; by default the working directory.
	Dir string
	// FS, if not nil, holds the relative files, as long as Bucket is empty.
	FS fs.FS
	// Cache is the directory of the cache; by default $VLLM_VCR_CACHE, else vllm-vcr/goldens in the
	// user's cache directory.
	Cache string
	// MaxSize is the number of bytes that a golden may have; by default DefaultMaxSize.
	MaxSize int64
	// Log is told of downloads, retries and faults of the cache; by default nobody is.
	Log *slog.Logger

	// HTTP makes all requests for goldens. By default they are made as http.DefaultClient does, and
	// as the AWS SDK does.
	HTTP *http.Client
	// Endpoint is the URL of the S3 server, instead of the environment's.
	Endpoint string
	// Backoff is the time to wait after the given try, of which the first is 1; by default random, up
	// to 0.5 s, 1 s, 2 s.
	Backoff func(try int) time.Duration
	// Stall is how long a server may send nothing before the request is given up; by default 30 s.
	Stall time.Duration

	busy        digestLocks
	s3          s3Cache
	roleTimeout time.Duration // for tests; 0: the constant
}

// Fetch returns the bytes at a location, which have the given SHA-256, 64 lowercase hexadecimal
// digits, and unless it is 0 the given size. An error is a [*MismatchError] or a [*FetchError].
func (s *Store) Fetch(ctx context.Context, location, sha256 string, size int64) ([]byte, error) {
	p := pin{location: printable(scrub(location)), sha256: sha256, size: size, max: s.maxSize()}
	if err := p.valid(); err != nil {
		return nil, &FetchError{Location: p.location, Err: err}
	}
	if ctx.Err() != nil {
		return nil, &FetchError{Location: p.location, Err: context.Cause(ctx)}
	}
	src, err := s.source(location)
	if err != nil {
		return nil, &FetchError{Location: p.location, Err: err}
	}
	if src.remote {
		return s.fetchRemote(ctx, p, src)
	}
	data, err := readLocal(ctx, src, p.limit())
	if err != nil {
		return nil, p.failed(err, 0)
	}
	return p.verified(data)
}

// fetchRemote looks into the cache first. Of several callers that want the same bytes one downloads
// them, and the others then find them in the cache.
func (s *Store) fetchRemote(ctx context.Context, p pin, src source) ([]byte, error) {
	leave, err := s.busy.enter(ctx, p.sha256)
	if err != nil {
		return nil, p.failed(err, 0)
	}
	defer leave()
	if data, ok := s.cached(p); ok {
		return p.verified(data)
	}
	data, err := s.download(ctx, p, src)
	if err != nil {
		return nil, err
	}
	if data, err = p.verified(data); err != nil {
		return nil, err
	}
	if err := s.keep(p.sha256, data); err != nil {
		s.log().Warn("golden not cached", "golden", p.location, "error", err)
	}
	return data, nil
}

func readLocal(ctx context.Context, src source, limit int64) ([]byte, error) {
	file, err := src.open(ctx, span{})
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readUpTo(file, limit)
}

// readUpTo reads one byte more than limit at most, which shows that there is more. It allocates as
// bytes come, by nobody's claim.
func readUpTo(r io.Reader, limit int64) ([]byte, error) {
	return io.ReadAll(io.LimitReader(r, limit+1))
}

func (s *Store) maxSize() int64 {
	if s.MaxSize <= 0 {
		return DefaultMaxSize
	}
	return min(s.MaxSize, math.MaxInt64-1) // room for the one byte more
}

func (s *Store) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

// A pin is what the bytes at a location must be.
type pin struct {
	location string // fit for messages
	sha256   string
	size     int64 // 0: any
	max      int64 // of any golden
}

func (p pin) valid() error {
	switch {
	case len(p.sha256) != sha256.Size*2 || strings.Trim(p.sha256, "0123456789abcdef") != "":
		return fmt.Errorf("registered sha256 %q is not 64 lowercase hexadecimal digits", clip(p.sha256))
	case p.size < 0:
		return fmt.Errorf("registered size is %d bytes", p.size)
	case p.size > p.max:
		return fmt.Errorf("registered size is %d bytes, but a golden may have %d at most", p.size, p.max)
	}
	return nil
}

// limit is the number of bytes beyond which reading on is of no use.
func (p pin) limit() int64 {
	if p.size > 0 {
		return p.size
	}
	return p.max
}

// verified returns data if it is what the pin says. More bytes than the limit were not all read.
func (p pin) verified(data []byte) ([]byte, error) {
	got := int64(len(data))
	if got > p.limit() && p.size == 0 {
		return nil, &FetchError{Location: p.location, Err: fmt.Errorf("more than the %d bytes that a golden may have", p.max)}
	}
	mismatch := &MismatchError{Location: p.location, WantSHA256: p.sha256, WantSize: p.size, GotSize: got}
	if got > p.limit() {
		return nil, mismatch
	}
	mismatch.GotSHA256 = digest(data)
	if mismatch.GotSHA256 != p.sha256 || p.size > 0 && got != p.size {
		return nil, mismatch
	}
	return data, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
