package dataset

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// endOfText is the id that requests of these tests name as the end of sequence.
const endOfText = 2

func request(id string, prompt []uint32, change ...func(*player.Request)) *player.Request {
	r := &player.Request{ID: id, PromptTokenIDs: prompt}
	r.Sampling.MaxTokens, r.Sampling.HasMaxTokens, r.Sampling.EOSTokenID = 100, true, endOfText
	for _, f := range change {
		f(r)
	}
	return r
}

// said is the text of an answer of at most so many tokens, with <end> where it ends by the end of sequence.
func said(t testing.TB, tok *tokenizer.Tokenizer, script player.Script, most int) string {
	t.Helper()
	tokens := script.Tokens
	for len(tokens) < most && script.Fill != nil {
		next := script.Fill(len(tokens))
		if next == endOfText {
			return tok.Decode(tokens) + "<end>"
		}
		tokens = append(tokens, next)
	}
	return tok.Decode(tokens[:min(len(tokens), most)])
}

// source makes a strict source of rows that are written as JSON Lines.
func source(t testing.TB, minDepth int, lines ...string) *Source {
	t.Helper()
	set, err := Load(write(t, "a.jsonl", strings.Join(lines, "\n")), tiny(t), nil)
	require.NoError(t, err)
	s, err := set.Source(Options{Strict: true, MinDepth: minDepth})
	require.NoError(t, err)
	return s
}

func row1(prompt, completion string) string {
	return fmt.Sprintf(`{"prompt":%q,"completion":%q}`, prompt, completion)
}

