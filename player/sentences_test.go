package player

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// letters encodes a text as its bytes.
type letters struct{}

func (letters) EncodeOutput(text string) (ids []uint32, ok bool) {
	for i := range len(text) {
		ids = append(ids, uint32(text[i]))
	}
	return ids, true
}

func TestSentences(t *testing.T) {
	source, err := NewSentences(letters{}, 7)
	must(t, err)
	const eos = 1000
	say := func(r Request, tokens int) string {
		t.Helper()
		script, err := source.Script(&r)
		must(t, err)
		var text strings.Builder
		for at := range tokens {
			token := script.Fill(at)
			if token == eos {
				return text.String() + "$"
			}
			text.WriteByte(byte(token))
		}
		return text.String()
	}
	texts := map[string]bool{}
	for seed := range int64(50) {
		r := Request{ID: "a", Sampling: Sampling{EOSTokenID: eos, HasSeed: true, Seed: seed, Temperature: 1}}
		text := say(r, 10000)
		texts[text] = true
		whole, ended := strings.CutSuffix(text, ".$")
		if n := strings.Count(whole, ". ") + 1; !ended || n > maxSentences || strings.HasPrefix(whole, " ") || strings.Contains(whole, "  ") {
			t.Errorf("seed %d: %q", seed, text)
		}
		if r.ID = "b"; say(r, 10000) != text {
			t.Errorf("seed %d: another request gets another text", seed)
		}
		r.Sampling.IgnoreEOS = true
		if long := say(r, 10000); len(long) != 10000 || !strings.HasPrefix(long, strings.TrimSuffix(text, "$")) || strings.Contains(long, "  ") {
			t.Errorf("seed %d: with ignore_eos: %.200q", seed, long)
		}
	}
	require.True(t, len(texts) >= 40, "50 seeds give only %d texts", len(texts))
	cold := Request{ID: "a", PromptTokenIDs: []uint32{1, 2}, Sampling: Sampling{EOSTokenID: eos}}
	same, other := cold, cold
	same.ID, other.PromptTokenIDs = "b", []uint32{1, 3}
	if first := say(cold, 1000); say(same, 1000) != first || say(other, 1000) == first {
		t.Error("with temperature 0 the prompt alone does not decide")
	}
	// A request whose min_tokens come later gets more text, without a gap.
	script, err := source.Script(&cold)
	must(t, err)
	end := strings.Index(say(cold, 10000), "$")
	if script.Fill(end) != eos || script.Fill(end+1) != ' ' {
		t.Errorf("after the end: %d, %d", script.Fill(end), script.Fill(end+1))
	}
}

func TestToolAnswered(t *testing.T) {
	for prompt, want := range map[string]bool{
		"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n":                                                                false,
		"<|im_start|>user\n<tool_response>\n1\n</tool_response><|im_end|>\n<|im_start|>assistant\n":                              true,
		"<tool_response>1</tool_response><|im_end|><|im_start|>assistant\nIt is 1<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n": false,
		"<|start_header_id|>ipython<|end_header_id|>\n1<|eot_id|><|start_header_id|>assistant<|end_header_id|>":                  true,
		"[INST] Hi [/INST] [TOOL_CALLS] [] [TOOL_RESULTS] 1 [/TOOL_RESULTS]":                                                     true,
		strings.Repeat("x", 5000) + "<|im_start|>tool\n1<|im_end|>\n<|im_start|>assistant\n":                                     true,
	} {
		ids, _ := letters{}.EncodeOutput(prompt)
		decode := func(ids []uint32) string {
			var b strings.Builder
			for _, id := range ids {
				b.WriteByte(byte(id))
			}
			return b.String()
		}
		require.Equal(t, ToolAnswered(decode)(&Request{PromptTokenIDs: ids}), want, "%.80q", prompt)
	}
}

// Only tags that need not come are left out after the result of a tool.
func TestOptionalCalls(t *testing.T) {
	for text, want := range map[string]bool{
		`{"type":"structural_tag","format":{"type":"triggered_tags","at_least_one":false,"tags":[]}}`:     true,
		`{"type":"structural_tag","format":{"type":"triggered_tags","at_least_one":true,"tags":[]}}`:      false,
		`{"type":"structural_tag","format":{"type":"tags_with_separator","at_least_one":true,"tags":[]}}`: false,
		`{"structures":[{"begin":"a","schema":{},"end":"b"}],"triggers":["a"]}`:                           true,
		`not JSON`: false,
	} {
		raw := append([]byte{0x81, 0xae}, "structural_tag"...)
		raw = append(append(raw, 0xd9, byte(len(text))), text...)
		require.Equal(t, callsAreOptional(raw), want, "%s", text)
	}
}
