package golden

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// DefaultMaxSize is the largest golden that is read unless [Store.MaxSize] says otherwise: 256 MiB,
// some hundred times the size of a typical one.
const DefaultMaxSize = 256 << 20

// Store gets goldens. Its zero value reads files and the web; its
// fields are to be set before the first use. It is safe for use by several goroutines, and must not
// be copied.
type Store struct {
	// Bucket is where goldens without a location of their own are: "s3://name/prefix", "file:///dir"
	// or a directory. Here it only decides that FS is not used: the caller puts it into the location.
	// "bundle://FILE" is the same as a Bundle.
	Bucket string
	// Dir is the directory that relative files are below; by default the working directory.
	Dir string
	// FS, if not nil, holds the relative files, as long as Bucket is empty.
	FS fs.FS
	// Bundle is the path of a file that [WriteBundle] wrote. All goldens are taken out of it, by their
	// digests, wherever their locations are.
	Bundle string
	// Cache is the directory of the cache; by default $VLLM_VCR_CACHE_DIR, else vllm-vcr/goldens in the
	// user's cache directory.
	Cache string
	// MaxSize is the number of bytes that a golden may have; by default DefaultMaxSize.
	MaxSize int64
	// Timeout is how long Pull may take for one golden; by default there is no limit.
	Timeout time.Duration
	// Offline forbids the network: what is remote comes from the cache or not at all.
	Offline bool
	// Log gets downloads, retries, mirrors and faults of the cache; by default nothing is logged.
	Log *slog.Logger

	// HTTP makes all requests for goldens. By default they are made as http.DefaultClient does, and
	// those of S3 with the certificates of AWS_CA_BUNDLE.
	HTTP *http.Client
	// S3 reads and writes s3:// locations; without it they are errors. Package s3store has one.
	S3 Connector
	// Backoff is the time to wait after the given try, of which the first is 1; by default random, up
	// to 0.5 s, 1 s, 2 s. A server that asks for up to 30 s gets them.
	Backoff func(try int) time.Duration
	// Stall is how long a server may send nothing before the request is given up; by default 30 s.
	Stall time.Duration

	inside    func(netip.Addr) bool // nil: isInside
	guard     sync.Once
	guarded   *guards // of HTTP
	busy      digestLocks
	connect   sync.Once
	connected ObjectStore // by S3
	bundle    bundleCache
}

// An Object is a golden as it is registered.
type Object struct {
	Location   string    // see the package's documentation
	Mirrors    []string  // complete locations, tried in order when Location fails
	SHA256     string    // of the bytes, 64 lowercase hexadecimal digits
	Size       int64     // bytes; 0: not known
	VersionID  string    // of the S3 object at Location; empty: the newest
	CapturedAt time.Time // when the golden was captured; zero: not known
}

// Fetch returns the bytes of a golden, at most MaxSize. An error is a [*MismatchError] or a [*FetchError],
// or of a golden with mirrors one that holds those of all locations: a MismatchError if there is any.
func (s *Store) Fetch(ctx context.Context, o Object) ([]byte, error) {
	g, err := s.get(ctx, o, inMemory)
	return g.data, err
}

// A form is how the bytes of a golden are wanted.
type form int

const (
	checked  form = iota // not at all: it is enough that they are there
	inMemory             // as a slice
)

// got is a golden whose bytes were verified.
type got struct {
	data   []byte // if wanted in memory
	from   string // location, fit for messages
	size   int64  // bytes
	cached bool   // it was in the cache before
}

