package conformance

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// StoreOptions says where the goldens of a registry are.
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
	// $VLLM_VCR_CACHE, else one of the user's.
	Cache string
	// Offline forbids the network: what is remote comes from the cache.
	Offline bool
	// MaxSize is the number of bytes that a golden may have; 0 is 256 MiB.
	MaxSize int64
	// S3 says how S3 is reached where the environment does not.
	S3  golden.S3Options
	Log *slog.Logger
}

// NewStore returns a store that finds goldens by their bucket_path, or at their
// mirrors, and verifies each against its registered digest. It is a [Prefetcher].
func NewStore(opt StoreOptions) *RegisteredStore {
	s := &golden.Store{
		Bucket: opt.Bucket, Bundle: opt.Bundle, Cache: opt.Cache, Offline: opt.Offline, MaxSize: opt.MaxSize,
		S3: opt.S3, Log: opt.Log,
	}
	if opt.Dir == "" {
		s.FS = opt.Files
	}
	return &RegisteredStore{Bytes: s, dir: opt.Dir}
}

// A RegisteredStore finds the goldens of a registry in a store of bytes.
type RegisteredStore struct {
	Bytes *golden.Store
	dir   string

	mu     sync.Mutex
	failed map[string]error // why a golden could not be had ahead of its use, by objectKey
}

// Object is a golden as the store of bytes knows it.
func (s *RegisteredStore) Object(g manifest.Golden) golden.Object {
	o := golden.Object{
		Location: g.Location(s.Bytes.Bucket, s.dir), Mirrors: g.Mirrors, SHA256: g.SHA256, Size: g.Size, VersionID: g.VersionID,
	}
	if s.Bytes.Bundle != "" {
		o.Location = g.BucketPath // which bucket it is from plays no part
	}
	return o
}

func (s *RegisteredStore) Fetch(ctx context.Context, g manifest.Golden) (data []byte, location string, err error) {
	o := s.Object(g)
	location = golden.Scrub(s.Bytes.Where(o)) // it is put into reports
	s.mu.Lock()
	err = s.failed[objectKey(o)]
	s.mu.Unlock()
	if err == nil {
		data, err = s.Bytes.Fetch(ctx, o)
	}
	return data, location, err
}

func objectKey(o golden.Object) string { return o.SHA256 + " " + o.Location }

// Prefetch gets the goldens that are remote into the cache, several at a time. A
// Fetch meanwhile waits for the download of its golden if that has begun, and makes it itself
// otherwise; what could not be had is not tried again.
func (s *RegisteredStore) Prefetch(ctx context.Context, goldens []manifest.Golden) (stop func()) {
	var objects []golden.Object
	for _, g := range goldens {
		if o := s.Object(g); s.Bytes.IsRemote(o) {
			objects = append(objects, o)
		}
	}
	if len(objects) == 0 || s.Bytes.Offline {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Bytes.PullEach(ctx, objects, func(_ int, p golden.Pulled) { s.remember(p) })
	}()
	return func() {
		cancel()
		<-ended
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = nil
	}
}

// remember keeps why a golden could not be had, unless Fetch may fare better: it can do
// without the cache.
func (s *RegisteredStore) remember(p golden.Pulled) {
	if p.Err == nil || errors.As(p.Err, new(*golden.CacheError)) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = map[string]error{}
	}
	s.failed[objectKey(p.Object)] = p.Err
}
