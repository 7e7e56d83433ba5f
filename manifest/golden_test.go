package manifest

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestLocation(t *testing.T) {
	const key = "conformance/v0.33.0/a.jsonl.gz"
	tests := []struct {
		name, path, bucket, dir, want string
	}{
		{name: "bucket", path: key, bucket: "s3://goldens", dir: "/repo", want: "s3://goldens/" + key},
		{name: "bucket with a prefix and slashes", path: key, bucket: "s3://goldens/ci//", want: "s3://goldens/ci/" + key},
		{name: "directory", path: key, dir: "/repo/testdata", want: filepath.FromSlash("/repo/testdata/" + key)},
		{name: "relative directory", path: key, dir: "testdata/", want: filepath.FromSlash("testdata/" + key)},
		{name: "neither", path: key, want: filepath.FromSlash(key)},
		{name: "s3", path: "s3://other/a.jsonl", bucket: "s3://goldens", dir: "/repo", want: "s3://other/a.jsonl"},
		{name: "scheme in upper case", path: "S3://other/a.jsonl", bucket: "s3://goldens", want: "S3://other/a.jsonl"},
		{name: "hf", path: "hf://datasets/o/n/a.jsonl", dir: "/repo", want: "hf://datasets/o/n/a.jsonl"},
		{name: "https", path: "https://example.com/a.jsonl", bucket: "s3://goldens", want: "https://example.com/a.jsonl"},
		{name: "file", path: "file:///a.jsonl", bucket: "s3://goldens", want: "file:///a.jsonl"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, (Golden{BucketPath: tt.path}).Location(tt.bucket, tt.dir), tt.want, "Location(%q, %q)", tt.bucket, tt.dir)
		})
	}
}

func TestForLine(t *testing.T) {
	m := &Manifest{Goldens: []Golden{{Line: "a", ID: "1"}, {Line: "b", ID: "2"}, {Line: "a", ID: "3"}}}
	want := []Golden{{Line: "a", ID: "1"}, {Line: "a", ID: "3"}}
	require.NoDiff(t, cmp.Diff(want, m.ForLine("a")), "ForLine(a) (-want +got)")
	if got := m.ForLine("c"); len(got) != 0 {
		t.Errorf("ForLine(c) = %v, want none", got)
	}
}
