package load_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// The frontends take the images of every workload that has some, as many as are sent, and those that come again are the
// same to an engine.
func TestFrontendsTakeImages(t *testing.T) {
	tests := []struct {
		name     string
		workload load.Workload
		shape    load.Shape
		requests int
		images   int // that are different
	}{
		{"multiturn", load.Multiturn, load.Shape{Images: 1}, 180, 15 + 4},
		{"concurrency", load.Concurrency, load.Shape{Requests: 32, Images: 2}, 32, 32 + 4},
	}
	for _, version := range testenv.FrontendVersions() {
		for _, test := range tests {
			t.Run(version+"/"+test.name, func(t *testing.T) {
				server, until, ended := tapped(t, version, visionModel(t))
				var records []load.Record
				cfg := load.Config{URL: server.url, Model: "tiny", Workload: test.workload, Shape: test.shape, Seed: 1}
				cfg.Each = func(rec load.Record) error {
					records = append(records, rec)
					return nil
				}
				if report, err := load.Run(t.Context(), cfg); err != nil || report.Completed != test.requests {
					t.Fatalf("got %+v, %v", report, err)
				}
				close(until)
				require.NoError(t, <-ended)
				wantImages(t, server.trace, test.requests, test.shape.Images, test.images)
				wantAgreement(t, records, server.trace)
			})
		}
	}
}

// wantImages wants so many images in each request of a trace, and so many different ones in all.
func wantImages(t *testing.T, path string, requests, images, different int) {
	t.Helper()
	tr, err := trace.Read(path, trace.Options{Strict: true})
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, rec := range tr.Records {
		require.True(t, len(rec.MMHashes) == images, "%s:%d: %d mm_hashes, want %d", path, rec.Line, len(rec.MMHashes), images)
		for _, hash := range rec.MMHashes {
			seen[hash] = true
		}
	}
	require.True(t, len(seen) == different && len(tr.Records) == requests, "%d images in %d requests, want %d in %d", len(seen), len(tr.Records), different, requests)
}

// visionModel is a Qwen2-VL of two layers: the tokenizer of the tiny model, which knows the words of images too.
func visionModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("vision")))
	text, err := os.ReadFile(filepath.Join(testenv.ModelDir(t), "tokenizer.json"))
	var tokenizer map[string]any
	if err == nil {
		err = json.Unmarshal(text, &tokenizer)
	}
	require.NoError(t, err)
	added := tokenizer["added_tokens"].([]any)
	words := []string{"<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_pad|>"}
	for i, word := range words {
		added = append(added, map[string]any{
			"id": 2048 + i, "content": word, "special": true, "normalized": false,
			"single_word": false, "lstrip": false, "rstrip": false,
		})
	}
	tokenizer["added_tokens"] = added
	if text, err = json.Marshal(tokenizer); err == nil {
		err = os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o644)
	}
	require.NoError(t, err)
	return dir
}
