package conformance

import (
	"context"
	"io/fs"
	"log/slog"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// StoreOptions says where the goldens of a registry are.
type StoreOptions struct {
	// Bucket is what a bucket_path is a key in: "s3://name/prefix",
	// "file:///dir", a directory, or empty.
	Bucket string
	// Dir is what a bucket_path is relative to when Bucket is empty.
	Dir string
	// Files holds them when both are empty.
	Files fs.FS
	Log   *slog.Logger
}

// NewStore returns a store that finds goldens by their bucket_path and verifies
// each against its registered digest.
func NewStore(opt StoreOptions) Store {
	s := &golden.Store{Bucket: opt.Bucket, Log: opt.Log}
	if opt.Dir == "" {
		s.FS = opt.Files
	}
	return registeredStore{s, opt.Dir}
}

type registeredStore struct {
	bytes *golden.Store
	dir   string
}

func (s registeredStore) Fetch(ctx context.Context, g manifest.Golden) (data []byte, location string, err error) {
	location = g.Location(s.bytes.Bucket, s.dir)
	data, err = s.bytes.Fetch(ctx, location, g.SHA256, g.Size)
	return data, location, err
}
