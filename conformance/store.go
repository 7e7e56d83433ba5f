package conformance

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// StoreOptions says where the goldens of a manifest are.
type StoreOptions struct {
	// Bucket is what a bucket_path is a key in: "s3://name/prefix",
	// "file:///dir", a directory, or empty. "bundle://FILE" is a Bundle.
	Bucket string
	// Dir is what a bucket_path is relative to when Bucket is empty.
	Dir string
	// Files holds them when both are empty.
	Files fs.FS
	// Bundle is a file that `golden bundle` wrote; all goldens are taken out of it,
	// wherever they are otherwise.
	Bundle string

	// Cache is the directory for what comes from the network; by default
	// $VLLM_VCR_CACHE_DIR, else one of the user's.
	Cache string
	// Offline forbids the network: what is remote comes from the cache.
	Offline bool
	// Timeout is how long a golden may take that is fetched ahead of its use, or
	// pulled; 0 is no limit.
	Timeout time.Duration
	// MaxSize is the number of bytes that a golden may have; 0 is 256 MiB.
	MaxSize int64
	// S3 reads s3:// locations; without it they are errors.
	S3  golden.Connector
	Log *slog.Logger
}

// NewStore returns a store that finds goldens by their bucket_path, or at their
// mirrors, and verifies each against its registered digest. It is a [Prefetcher].
func NewStore(opt StoreOptions) *RegisteredStore {
	s := &golden.Store{
		Bucket: opt.Bucket, Bundle: opt.Bundle, Cache: opt.Cache, Offline: opt.Offline, MaxSize: opt.MaxSize,
		Timeout: opt.Timeout, S3: opt.S3, Log: opt.Log,
	}
	if opt.Dir == "" {
		s.FS = opt.Files
	}
	return &RegisteredStore{Bytes: s, dir: opt.Dir}
}

// A RegisteredStore finds the goldens of a manifest in a store of bytes.
type RegisteredStore struct {
	Bytes *golden.Store
	dir   string

	mu    sync.Mutex
	ahead map[string]*ahead // what is fetched ahead of its use, by objectKey
}

// ahead is a golden that is fetched ahead of its use, or will be, or was.
type ahead struct {
	ended chan struct{}
	err   error // why it could not be had; once it has ended
}

// Object is a golden as the store of bytes knows it.
func (s *RegisteredStore) Object(g manifest.Golden) golden.Object {
	o := golden.Object{
		Location: g.Location(s.Bytes.Bucket, s.dir), Mirrors: g.Mirrors, SHA256: g.SHA256, Size: g.Size, VersionID: g.VersionID,
		CapturedAt: g.CapturedAt,
	}
	if s.Bytes.Bundle != "" {
		o.Location = g.BucketPath // which bucket it is from plays no part
	}
	return o
}

func (s *RegisteredStore) Fetch(ctx context.Context, g manifest.Golden) (data []byte, location string, err error) {
	o := s.Object(g)
	location = golden.Scrub(s.Bytes.Where(o)) // it is put into reports
	if err = s.await(ctx, o); err == nil {
		data, err = s.Bytes.Fetch(ctx, o)
	}
	return data, location, err
}

// await waits for the golden if it is being fetched ahead. What could not be had then is not tried again, unless Fetch may
// fare better: it can do without the cache.
func (s *RegisteredStore) await(ctx context.Context, o golden.Object) error {
	s.mu.Lock()
	coming := s.ahead[objectKey(o)]
	s.mu.Unlock()
	if coming == nil {
		return nil
	}
	select {
	case <-coming.ended:
	case <-ctx.Done():
		return nil // Fetch says it
	}
	if errors.As(coming.err, new(*golden.CacheError)) {
		return nil
	}
	return coming.err
}

func objectKey(o golden.Object) string { return o.SHA256 + " " + o.Location }

// Prefetch gets the goldens that are remote into the cache, several at a time, in this order. A
// Fetch of one of them waits for that; what could not be had is not tried again.
func (s *RegisteredStore) Prefetch(ctx context.Context, goldens []manifest.Golden) (stop func()) {
	if s.Bytes.Offline {
		return func() {}
	}
	var objects []golden.Object
	coming := map[string]*ahead{}
	for _, g := range goldens {
		o := s.Object(g)
		if key := objectKey(o); s.Bytes.IsRemote(o) && coming[key] == nil {
			objects, coming[key] = append(objects, o), &ahead{ended: make(chan struct{})}
		}
	}
	s.expect(coming)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Bytes.PullEach(ctx, objects, func(_ int, p golden.Pulled) {
			a := coming[objectKey(p.Object)]
			a.err = p.Err
			close(a.ended)
		})
	}()
	return func() {
		cancel()
		<-ended
		s.expect(nil)
	}
}

// expect says what is fetched ahead from now on.
func (s *RegisteredStore) expect(coming map[string]*ahead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = coming
}
