package manifest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
			if got := (Golden{BucketPath: tt.path}).Location(tt.bucket, tt.dir); got != tt.want {
				t.Errorf("Location(%q, %q) = %q, want %q", tt.bucket, tt.dir, got, tt.want)
			}
		})
	}
}

func TestParseEveryKey(t *testing.T) {
	m, diagnostics := Load("testdata/clean.toml")
	if len(diagnostics) != 0 {
		t.Fatalf("diagnostics: %v", diagnostics)
	}
	zero := int64(0)
	want := Golden{
		Line: "0.33", ID: "s0", BucketPath: "conformance/v0.33.0/cpu/tiny/multiturn-s0.jsonl.gz",
		SHA256:     "1111111111111111111111111111111111111111111111111111111111111111",
		ConfigHash: "38d9474a790dfce6e1cb349c6ffe6076f82666c5c3cf09413a8489b55521155f",
		Workload:   "multiturn-s0", Role: Fidelity,
		Size: 46535, Records: 180, Streams: 179, Tokens: 4648,
		TokensSHA256: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		VLLMVersion:  "0.33.0",
		EngineImage:  "vllm/vllm-openai@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
		GPU:          "cpu", Model: "tiny", Scenario: "baseline", Seed: &zero,
		EngineConfig: "block_size=128;dtype=float32;enable_prefix_caching=true;enforce_eager=true;load_format=dummy;" +
			"max_model_len=4096;max_num_seqs=64;model=tiny;speculative=none;tensor_parallel=1",
		CapturedAt: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), CaptureRun: "https://example.com/runs/1", RecorderVersion: "1.0.0",
		VersionID: "v", Mirrors: []string{"https://example.com/a.jsonl.gz", "hf://datasets/o/n/a.jsonl.gz"},
		Visibility: Public, License: "Apache-2.0", Notes: "n", Pos: 6,
	}
	if diff := cmp.Diff(want, m.Goldens[0]); diff != "" {
		t.Errorf("golden (-want +got):\n%s", diff)
	}
	if got := m.Goldens[1]; got.ID != "multiturn-s13" || got.Seed != nil {
		t.Errorf("id %q, seed %v, want the workload and none", got.ID, got.Seed)
	}
	if diff := cmp.Diff([]Block{{Label: "0.33", Begin: 4, End: 46}}, m.Blocks); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}

func TestForLine(t *testing.T) {
	m := &Manifest{Goldens: []Golden{{Line: "a", ID: "1"}, {Line: "b", ID: "2"}, {Line: "a", ID: "3"}}}
	want := []Golden{{Line: "a", ID: "1"}, {Line: "a", ID: "3"}}
	if diff := cmp.Diff(want, m.ForLine("a")); diff != "" {
		t.Errorf("ForLine(a) (-want +got):\n%s", diff)
	}
	if got := m.ForLine("c"); len(got) != 0 {
		t.Errorf("ForLine(c) = %v, want none", got)
	}
}