// get finds a golden at one of its locations, and verifies it.
func (s *Store) get(ctx context.Context, o Object, form form) (got, error) {
	p := pin{location: shown(o.Location), sha256: o.SHA256, size: o.Size, max: s.maxSize(), captured: o.CapturedAt}
	if err := p.valid(); err != nil {
		return got{}, p.refused(err)
	}
	if file := s.bundleFile(); file != "" {
		p.location = shown(s.Where(o))
		return s.fromBundle(ctx, p, file, form)
	}
	look := search{store: s, pin: p, form: form}
	defer func() {
		if look.release != nil {
			look.release()
		}
	}()
	for i, location := range append([]string{o.Location}, o.Mirrors...) {
		version := o.VersionID
		if i > 0 {
			version = "" // of another bucket
		}
		g, err := look.at(ctx, location, version)
		if err == nil {
			for _, err := range look.failures { // somebody should see to these locations
				s.log().Warn("a location of the golden failed, so it was fetched from another one", "from", g.from, "failed", err)
			}
			return g, nil
		}
		look.failures = append(look.failures, err)
	}
	if len(look.failures) == 1 {
		return got{}, look.failures[0]
	}
	return got{}, &elsewhereError{look.failures}
}

// A search is that for one golden.
type search struct {
	store    *Store
	pin      pin
	form     form
	release  func() // ends the work on the digest; nil: it has not begun
	failures []error
}

