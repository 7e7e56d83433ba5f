package tokenizer

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// small is a tokenizer of the bytes a to e, a space and two merges, with a part put in by its key.
func small(parts ...string) string {
	file := map[string]string{
		"model": `{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"d":3,"e":4,"Ġ":5,"ab":6,"abc":7},"merges":["a b",["ab","c"]]}`,
		"pre":   `{"type":"ByteLevel","add_prefix_space":false}`, "added": `[]`, "norm": `null`, "post": `null`, "dec": `null`,
	}
	for i := 0; i < len(parts); i += 2 {
		file[parts[i]] = parts[i+1]
	}
	return `{"added_tokens":` + file["added"] + `,"normalizer":` + file["norm"] + `,"pre_tokenizer":` + file["pre"] +
		`,"post_processor":` + file["post"] + `,"decoder":` + file["dec"] + `,"model":` + file["model"] + `}`
}

func split(regex string) []string {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(regex)
	return []string{"pre", `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"` + quoted +
		`"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`}
}

func TestParseRefuses(t *testing.T) {
	model := func(keys string) []string { return []string{"model", `{"type":"BPE",` + keys + `}`} }
	sequence := func(parts string) []string {
		return []string{"pre", `{"type":"Sequence","pretokenizers":[` + parts + `]}`}
	}
	const vocab = `"vocab":{"a":0,"b":1}`
	tests := []struct {
		name  string
		parts []string
		want  string
	}{
		{"another model", []string{"model", `{"type":"Unigram","vocab":[["a",0.5]]}`}, `model: type "Unigram" is not supported: want BPE`},
		{"a model of words", []string{"model", `{"type":"WordLevel","vocab":{"a":0}}`}, `type "WordLevel" is not supported`},
		{"no model", []string{"model", `null`}, "model: missing"},
		{"no merges", model(vocab), "model: merges are missing"},
		{"an empty vocabulary", model(`"vocab":{},"merges":[]`), "model: vocab: it is empty"},
		{"no vocabulary", model(`"merges":[]`), "model: vocab: "},
		{"an id twice", model(`"vocab":{"a":0,"b":0},"merges":[]`), `vocab: tokens "a" and "b" both have id 0`},
		{"a huge id", model(`"vocab":{"a":4294967295},"merges":[]`), `vocab: token "a" has id 4294967295: want at most 4194304`},
		{"a negative id", model(`"vocab":{"a":-1},"merges":[]`), "vocab: json: cannot unmarshal number -1"},
		{"a merge of nothing known", model(vocab + `,"merges":["a x"]`), `merges: entry 0: "x" is not in the vocabulary`},
		{"a merge into nothing known", model(vocab + `,"merges":["a b"]`), `merges: entry 0: "ab" is not in the vocabulary`},
		{"a merge of three", model(vocab + `,"merges":[["a","b","a"]]`), "merges: entry 0: 3 parts: want 2"},
		{"a merge of one", model(vocab + `,"merges":["a"]`), "merges: entry 0: 1 parts: want 2"},
		{"dropout", model(vocab + `,"merges":[],"dropout":0.1`), "dropout is not supported"},
		{"a suffix", model(vocab + `,"merges":[],"end_of_word_suffix":"</w>"`), "end_of_word_suffix are not supported"},
		{"an unknown that is none", model(vocab + `,"merges":[],"unk_token":"?"`), `unk_token "?" is not in the vocabulary`},
		{"another normalizer", []string{"norm", `{"type":"Lowercase"}`}, `normalizer: type "Lowercase" is not supported: want NFC, NFD, NFKC, NFKD`},
		{"one in a sequence", []string{"norm", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Prepend"}]}`}, `"Prepend" is not supported`},
		{"null in a sequence", []string{"norm", `{"type":"Sequence","normalizers":[null]}`}, "null in a Sequence"},
		{"sequences in each other", []string{"norm", strings.Repeat(`{"type":"Sequence","normalizers":[`, 1000) + strings.Repeat(`]}`, 1000)}, "more than 8 deep"},
		{"no pre-tokenizer", []string{"pre", `null`}, "pre_tokenizer: [] is not supported: only a model over bytes"},
		{"a model over characters", []string{"pre", `{"type":"Metaspace"}`}, `pre_tokenizer: ["Metaspace"] is not supported`},
		{"bytes before the split", sequence(`{"type":"ByteLevel"},{"type":"Digits"}`), `["ByteLevel" "Digits"] is not supported`},
		{"another split", sequence(`{"type":"Punctuation"},{"type":"ByteLevel"}`), `type "Punctuation" is not supported`},
		{"another behavior", sequence(`{"type":"Split","pattern":{"Regex":"a"},"behavior":"MergedWithNext"},{"type":"ByteLevel"}`), `behavior "MergedWithNext" is not supported`},
		{"no pattern", sequence(`{"type":"Split","pattern":{},"behavior":"Isolated"},{"type":"ByteLevel"}`), "without a pattern"},
		{"lookbehind", split(`(?<=a)b`), `(?<= is not supported`},
		{"another lookahead", split(`a(?!b)`), `pattern "a(?!b)": (?!b is not supported`},
		{"the lookahead elsewhere", split(`\s+(?!\S)|\s+|a`), `is not supported`},
		{"possessive", split(`a++`), "invalid nested repetition"},
		{"intersection", split(`[\p{L}&&[^a]]`), "& at this place inside of [] is not supported"},
		{"a set in a set", split(`[a[bc]]`), "[ at this place inside of [] is not supported"},
		{"a bracket first", split(`[]a]`), "] at this place"},
		{"a set without an end", split(`[a`), "[ without ]"},
		{"a line's end", split(`a$`), "$ is not supported"},
		{"a word", split(`\w+`), `\w is not supported`},
		{"a trailing backslash", split(`a\`), `it ends in \`},
		{"a long pattern", split(strings.Repeat("a", 20000)), "a pattern of 20000 bytes"},
		{"much repetition", split(`(a{500}){500}`), "invalid repeat count"},
		{"another decoder", []string{"dec", `{"type":"Metaspace"}`}, `decoder: ["Metaspace"] is not supported`},
		{"another post-processor", []string{"post", `{"type":"BertProcessing"}`}, `post_processor: type "BertProcessing" is not supported`},
		{"an added token twice", []string{"added", `[{"id":8,"content":"x"},{"id":9,"content":"x"}]`}, `added_tokens: entry 1: "x" is listed twice`},
		{"an added token of another id", []string{"added", `[{"id":9,"content":"x"}]`}, `added_tokens: entry 0: "x" has id 9, but the vocabulary makes it 8`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(small(test.parts...)))
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge.json")
	require.NoError(t, os.WriteFile(huge, nil, 0o644))
	require.NoError(t, os.Truncate(huge, maxFile+1))
	config := filepath.Join(testenv.ModelDir(t), "config.json")
	for _, test := range []struct{ name, path, want string }{
		{"a folder without one", dir, filepath.Join(dir, "tokenizer.json")},
		{"another file", config, config + ": model: missing: not a tokenizer.json"},
		{"a huge file", huge, "larger than 256 MB"},
		{"not json", "tokenizer.go", "tokenizer.go: not a tokenizer.json: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Load(test.path); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestTokenizer(t *testing.T) {
	tok, err := Parse([]byte(small(
		"added", `[{"id":8,"content":"<s>","special":true},{"id":9,"content":"<x>"},{"id":10,"content":"<l>","lstrip":true}]`,
		"post", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<x>","type_id":0}}],"special_tokens":{"<s>":{"ids":[8]},"<x>":{"ids":[9,9]}}}`,
	)))
	require.NoError(t, err)
	require.Equal(t, tok.VocabSize(), 11, "VocabSize")
	for name, want := range map[string]int{"abc": 7, "<s>": 8, "Ġ": 5, " ": -1, "abcd": -1} {
		got := -1
		if id, ok := tok.TokenID(name); ok {
			got = int(id)
		}
		require.Equal(t, got, want, "TokenID(%q)", name)
	}
	if before, after := tok.Template(); !cmp.Equal(before, []uint32{8}) || !cmp.Equal(after, []uint32{9, 9}) {
		t.Errorf("Template is %v, %v", before, after)
	}
	require.NoDiff(t, cmp.Diff([]uint32{8, 7, 9, 5, 6}, tok.Encode("<s>abc<x> ab")), "Encode (-want +got)")
	require.True(t, tok.Added(9) && !tok.Added(7), "Added does not tell added tokens")
	for _, test := range []struct {
		text string
		want []uint32
		ok   bool
	}{
		{"abc<x>", []uint32{7, 9}, true},
		{"ab <l>", nil, false}, // white space before it would be lost, and the vocabulary has no <
		{"xyz", nil, false},
	} {
		if got, ok := tok.EncodeOutput(test.text); ok != test.ok || ok && !cmp.Equal(got, test.want) {
			t.Errorf("EncodeOutput(%q) is %v, %v", test.text, got, ok)
		}
	}
}

// FuzzRoundTrip: the text of a text's ids is that text, whatever it is.
func FuzzRoundTrip(f *testing.F) {
	tok, err := Load(testenv.ModelDir(f))
	require.NoError(f, err)
	for _, seed := range []string{"", "hello  world\n", "<|im_start|>user\nx<|im_end|>", "\xff\xfe", "日本語\u3000 1234", "'S \u00a0\u00a0x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want := strings.Join(strings.Split(strings.ToValidUTF8(text, "\ufffd"), ""), "")
		if got := tok.Decode(tok.Encode(text)); got != want {
			t.Errorf("%q comes back as %q", want, got)
		}
		checkBounds(t, tok, text, tok.Encode(text))
		if ids, ok := tok.EncodeOutput(want); !ok || tok.Decode(ids) != want {
			t.Errorf("%q is said as %q, %v", want, tok.Decode(ids), ok)
		}
	})
}

// FuzzParse: whatever a file says, reading it and encoding by it end.
func FuzzParse(f *testing.F) {
	f.Add(small(), "abc ab")
	f.Add(small(split(`\p{N}{1,3}|[^\s\p{L}]+|\s+(?!\S)|\s+`)...), "ab  c 12 ")
	f.Add(small("added", `[{"id":8,"content":" ","lstrip":true,"rstrip":true,"single_word":true}]`, "norm", `{"type":"NFC"}`), " a  b")
	f.Fuzz(func(t *testing.T, file, text string) {
		tok, err := Parse([]byte(file))
		if err != nil {
			return
		}
		ids := tok.Encode(text)
		for _, id := range ids {
			if int(id) >= tok.VocabSize() {
				t.Errorf("id %d of %d", id, tok.VocabSize())
			}
		}
		checkBounds(t, tok, text, ids)
	})
}

// checkBounds checks that as many tokens as a text has are enough, that one less is not, and that there are not fewer than its bytes need.
func checkBounds(t *testing.T, tok *Tokenizer, text string, ids []uint32) {
	t.Helper()
	if least := tok.MinTokens(text); least > len(ids) {
		t.Errorf("%q has %d tokens, but MinTokens is %d", text, len(ids), least)
	}
	if same, err := tok.EncodeWithin(t.Context(), text, len(ids)); err != nil || !slices.Equal(same, ids) {
		t.Errorf("%q within %d tokens is %v, %v: want %v", text, len(ids), same, err, ids)
	}
	if _, err := tok.EncodeWithin(t.Context(), text, len(ids)-1); len(ids) > 0 && !errors.Is(err, ErrTooLong) {
		t.Errorf("%q within %d tokens: %v", text, len(ids)-1, err)
	}
}

// maxByteCost is what encoding may allocate for each byte of a text.
const maxByteCost = 40

// TestEncodeIsSmall encodes long texts in memory of a few times their size, and not at all where they cannot fit or nobody waits.
func TestEncodeIsSmall(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, name := range []string{"llama3", "qwen3", "gpt2", "digits", "words"} {
		tok := Words()
		if name != "words" {
			var err error
			tok, err = Load(filepath.Join("testdata", "tokenizers", name+".json"))
			require.NoError(t, err)
		}
		for _, unit := range []string{" ", "a", "a b ", "1", "\n ", "é", "(", "\u3000"} {
			text := strings.Repeat(unit, 1<<16/len(unit))
			cost := func(ctx context.Context, maxTokens int) (int, error) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := tok.EncodeWithin(ctx, text, maxTokens)
				runtime.ReadMemStats(&after)
				return int(after.TotalAlloc - before.TotalAlloc), err
			}
			if n, err := cost(t.Context(), math.MaxInt); err != nil || n > maxByteCost*len(text) {
				t.Errorf("%s, %q: %d bytes for %d, %v", name, unit, n, len(text), err)
			}
			if len(tok.Encode(text)) <= 10 {
				continue // most of it is left out
			}
			if n, err := cost(t.Context(), 10); !errors.Is(err, ErrTooLong) || n > 2*len(text) {
				t.Errorf("%s, %q within 10 tokens: %d bytes for %d, %v", name, unit, n, len(text), err)
			}
			if _, err := cost(gone, math.MaxInt); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %q for a client that has left: %v", name, unit, err)
			}
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	raw, err := os.ReadFile("parse.go")
	require.NoError(b, err)
	long := strings.Repeat("a", len(raw))
	for name, text := range map[string]string{"source": string(raw), "one word": long} {
		b.Run(name, func(b *testing.B) {
			tok, err := Load("testdata/tokenizers/llama3.json")
			require.NoError(b, err)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Encode(text)
			}
		})
	}
}

// FuzzScanner: what is found without the regular expression is what that finds.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		"Hello there, it's 12345 o'clock!\r\n\n  'S 'Re\t x", "a  b   \n \n c\u00a0d 12\u0661 é 'ſ ... é!", " 1 22 \v\f\x01x \x85", "'lL'vE're'M", "  ", "!\n\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for onig := range scanners {
			fast, err := newPattern(onig)
			require.NoError(t, err)
			slow := *fast
			slow.scanner = nil
			pieces := func(p *pattern) (all []string) {
				p.split(text, func(piece string) bool { all = append(all, piece); return true })
				return all
			}
			require.NoDiff(t, cmp.Diff(pieces(&slow), pieces(fast)), "%q by %s (-want +got)", text, onig)
		}
	})
}
