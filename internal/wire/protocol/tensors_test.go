package protocol

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// tensorFrames are the messages that testdata/tensors.py wrote by the encoder of a
// release, by their names.
func tensorFrames(t testing.TB, path string) map[string][][]byte {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	all := map[string][][]byte{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var c struct {
			Name   string
			Frames []string
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &c))
		for _, text := range c.Frames {
			frame, err := hex.DecodeString(text)
			require.NoError(t, err)
			all[c.Name] = append(all[c.Name], frame)
		}
	}
	return all
}

// tensorReleases calls do for each release that wrote messages.
func tensorReleases(t *testing.T, do func(t *testing.T, c *Codec, frames map[string][][]byte)) {
	t.Helper()
	paths, err := filepath.Glob("testdata/tensors-*.jsonl")
	if err != nil || len(paths) < 3 {
		t.Fatalf("%d releases: %v", len(paths), err)
	}
	for _, path := range paths {
		release := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "tensors-"), ".jsonl")
		t.Run(release, func(t *testing.T) {
			frames := tensorFrames(t, path)
			if len(frames) < 13 {
				t.Fatalf("only %d messages", len(frames))
			}
			do(t, codecOf(t, release), frames)
		})
	}
}

// What a request wants pooled is read of what real frontends write.
func TestPoolingOfRealEncoders(t *testing.T) {
	want := map[string]Pooling{
		"pooling embed":  {Task: "embed", Dimensions: 8, Activate: true},
		"pooling raw":    {Task: "token_classify"},
		"pooling cache":  {Task: "token_embed", Activate: true, LateInteraction: "cache_query", Query: "k"},
		"pooling doc":    {Task: "token_embed", Activate: true, LateInteraction: "score_doc", Query: "k"},
		"pooling skips":  {Task: "token_embed", Activate: true, SkipReading: true},
		"pooling chunks": {Task: "token_embed", Activate: true, ChunkSize: 4},
	}
	tensorReleases(t, func(t *testing.T, c *Codec, frames map[string][][]byte) {
		read := 0
		for name, want := range want {
			if name == "pooling chunks" && c.Line() != "0.33" {
				continue
			}
			r := new(Request)
			if err := c.DecodeRequest(frames[name][0], r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := c.DecodePooling(r.Pooling)
			if diff := cmp.Diff(want, got); err != nil || diff != "" || r.HasSampling {
				t.Errorf("%s: %v, sampling %v, -want +got:\n%s", name, err, r.HasSampling, diff)
			}
			read++
		}
		require.True(t, read >= 5, "only %d were read", read)
	})
}

// Requests whose every prompt token is to be told of are not looked up in the prefix
// cache, unless they say so.
func TestSkipsCacheOfRealEncoders(t *testing.T) {
	want := map[string]bool{
		"reads": false, "prompt logprobs": true, "prompt logprobs read anyway": false, "skips": true, "logprob ids": false,
		"scores inline": true, "scores aside": true, "scores read anyway": false,
	}
	tensorReleases(t, func(t *testing.T, c *Codec, frames map[string][][]byte) {
		for name, want := range want {
			if frames[name] == nil && strings.HasPrefix(name, "scores") && c.Line() == "0.27" {
				continue
			}
			r := new(Request)
			if err := c.DecodeRequest(frames[name][0], r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			require.Equal(t, r.Sampling.SkipsCache(), want, "%s: skips the cache", name)
			// A frontend that leaves the key out means the same.
			if r.Sampling.HasSkipReading = false; r.Sampling.SkipsCache() != want && !strings.Contains(name, "anyway") && name != "skips" {
				t.Errorf("%s without the key: skips the cache: %v, want %v", name, !want, want)
			}
		}
	})
}

func TestPromptScoresOfRealEncoders(t *testing.T) {
	count := make([]int64, 64)
	for i := range count {
		count[i] = int64(i)
	}
	want := map[string]*PromptScores{
		"scores inline": {Rows: 2, Width: 2, IDs: []int64{5, 6, 7, -1}},
		"scores aside":  {Rows: 2, Width: 32, IDs: count},
	}
	tensorReleases(t, func(t *testing.T, c *Codec, frames map[string][][]byte) {
		if frames["scores inline"] == nil && c.Line() == "0.27" {
			t.Skip("the line does not know them")
		}
		for name, want := range want {
			r := new(Request)
			require.NoError(t, c.DecodeRequest(frames[name][0], r))
			got, err := DecodePromptScores(r.Sampling.PromptScores, frames[name][1:])
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
			}
			require.Equal(t, r.Sampling.PromptScoreStart, map[string]int{"scores inline": 1}[name], "%s: begins at", name)
		}
	})
}

// tensorOutputs are outputs as testdata/tensors.py has them.
func tensorOutputs() map[string]*Output {
	rows := &Tensor{Shape: []int{2, 40}}
	for i := range 80 {
		rows.Values = append(rows.Values, float32(i))
	}
	return map[string]*Output{
		"output embed":  {Pooling: &Tensor{Shape: []int{3}, Values: []float32{0.5, -0.25, 1}}},
		"output scalar": {Pooling: &Tensor{Values: []float32{0.75}}},
		"output rows":   {Pooling: rows},
		"output scores": {PromptScores: &Tensor{Shape: []int{2, 2}, Values: []float32{-0.5, float32(math.Inf(-1)), -1, -2}}},
	}
}

// messageOf is the message of one output that ends a request.
func messageOf(t *testing.T, c *Codec, o *Output) ClientMessage {
	t.Helper()
	b := c.NewBatch(0)
	b.WeightVersion = ""
	r := plainRequest("a")
	r.HasSampling = false
	o.Finish = FinishStop
	require.NoError(t, b.Add(c.NewStream(r), o))
	return finish(t, b, nil)
}

// Tensors are written byte for byte as a real engine writes them.
func TestTensorsAsRealEncoders(t *testing.T) {
	tensorReleases(t, func(t *testing.T, c *Codec, frames map[string][][]byte) {
		for name, o := range tensorOutputs() {
			if frames[name] == nil && name == "output scores" && c.Line() == "0.27" {
				continue
			}
			got := messageOf(t, c, o)
			require.NoDiff(t, cmp.Diff(frames[name], [][]byte(got)), "%s (-want +got)", name)
		}
	})
}
