package player

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// image sets an image, by its hash, in place of some tokens of the prompt. named: without its content.
func image(id string, offset, length int, named bool) change {
	place := pack.AppendString(pack.AppendMapHeader(nil, 2), "offset")
	place = pack.AppendInt(pack.AppendString(pack.AppendInt(place, int64(offset)), "length"), int64(length))
	one := pack.AppendString(pack.AppendMapHeader(nil, 4), "data")
	if named {
		one = pack.AppendNil(one)
	} else {
		one = pack.AppendMapHeader(one, 0)
	}
	one = pack.AppendString(pack.AppendString(one, "mm_hash"), id)
	one = pack.AppendString(pack.AppendString(one, "identifier"), id)
	one = append(pack.AppendString(one, "mm_position"), place...)
	return func(r *protocol.Request) { r.MMFeatures = append(pack.AppendArrayHeader(nil, 1), one...) }
}

func TestImagesThatCannotBeReadAreRefused(t *testing.T) {
	r := newRig(t, Options{}, 1)
	r.submit(ask("a", count(0, 4), 1, func(q *protocol.Request) {
		q.MMFeatures = pack.AppendString(pack.AppendArrayHeader(nil, 1), "image")
	}))
	r.runAll()
	if got := r.answer("a"); got.finish != protocol.FinishError || !strings.HasPrefix(got.err, "bad_request: mm_features[0]: ") {
		t.Errorf("ended by %v: %s", got.finish, got.err)
	}
	if r.held() != 0 {
		t.Errorf("%d blocks are held", r.held())
	}
}

// tensorBeside is [dtype, [rows, columns], 1]: a tensor in the first auxiliary frame.
func tensorBeside(dtype string, rows, columns int) []byte {
	b := pack.AppendString(pack.AppendArrayHeader(nil, 3), dtype)
	b = pack.AppendInt(pack.AppendInt(pack.AppendArrayHeader(b, 2), int64(rows)), int64(columns))
	return pack.AppendInt(b, 1)
}

// sendBeside submits a request with an auxiliary frame.
func (s *session) sendBeside(r *protocol.Request, aux []byte) {
	s.t.Helper()
	payload := s.player.codec.AppendRequest(nil, r)
	must(s.t, s.front.SendRaw(0, []byte{protocol.TypeAdd}, payload, aux))
}

// A prompt of embeddings counts as many tokens as it has rows. The prefix cache knows
// it by its numbers.
func TestPromptsOfEmbeddings(t *testing.T) {
	s := connect(t, Options{VLLMVersion: "v0.33.0", Seed: 1, KVCache: KVCacheOptions{BlockSize: 16}}, 1)
	rows := func(n int, last byte) []byte {
		data := make([]byte, n*4)
		data[len(data)-1] = last
		return data
	}
	for _, tt := range []struct {
		name           string
		n              int
		data           []byte
		prompt, cached int64
	}{
		{"first", 40, rows(40, 1), 40, 0},
		{"same", 40, rows(40, 1), 40, 32},
		{"longer", 50, append(rows(32, 0), rows(18, 2)...), 50, 32},
		{"another", 40, append(rows(20, 9), rows(20, 1)...), 40, 16},
	} {
		embeds := ask(tt.name, nil, 2)
		embeds.PromptEmbeds = tensorBeside("bfloat16", tt.n, 2)
		s.sendBeside(embeds, tt.data)
		var told map[string]any
		for ended := false; !ended; {
			out := s.next(0).Outputs[0]
			if out.Error != nil {
				t.Fatalf("%s: %v", tt.name, decoded(t, out.Error))
			}
			if out.Prefill != nil {
				told = decoded(t, out.Prefill).(map[string]any)
			}
			ended = out.Finish != protocol.Unfinished
		}
		if told["num_prompt_tokens"] != tt.prompt || told["num_cached_tokens"] != tt.cached {
			t.Errorf("%s: %v, want a prompt of %d, %d cached", tt.name, told, tt.prompt, tt.cached)
		}
	}
}