func conversation(messages ...string) string {
	var list []string
	for i, m := range messages {
		list = append(list, fmt.Sprintf(`{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], m))
	}
	return `{"messages":[` + strings.Join(list, ",") + `]}`
}

// chatML is a conversation as the template of the tiny model, and that of Qwen, write it.
func chatML(messages ...string) string {
	var b strings.Builder
	for i, m := range messages {
		role := []string{"user", "assistant"}[i%2]
		if strings.HasPrefix(m, "system:") {
			role, m = "system", strings.TrimPrefix(m, "system:")
		}
		fmt.Fprintf(&b, "<|im_start|>%s\n%s<|im_end|>\n", role, m)
	}
	return b.String() + "<|im_start|>assistant\n"
}

// llama3 is a conversation as the template of Llama 3 writes it, with the added tokens of the tiny model: a role is
// between two of them.
func llama3(messages ...string) string {
	var b strings.Builder
	header := func(role string) { fmt.Fprintf(&b, "<|im_start|>%s<|im_end|>\n\n", role) }
	b.WriteString("<|endoftext|>")
	for i, m := range messages {
		header([]string{"user", "assistant"}[i%2])
		b.WriteString(m + "<|im_end|>")
	}
	header("assistant")
	return b.String()
}

func TestSourceMatches(t *testing.T) {
	long := strings.Repeat("all of this is the same in each of them ", 8)
	tests := []struct {
		name     string
		rows     []string
		minDepth int
		asks     []string // prompts, in order
		want     []string // answers; "": none
		summary  Summary
	}{
		{
			name: "a text", rows: []string{row1("Say hello", "Hello, wörld! 😀"), row1("Bye", "Farewell")},
			asks: []string{"Bye", "Say hello", "Say"}, want: []string{"Farewell", "Hello, wörld! 😀", ""},
			summary: Summary{Requests: 3, Text: 2, Unmatched: 1},
		},
		{
			name: "one row after the other, then the first again", rows: []string{row1("Hi", "one"), row1("Hi", "two")},
			asks: []string{"Hi", "Hi", "Hi"}, want: []string{"one", "two", "one"}, summary: Summary{Requests: 3, Text: 3},
		},
		{
			name: "white space around a text", rows: []string{row1("Hi", "plain"), row1(" Hi\n", "with space")},
			asks: []string{" Hi\n", "Hi", "Hi  "}, want: []string{"with space", "plain", "plain"}, summary: Summary{Requests: 3, Text: 3},
		},
		{
			name: "the last message of a chat", rows: []string{row1("Hi", "Hello"), row1("Bye\nnow", "Farewell")},
			asks: []string{chatML("Hi"), chatML("system:Be short", "Hi"), chatML("Hi", "Hello", "Bye\nnow"), chatML("Hi", "Hello", "more")},
			want: []string{"Hello", "Hello", "Farewell", ""}, summary: Summary{Requests: 4, Message: 3, Unmatched: 1},
		},
		{
			name: "an earlier message is not answered again, also where a role is the message", rows: []string{row1("Hi", "Hello"), row1("assistant", "yes?")},
			asks: []string{llama3("Hi", "Hello", "assistant"), llama3("Hi", "Hello", "more"), llama3("Hi", "Hello", "user"), llama3("Hi")},
			want: []string{"yes?", "", "", "Hello"}, summary: Summary{Requests: 4, Message: 2, Unmatched: 2},
		},
		{
			name: "a message that a template trims", rows: []string{row1("  Hi ", "Hello")},
			asks: []string{chatML("Hi")}, want: []string{"Hello"}, summary: Summary{Requests: 1, Message: 1},
		},
		{
			name: "an empty thought after the message", rows: []string{row1("Hi", "Hello")},
			asks: []string{chatML("Hi") + "<|endoftext|>\n\n<|endoftext|>\n\n"}, want: []string{"Hello"}, summary: Summary{Requests: 1, Message: 1},
		},
		{
			name: "white space is no message", rows: []string{row1(" ", "nothing"), row1("Hi", "Hello")},
			asks: []string{chatML("Hi"), chatML("other"), " "}, want: []string{"Hello", "", "nothing"},
			summary: Summary{Requests: 3, Text: 1, Message: 1, Unmatched: 1},
		},
		{
			name: "equal last messages: the whole conversation decides",
			rows: []string{conversation("A", "a", "go on", "after A"), conversation("B", "b", "go on", "after B"), row1("go on", "alone")},
			asks: []string{chatML("B", "b", "go on"), chatML("A", "a", "go on"), chatML("go on"), chatML("C", "c", "go on"), "go on", chatML("B")},
			want: []string{"after B", "after A", "alone", "alone", "alone", "b"}, summary: Summary{Requests: 6, Text: 1, Message: 5},
		},
		{
			name: "a beginning", minDepth: 32, rows: []string{row1(long+"one", "1"), row1(long+"and then two", "2"), row1("other", "3")},
			asks: []string{long + "and more", "other than that", long[:60]}, want: []string{"1", "", ""},
			summary: Summary{Requests: 3, Prefix: 1, Unmatched: 2},
		},
		{
			name: "no beginning unless it is asked for", rows: []string{row1(long+"one", "1")},
			asks: []string{long + "and more"}, want: []string{""}, summary: Summary{Requests: 1, Unmatched: 1},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, tok := source(t, test.minDepth, test.rows...), tiny(t)
			var got []string
			for i, text := range test.asks {
				script, err := s.Script(request(fmt.Sprint(i), tok.Encode(text)))
				if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("a.jsonl: request %d: no row has its prompt", i)) {
					t.Error(err)
				}
				got = append(got, strings.TrimSuffix(said(t, tok, script, 100), "<end>"))
			}
			require.NoDiff(t, cmp.Diff(test.want, got), "answers (-want +got)")
			require.NoDiff(t, cmp.Diff(test.summary, s.Summary()), "summary (-want +got)")
		})
	}
}

func TestSourceAnswers(t *testing.T) {
	const whole = "Hello, wörld! 😀"
	tests := []struct {
		name   string
		change func(*player.Request)
		most   int
		want   string
	}{
		{"to its end", func(*player.Request) {}, 100, whole + "<end>"},
		{"no further than it is asked for", func(*player.Request) {}, 2, "Hel"},
		{"again where the end is ignored", func(r *player.Request) { r.Sampling.IgnoreEOS = true }, 24, whole + "Hello, wörld"},
		{"again where more is demanded", func(r *player.Request) { r.Sampling.MinTokens = 24 }, 100, whole + "Hello, wörld<end>"},
		{"without an end of sequence", func(r *player.Request) { r.Sampling.EOSTokenID = -1 }, 100, whole},
		{"without one, and more is demanded", func(r *player.Request) { r.Sampling.EOSTokenID, r.Sampling.MinTokens = -1, 24 }, 100, whole + "Hello, wörld"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, tok := source(t, 0, row1("Say hello", whole)), tiny(t)
			for range 2 { // the second time out of what was kept
				script, err := s.Script(request("a", tok.Encode("Say hello"), test.change))
				require.NoError(t, err)
				require.Equal(t, said(t, tok, script, test.most), test.want, "said")
			}
		})
	}
}

// What no row answers is answered by the fallback, and ids that the tokenizer does not have match nothing.
func TestSourceFallsBack(t *testing.T) {
	set, err := Load(write(t, "a.jsonl", row1("Hi", "Hello")), tiny(t), nil)
	require.NoError(t, err)
	if _, err := set.Source(Options{}); err == nil {
		t.Error("a source without a fallback was made, that is not strict")
	}
	s, err := set.Source(Options{Fallback: player.Echo{}})
	require.NoError(t, err)
	for _, prompt := range [][]uint32{{1 << 30, 1<<32 - 1, endOfText}, {endOfText}, {}} {
		script, err := s.Script(request("a", prompt))
		var again []uint32
		for i := range prompt {
			again = append(again, script.Fill(i))
		}
		require.True(t, err == nil && (cmp.Equal(again, prompt) || len(prompt) == 0), "%v was answered with %v, %v", prompt, again, err)
	}
	require.NoDiff(t, cmp.Diff(Summary{Requests: 3, Unmatched: 3}, s.Summary()), "summary (-want +got)")
}

// A completion that the vocabulary has no tokens for is an error that names its row.
func TestSourceThatCannotBeSpelt(t *testing.T) {
	const letters = `{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}}`
	tok, err := tokenizer.Parse([]byte(letters))
	require.NoError(t, err)
	set, err := Load(write(t, "a.jsonl", row1("a", "b")+"\n"+row1("b", "abc")), tok, nil)
	require.NoError(t, err)
	s, err := set.Source(Options{Strict: true})
	require.NoError(t, err)
	if _, err := s.Script(request("x", tok.Encode("b"))); err == nil || !strings.Contains(err.Error(), "a.jsonl: row 2: the tokenizer cannot spell its completion") {
		t.Errorf("got %v", err)
	}
}

// Players of several engines share one source: each row answers once, until a rewind.
func TestSourceIsShared(t *testing.T) {
	const n = 100
	var rows []string
	for i := range n {
		rows = append(rows, row1("Hi", fmt.Sprintf("%d", i)))
	}
	s, prompt := source(t, 0, rows...), tiny(t).Encode("Hi")
	for range 2 {
		served := make(chan string, n)
		var players sync.WaitGroup
		for p := range 4 {
			players.Go(func() {
				for i := range n / 4 {
					script, err := s.Script(request(fmt.Sprintf("%d-%d", p, i), prompt))
					if err != nil {
						t.Error(err)
						return
					}
					served <- said(t, s.set.tok, script, 10)
				}
			})
		}
		players.Wait()
		close(served)
		seen := map[string]bool{}
		for text := range served {
			seen[text] = true
		}
		require.True(t, len(seen) == n, "%d rows were said, want each of %d", len(seen), n)
		s.Rewind()
	}
}

func TestSummaryText(t *testing.T) {
	const want = "15 requests: 1 matched by tokens, 2 by text, 3 by their last message, 4 by a beginning, 5 nothing"
	require.Equal(t, (Summary{15, 1, 2, 3, 4, 5}).String(), want, "text")
}
