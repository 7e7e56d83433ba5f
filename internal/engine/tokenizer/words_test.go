package tokenizer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestWords(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"words and signs", "This is a test.", []string{"This ", "is ", "a ", "test", "."}},
		{"white space goes with what is before it", "a \n\t b", []string{"a \n\t ", "b"}},
		{"and alone at the beginning", "  a", []string{"  ", "a"}},
		{"signs", `{"n": -7}`, []string{"{", `"`, "n", `"`, ": ", "-", "7", "}"}},
		{"an underscore in a word, and before one", "a_b _c", []string{"a_b ", "_", "c"}},
		{"other scripts", "日本, Grüße 🙂!", []string{"日本", ", ", "Grüße ", "🙂", "!"}},
		{"no UTF-8", "a\xff\xfeb", []string{"a", "\xff", "\xfe", "b"}},
		{"nothing", "", nil},
		{"a long word", strings.Repeat("x", 300), []string{strings.Repeat("x", 252), strings.Repeat("x", 48)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tok, words := Words(), []string(nil)
			for word, rest := "", test.text; rest != ""; {
				word, rest = cutWord(rest)
				words = append(words, word)
			}
			if diff := cmp.Diff(test.want, words); diff != "" {
				t.Error(diff)
			}
			ids, ok := tok.EncodeOutput(test.text)
			if !ok || len(ids) != len(test.want) || tok.Decode(ids) != test.text {
				t.Errorf("%d ids, %v: %q", len(ids), ok, tok.Decode(ids))
			}
		})
	}
}

// The ids of the simulator are FNV-1a hashes, so that clients that hash texts themselves find them.
func TestWordsIDs(t *testing.T) {
	tok := Words()
	if got, want := fmt.Sprint(tok.Encode("a foobar")), "[186949092 3214735720]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	require.Equal(t, tok.Decode([]uint32{7}), "token_7 ", "an id that nobody has seen")
	if text, special := tok.Bytes(WordsEnd); !special || text != "</s>" {
		t.Errorf("the end is %q, special %v", text, special)
	}
}

// What clients send does not fill the memory.
func TestWordsForgets(t *testing.T) {
	tok := Words()
	first := tok.Encode("first")
	for i := range maxWords {
		tok.Encode(fmt.Sprintf("w%d", i))
	}
	if n := len(tok.words.texts); n != maxWords {
		t.Errorf("%d texts are kept, want %d", n, maxWords)
	}
	if got := tok.Decode(first); !strings.HasPrefix(got, "token_") {
		t.Errorf("the oldest text is still %q", got)
	}
}