func TestPromptsThatAreNone(t *testing.T) {
	s := connect(t, Options{VLLMVersion: "v0.33.0", Tolerant: true}, 1)
	both := ask("both", count(0, 3), 1)
	both.PromptEmbeds = tensorBeside("float32", 4, 1)
	broken := ask("broken", nil, 1)
	broken.PromptEmbeds = tensorBeside("float32", 1<<30, 1<<30)
	for _, tt := range []struct {
		r    *protocol.Request
		want string
	}{
		{ask("neither", nil, 1), "neither prompt_token_ids nor prompt_embeds"},
		{both, "3 prompt_token_ids, but 4 prompt_embeds"},
		{broken, "prompt_embeds: 16 bytes for 1073741824 rows"},
	} {
		s.sendBeside(tt.r, make([]byte, 16))
		got, _ := s.finished(0, 1)
		if a := got[tt.r.ID]; a == nil || a.finish != protocol.FinishError || !strings.Contains(a.err, tt.want) {
			t.Errorf("%s: %+v, want %s", tt.r.ID, a, tt.want)
		}
	}
}

// An echo of embeddings would be an echo of nothing.
func TestEchoOfEmbeddings(t *testing.T) {
	r := ask("a", nil, 3)
	r.PromptEmbeds = tensorBeside("float32", 4, 1)
	r.Aux = [][]byte{make([]byte, 16)}
	if err := setPrompt(r); err != nil || len(r.PromptTokenIDs) != 4 {
		t.Fatalf("%d tokens, %v", len(r.PromptTokenIDs), err)
	}
	if script, err := (Echo{}).Script(forSource(r)); err != nil || len(script.Tokens) > 0 || script.Finish != FinishStop {
		t.Errorf("said %v, %v", script.Tokens, err)
	}
}

// The ids to be scored lie beside the message when they are many.
func TestPromptScoresOverSockets(t *testing.T) {
	for _, line := range []string{"0.32", "0.33"} {
		t.Run(line, func(t *testing.T) {
			s := connect(t, Options{VLLMVersion: line, Limits: Limits{MaxNumBatchedTokens: 16}}, 1)
			const prompt, width = 40, 30
			r := ask("a", count(100, prompt), 1, promptLogprobs(0))
			var ids []byte
			for row := range prompt - 1 {
				for column := range width {
					id := uint64(100 + row + 1) // the token itself
					if column > 0 {
						id = uint64(1000 + column)
					}
					if column == width-1 {
						id = 1<<64 - 1 // padding
					}
					for i := range 8 {
						ids = append(ids, byte(id>>(8*i)))
					}
				}
			}
			r.Sampling.PromptScores = tensorBeside("<i8", prompt-1, width)
			s.sendBeside(r, ids)
			var o protocol.Outputs
			var aux [][]byte
			for len(o.Outputs) == 0 { // steps of parts of the prompt say nothing of it
				var err error
				if aux, err = s.front.Next(s.ctx, 0, &o); err != nil {
					t.Fatal(err)
				}
			}
			shape, values := floats(t, o.Outputs[0].PromptScores, aux)
			if diff := cmp.Diff([]int{prompt - 1, width}, shape); diff != "" {
				t.Fatalf("shape (-want +got):\n%s", diff)
			}
			told := readTable(t, o.Outputs[0].PromptLogprobs, aux)
			for row := range prompt - 1 {
				v := values[row*width : (row+1)*width]
				if v[0] != told.values[row][0] || !(v[1] < 0) || fmt.Sprint(v[width-1]) != "-Inf" {
					t.Fatalf("row %d: %v", row, v)
				}
			}
		})
	}
}

func TestPromptScoresThatCannotBeRead(t *testing.T) {
	s := connect(t, Options{VLLMVersion: "0.33", Tolerant: true}, 1)
	r := ask("a", count(0, 3), 1)
	r.Sampling.PromptScores = tensorBeside("<i8", 2, 3)
	s.sendBeside(r, make([]byte, 7))
	got, _ := s.finished(0, 1)
	const want = "prompt_logprob_token_ids: 7 bytes of \"<i8\" for 2 by 3 ids"
	if a := got["a"]; a == nil || a.finish != protocol.FinishError || !strings.Contains(a.err, strings.ReplaceAll(want, `"`, `\"`)) && !strings.Contains(a.err, want) {
		t.Errorf("%+v, want %s", a, want)
	}
}
