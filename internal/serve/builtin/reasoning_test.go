package builtin

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// What vllm-rs 0.33.0 made of answers with each parser.
func TestReasoningFormats(t *testing.T) {
	const text = "<think>\n\n a\n\n</think>\n\n\n b"
	for _, test := range []struct{ parser, reasoning, text string }{
		{"deepseek_r1", "\n a\n\n", "\n\n\n b"},
		{"minimax_m2", "\n a\n", "\n b"},
		{"nemotron_v3", "\n a\n", "\n\n b"},
		{"step3", "\n a\n\n", "\n\n\n b"},
		{"qwen3", "\n a\n", "\n b"},
		{"glm45", "\n\n a\n\n", "\n\n b"},
		{"step3p5", "\n a\n", "\n\n b"},
		{"kimi_k2", "\n\n a\n\n", "\n\n\n b"},
		{"deepseek_v4", "\n\n a\n\n", "\n\n\n b"},
		{"glm47", "\n\n a\n\n", "\n\n\n b"},
	} {
		t.Run(test.parser, func(t *testing.T) {
			format, err := findReasoning(test.parser)
			require.NoError(t, err)
			whole := answerParser{format: format}
			if reasoning, shown := whole.whole(text); reasoning != test.reasoning || shown != test.text {
				t.Errorf("%q and %q, want %q and %q", reasoning, shown, test.reasoning, test.text)
			}
			pieces, reasoning, shown := answerParser{format: format}, "", ""
			for i := range len(text) {
				pieces.add(text[i:i+1], i == len(text)-1, func(e callEvent) { reasoning, shown = reasoning+e.reasoning, shown+e.text })
			}
			require.True(t, reasoning == test.reasoning && shown == test.text, "in pieces %q and %q, want %q and %q", reasoning, shown, test.reasoning, test.text)
			none := answerParser{format: format}
			if reasoning, shown := none.whole("a\n</think>\n b"); reasoning != "" || shown != "a\n</think>\n b" {
				t.Errorf("without the first mark: %q and %q", reasoning, shown)
			}
		})
	}
}
