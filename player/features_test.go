package player

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
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
	require.Equal(t, r.held(), 0, "blocks are held")
}

// tensorBeside is [dtype, [rows, columns], 1]: a tensor in the first auxiliary frame.
func tensorBeside(dtype string, rows, columns int) []byte {
	b := pack.AppendString(pack.AppendArrayHeader(nil, 3), dtype)
	b = pack.AppendInt(pack.AppendInt(pack.AppendArrayHeader(b, 2), int64(rows)), int64(columns))
	return pack.AppendInt(b, 1)
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