// at tries one location. Before the first that is remote it looks into the cache. Of several callers that want the
// same bytes one downloads them, and the others then find them there.
func (q *search) at(ctx context.Context, location, version string) (got, error) {
	p := q.pin
	p.location = shown(location)
	if ctx.Err() != nil {
		return got{}, p.failed(context.Cause(ctx), 0)
	}
	src, err := q.store.source(location)
	if err != nil {
		return got{}, &FetchError{Location: p.location, Err: err}
	}
	if !src.remote {
		body, err := src.open(ctx, Span{})
		if err != nil {
			return got{}, p.failed(err, 0)
		}
		return p.read(body.ReadCloser, q.form)
	}
	if q.release == nil {
		if q.release, err = q.store.busy.enter(ctx, p.sha256); err != nil {
			return got{}, p.failed(err, 0)
		}
		if g, err, ok := q.store.cached(p, q.form); ok {
			return g, err
		}
	}
	if q.store.Offline {
		return got{}, &FetchError{
			Location: p.location, Err: fmt.Errorf("%w: sha256 %s", errOffline, p.sha256), Cause: causeOffline,
			Hint: "run `vllm-vcr golden pull` while online, and keep the cache",
		}
	}
	return q.store.download(ctx, p, src, version, q.form)
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

// elsewhereError is a golden that could not be had at any of several locations.
type elsewhereError struct{ failures []error }

func (e *elsewhereError) Error() string {
	var texts []string
	for _, err := range e.failures {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; and at its next location, ")
}

// Unwrap returns what it is taken for: wrong bytes say more about a golden than none.
func (e *elsewhereError) Unwrap() []error {
	isMismatch := func(err error) bool { return errors.As(err, new(*MismatchError)) }
	if !slices.ContainsFunc(e.failures, isMismatch) {
		return e.failures
	}
	return slices.DeleteFunc(slices.Clone(e.failures), func(err error) bool { return !isMismatch(err) })
}

// digestLocks lets one goroutine at a time work on a digest. The zero value is ready.
type digestLocks struct {
	mu   sync.Mutex
	done map[string]chan struct{} // by digest; closed by the goroutine that works on it
}

// enter waits until the digest is free, and returns what ends the caller's own work on it.
func (l *digestLocks) enter(ctx context.Context, digest string) (leave func(), err error) {
	for {
		busy := l.claim(digest)
		if busy == nil {
			return func() { l.release(digest) }, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// claim returns nil if the digest is the caller's now, else what is closed when it is free.
func (l *digestLocks) claim(digest string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if busy := l.done[digest]; busy != nil {
		return busy
	}
	if l.done == nil {
		l.done = make(map[string]chan struct{})
	}
	l.done[digest] = make(chan struct{})
	return nil
}

func (l *digestLocks) release(digest string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.done[digest])
	delete(l.done, digest)
}

// A pin is what the bytes at a location must be.
type pin struct {
	what     string // for messages; empty: golden
	location string // fit for messages
	sha256   string
	size     int64     // 0: any
	max      int64     // of any golden
	captured time.Time // zero: not known
}

func (p pin) valid() error {
	switch {
	case p.size < 0:
		return fmt.Errorf("registered size is %d bytes", p.size)
	case p.size > p.max:
		return &tooLargeError{fmt.Sprintf("registered size is %d bytes, but a golden may have %d at most", p.size, p.max)}
	}
	return validDigest(p.sha256)
}

// validDigest refuses what is not a digest: it becomes a part of paths.
func validDigest(digest string) error {
	if len(digest) != sha256.Size*2 || strings.Trim(digest, "0123456789abcdef") != "" {
		return fmt.Errorf("registered sha256 %q is not 64 lowercase hexadecimal digits", clip(digest))
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

// check judges bytes by their number and digest. More than the limit were not all read.
func (p pin) check(size int64, sum string) error {
	mismatch := &MismatchError{Location: p.location, WantSHA256: p.sha256, WantSize: p.size, GotSize: size, CapturedAt: p.captured}
	switch {
	case size > p.limit() && p.size == 0:
		return p.tooLarge()
	case size > p.limit():
		return mismatch
	case sum != p.sha256 || p.size > 0 && size != p.size:
		mismatch.GotSHA256 = sum
		return mismatch
	}
	return nil
}

func (p pin) tooLarge() error {
	return p.refused(&tooLargeError{fmt.Sprintf("more than the %d bytes that a golden may have", p.max)})
}

// A tooLargeError is a golden of more bytes than any may have.
type tooLargeError struct{ text string }

func (e *tooLargeError) Error() string { return e.text }

// refused is the error of a golden that is not requested, or not as a whole.
func (p pin) refused(err error) error {
	e := &FetchError{Location: p.location, Err: err}
	if errors.As(err, new(*tooLargeError)) {
		e.Cause, e.Hint = causeTooLarge, "correct the manifest, or allow more with --max-golden-size"
	}
	return e
}

// read verifies what the input has, and closes it.
func (p pin) read(in io.ReadCloser, form form) (got, error) {
	defer in.Close()
	if form == inMemory {
		return p.readWhole(in)
	}
	return p.measure(in)
}

// readWhole is read into memory.
func (p pin) readWhole(r io.Reader) (got, error) {
	data, err := readUpTo(r, p.limit())
	if err != nil {
		return got{}, p.failed(err, 0)
	}
	if err := p.check(int64(len(data)), digest(data)); err != nil {
		return got{}, err
	}
	return got{from: p.location, size: int64(len(data)), data: data}, nil
}

// measure is read in constant memory.
func (p pin) measure(r io.Reader) (got, error) {
	sum, size, err := digestOf(io.LimitReader(r, p.limit()+1))
	if err != nil {
		return got{}, p.failed(err, 0)
	}
	return got{from: p.location, size: size}, p.check(size, sum)
}

// cannot is the error of a download that ended after the given number of tries.
func (p pin) cannot(err error, tries int) error {
	var (
		known *FetchError
		cache *CacheError
	)
	if errors.As(err, &known) {
		return known
	}
	if errors.As(err, &cache) {
		e := &FetchError{Location: p.location, Err: err, Cause: causeCache}
		if cache.Dir != "" {
			e.Hint = "make room, correct its permissions, or name another directory in " + envCache
		}
		return e
	}
	e := p.failed(err, tries)
	var refused *Refusal
	if isHub(p.location) && errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		known = e.(*FetchError)
		known.Hint = "check the location, and for a repository that is not public " + envHubToken
	}
	return e
}

// errOffline is why nothing remote was requested.
var errOffline = errors.New("it is not in the cache, and --offline allows no network")

// readUpTo reads one byte more than limit at most, which shows that there is more. It allocates as
// bytes come, by what the file system says alone.
func readUpTo(r io.Reader, limit int64) ([]byte, error) {
	var data bytes.Buffer
	if f, ok := r.(fs.File); ok {
		if info, err := f.Stat(); err == nil {
			data.Grow(int(min(info.Size(), limit)) + bytes.MinRead) // it looks for the end in room of that size
		}
	}
	_, err := data.ReadFrom(io.LimitReader(r, limit+1))
	return data.Bytes(), err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func isHub(location string) bool {
	scheme, _, _ := strings.Cut(location, "://")
	return strings.EqualFold(scheme, "hf")
}
