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
