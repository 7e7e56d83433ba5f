package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/internal/serve/remote"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// serving starts a builtin frontend before engines, and returns it with what ends it.
func serving(t *testing.T, engines builtin.Engines, dir string, tok *tokenizer.Tokenizer) (s *builtin.Server, end func() error) {
	t.Helper()
	s, err := builtin.New(builtin.Options{
		Group: engines, Names: []string{"m"}, Dir: dir, Tokenizer: tok, Release: "1", LoRA: true,
		Env: []string{"VLLM_SERVER_DEV_MODE=1", "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1"},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			return errors.New("it does not end")
		}
	}
}

// fixed answers always the same.
type fixed []uint32

func (f fixed) Script(*player.Request) (player.Script, error) {
	return player.Script{Tokens: f, Stops: true, CachedTokens: player.LookUp, Finish: player.FinishStop}, nil
}

// TestAnswers sends the same requests to a frontend with a player in its process, and to one with a player behind
// ZeroMQ.
func TestAnswers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} {
		text, err := vcr.Files.ReadFile(vcr.ModelPath + "/" + name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	for _, line := range []string{"0.33", "0.27"} {
		t.Run(line, func(t *testing.T) {
			options := func() []player.Options {
				opt := player.Options{VLLMVersion: line, Vocab: uint32(tok.VocabSize()), Seed: 7, LoRA: player.LoRAOptions{MaxLoRAs: 2}}
				opt.Limits.MaxModelLen = 4096
				opt.Source = &player.Structured{Source: fixed(append(tok.Encode("One, two, three, four, five and six."), 2)), Encoder: tok}
				return []player.Options{opt}
			}
			group, err := player.NewGroup(options())
			require.NoError(t, err)
			local, endLocal := serving(t, group, dir, tok)
			port, err := vllmrs.Reserve()
			require.NoError(t, err)
			address := fmt.Sprintf("tcp://127.0.0.1:%d", port.Number())
			behind := options()
			behind[0].Handshake = address
			other, err := player.NewGroup(behind)
			require.NoError(t, err)
			playing, stop := context.WithCancel(context.Background())
			port.Release()
			played := make(chan error, 1)
			go func() { played <- other.Run(playing) }()
			wanted := ""
			if line == "0.27" {
				wanted = line // it does not tell its release
			}
			engine, err := remote.Accept(t.Context(), remote.Options{Address: address, Line: wanted, Log: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			if engine.Line() != line || !slices.Contains(engine.Tasks(), "generate") || engine.Engines()[0].MaxModelLen != 4096 {
				t.Errorf("line %s, tasks %v, %+v", engine.Line(), engine.Tasks(), engine.Engines())
			}
			far, endFar := serving(t, engine, dir, tok)
			ids := regexp.MustCompile(`"(id|created|request_id)":("[^"]*"|[0-9]+)`)
			for _, body := range []string{
				`/v1/completions {"prompt":"One","max_tokens":9}`,
				`/v1/completions {"prompt":"One","max_tokens":5,"n":2,"logprobs":2,"prompt_logprobs":1,"seed":3,"return_token_ids":true}`,
				`/v1/completions {"prompt":"One","max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"logprobs":1,"repetition_penalty":1.5}`,
				`/v1/completions {"prompt":"One","max_tokens":5000}`,
				`/v1/chat/completions {"messages":[{"role":"user","content":"Hi"}],"max_tokens":9,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"const":12}}}}`,
				`/v1/completions {"prompt":"One","structured_outputs":{"choice":["red"]}}`,
				`/v1/completions {"prompt":"One","max_tokens":4,"stop_token_ids":[77],"logit_bias":{"77":100}}`,
				`/inference/v1/generate {"token_ids":[5,6],"sampling_params":{"max_tokens":4}}`,
				`/v1/load_lora_adapter {"lora_name":"a","lora_path":"a"}`,
				`/v1/completions {"model":"a","prompt":"One","max_tokens":4}`,
				`/sleep`, `/wake_up`, `/reset_prefix_cache`,
			} {
				path, text, _ := strings.Cut(body, " ")
				var answers [2]string
				for i, s := range []*builtin.Server{local, far} {
					r := httptest.NewRequestWithContext(t.Context(), "POST", path, strings.NewReader(text))
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					s.ServeHTTP(w, r)
					all, _ := io.ReadAll(w.Body)
					answers[i] = fmt.Sprintf("%d %s", w.Code, ids.ReplaceAllString(string(all), `"$1":0`))
					if w.Code != 200 {
						t.Errorf("%s: %s", body, answers[i])
					}
				}
				if !strings.Contains(body, `"stream":true`) { // where its chunks end is chance
					require.NoDiff(t, cmp.Diff(answers[0], answers[1]), "%s (-player in the process +player behind ZeroMQ)", body)
				}
			}
			require.NoError(t, errors.Join(endLocal(), endFar()))
			stop()
			<-played
			r := httptest.NewRequest("POST", "/v1/completions", strings.NewReader(`{"prompt":"One"}`))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			far.ServeHTTP(w, r)
			require.Equal(t, w.Code, 500, "after the end of the engine: status")
		})
	}
}
