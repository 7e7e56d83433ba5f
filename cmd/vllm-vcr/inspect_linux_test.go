package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestReplayStepsBehindFrontend: the clients of a real frontend get as many tokens as were recorded, in the recorded outputs, from a
// trace that has none.
func TestReplayStepsBehindFrontend(t *testing.T) {
	recording := filepath.Join(t.TempDir(), "trace.jsonl")
	const text = `{"meta":{"block_size":4}}
{"prompt_tokens":4,"output_tokens":5,"ttft_ms":200.0,"itl_ms":[1.0,2.0],"itl_tokens":[1,2],"arrival_ms":1.0,"finish_reason":"stop"}
{"prompt_tokens":4,"output_tokens":3,"ttft_ms":100.0,"itl_summary":{"mean_ms":50.0,"count":2},"arrival_ms":2.0}
`
	require.NoError(t, os.WriteFile(recording, []byte(text), 0o600))
	server, player := playingServer(t, "0.33.0", "--replay-steps", recording, "--vocab-size", "2048")
	for _, want := range []struct {
		id, reason string
		chunks     []int
	}{{"replay-0", "stop", []int{2, 1, 2}}, {"replay-1", "length", []int{1, 1, 1}}} {
		sent := time.Now()
		got, err := server.Complete(t.Context(), openai.Request{ID: want.id, Prompt: []uint32{5, 6, 7, 8}, MaxTokens: 100, Stream: true})
		require.NoError(t, err)
		if got.FinishReason != want.reason || !slices.Equal(got.Chunks, want.chunks) {
			t.Errorf("%s: %v in chunks of %v, ended by %q, want %v and %q", want.id, got.Tokens, got.Chunks, got.FinishReason, want.chunks, want.reason)
		}
		if least := 200 * time.Millisecond; time.Since(sent) < least {
			t.Errorf("%s took %v, want at least the recorded %v", want.id, time.Since(sent), least)
		}
	}
	require.Contains(t, player.stop(t), "2 requests: 2 matched a record by the whole prompt or the id")
}

// TestCalibrateOverWire: the predicted times are those of a client of a real frontend. They depend on the machine, so that only their number
// is checked.
func TestCalibrateOverWire(t *testing.T) {
	dir := t.TempDir()
	fit, predict := filepath.Join(dir, "fit.jsonl"), filepath.Join(dir, "predict.jsonl")
	for path, text := range map[string]string{
		fit: `{"meta":{"block_size":16}}
{"prompt_tokens":100,"output_tokens":4,"ttft_ms":20.03,"itl_ms":[10.01,10.02,10.03],"arrival_ms":0}
{"prompt_tokens":100,"output_tokens":4,"ttft_ms":20.02,"itl_ms":[10.02,10.04,10.03],"arrival_ms":100}
{"prompt_tokens":100,"output_tokens":4,"ttft_ms":20.04,"itl_ms":[10.05,10.02,10.01],"arrival_ms":200}
`,
		predict: `{"meta":{"block_size":16}}
{"prompt_tokens":40,"output_tokens":4,"ttft_ms":20.01,"itl_ms":[10.03,10.02,10.06],"arrival_ms":0,"block_hashes":[1,2]}
{"prompt_tokens":80,"output_tokens":6,"ttft_ms":20.03,"itl_ms":[10.02,10.01,10.03,10.02,10.05],"arrival_ms":200,"block_hashes":[1,2,3,4,5]}
`,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	var out, problems bytes.Buffer
	env := newEnvironment(&out, &problems, os.LookupEnv)
	code := env.main(t.Context(), []string{
		"inspect", "calibrate", "--latency-trace", fit, "--predict", predict, "--over-wire", "--frontend", testenv.Frontend(t, "0.33.0"),
		"--median-tolerance", "1e6", "--band-tolerance", "101", "--json",
	})
	var got struct {
		Predict []struct {
			Requests, Turns int
		}
		Runs      int
		Predicted struct {
			TTFT, ITL struct {
				Count int
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, &out, &problems)
	}
	p := got.Predicted
	if got.Runs != 1 || len(got.Predict) != 1 || got.Predict[0].Turns != 1 || p.TTFT.Count != 2 || p.ITL.Count != 8 {
		t.Errorf("got %+v, want one run of two requests, the second a turn, and 8 gaps", got)
	}
}
