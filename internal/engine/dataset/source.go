package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// Options configures [Set.Source].
type Options struct {
	// Strict ends a request that no row answers with an error. Otherwise Fallback, which is then needed, answers it.
	Strict   bool
	Fallback player.Source
	// MinDepth lets a row whose prompt begins with at least so many tokens of the request's answer it, if no row has its
	// prompt; they are compared in blocks of 16. 0 lets none. Every prompt is then encoded when the source is made.
	MinDepth int
	// Random lets any row answer a request that no row answers; Seed and the request choose it.
	Random bool
	Seed   uint64
	// Calls writes calls of tools as a model does; nil drops them.
	Calls func(calls []byte) (string, error)
}

// Source answers with rows. Several players may share one.
type Source struct {
	set    *Set
	opt    Options
	byHash map[[sha256.Size]byte][]int
	byText map[string][]int
	chains map[uint64][]int // by a hash of a prompt's blocks

	mu      sync.Mutex
	used    []bool
	said    map[int][]uint32 // completions that were asked for, encoded
	summary Summary
}

// Summary counts how requests found their rows.
type Summary struct {
	Requests  int `json:"requests"`
	Hash      int `json:"matched_tokens"`
	Text      int `json:"matched_text"`
	Message   int `json:"matched_message"`
	Prefix    int `json:"matched_prefix"`
	Unmatched int `json:"unmatched"`
}

// String is one line for a person.
func (s Summary) String() string {
	return fmt.Sprintf("%d requests: %d matched by tokens, %d by text, %d by their last message, %d by a beginning, %d nothing",
		s.Requests, s.Hash, s.Text, s.Message, s.Prefix, s.Unmatched)
}

// block is how many tokens of beginnings are compared at once.
const block = 16

// Source makes the rows findable.
func (s *Set) Source(opt Options) (*Source, error) {
	if !opt.Strict && opt.Fallback == nil {
		return nil, errors.New("a dataset that is not strict needs a source to fall back to")
	}
	src := &Source{
		set: s, opt: opt, used: make([]bool, len(s.Rows)), said: map[int][]uint32{},
		byHash: map[[sha256.Size]byte][]int{}, byText: map[string][]int{}, chains: map[uint64][]int{},
	}
	for i, r := range s.Rows {
		if r.Tokens != nil {
			src.byHash[r.Hash] = append(src.byHash[r.Hash], i)
			continue
		}
		key := src.key(r.Prompt)
		src.byText[key] = append(src.byText[key], i)
		if opt.MinDepth > 0 {
			for _, h := range trace.BlockHashes(s.tok.Encode(r.Prompt), block) {
				src.chains[h] = append(src.chains[h], i)
			}
		}
	}
	return src, nil
}

// key is what equal texts have in common: frontends trim messages and tokenizers put a space before a text.
func (s *Source) key(text string) string { return strings.TrimSpace(s.set.tok.Normalize(text)) }

// Script answers with the completion of the row that has the request's prompt.
func (s *Source) Script(r *player.Request) (player.Script, error) {
	s.mu.Lock()
	i, ok := s.find(r.PromptTokenIDs)
	if ok {
		s.used[i] = true
	}
	s.mu.Unlock()
	switch {
	case ok:
		return s.script(i, r)
	case s.opt.Random && len(s.set.Rows) > 0:
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %s %v", s.opt.Seed, r.ID, r.PromptTokenIDs)
		return s.script(int(h.Sum64()%uint64(len(s.set.Rows))), r)
	case s.opt.Strict:
		return player.Script{}, fmt.Errorf("%s: request %s: no row has its prompt (%d tokens)", s.set.Name, r.ID, len(r.PromptTokenIDs))
	}
	return s.opt.Fallback.Script(r)
}

// Summary returns what was matched so far.
func (s *Source) Summary() Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.summary
}

// Rewind makes every row unused.
func (s *Source) Rewind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.used)
}

// find returns the row that answers a prompt, and counts it.
func (s *Source) find(prompt []uint32) (i int, ok bool) {
	s.summary.Requests++
	for _, way := range []struct {
		find  func(prompt []uint32) []int
		count *int
	}{
		{s.findHash, &s.summary.Hash},
		{s.findText, &s.summary.Text},
		{s.findMessage, &s.summary.Message},
		{s.findPrefix, &s.summary.Prefix},
	} {
		if candidates := way.find(prompt); len(candidates) > 0 {
			*way.count++
			unused := slices.IndexFunc(candidates, func(i int) bool { return !s.used[i] })
			return candidates[max(unused, 0)], true
		}
	}
	s.summary.Unmatched++
	return 0, false
}

func (s *Source) findHash(prompt []uint32) []int {
	if len(s.byHash) == 0 {
		return nil
	}
	return s.byHash[Hash(prompt)]
}

// Hash is that of the ids of a prompt in a SQLite dataset.
func Hash(prompt []uint32) [sha256.Size]byte {
	b := make([]byte, 0, 4*len(prompt))
	for _, id := range prompt {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return sha256.Sum256(b)
}

// findText finds the rows of a prompt's whole text. A text that is equal goes before one that is equal but
// for white space around it, and a row of one message before the last message of many.
func (s *Source) findText(prompt []uint32) []int {
	if len(s.byText) == 0 {
		return nil
	}
	text := s.set.tok.Decode(trimTemplate(prompt, s.set.tok))
	key := s.key(text)
	candidates := s.byText[key]
	var same []int
	for _, i := range candidates {
		if s.set.tok.Normalize(s.set.Rows[i].Prompt) == text {
			same = append(same, i)
		}
	}
	if len(same) > 0 || key == "" {
		return s.sameConversation(same, "")
	}
	return s.sameConversation(candidates, "")
}

// trimTemplate takes the special tokens off that a frontend puts around a text.
func trimTemplate(prompt []uint32, tok *tokenizer.Tokenizer) []uint32 {
	before, after := tok.Template()
	if n := len(before); len(prompt) >= n && slices.Equal(prompt[:n], before) {
		prompt = prompt[n:]
	}
	if n := len(prompt) - len(after); n >= 0 && slices.Equal(prompt[n:], after) {
		prompt = prompt[:n]
	}
	return prompt
}

// roles are the names that are alone at the beginning of an answer.
var roles = []string{"assistant", "model"}

// findMessage finds the rows of the last message of a chat. After it there are only the beginning of the answer, with or
// without a role, and switches such as an empty thought.
func (s *Source) findMessage(prompt []uint32) []int {
	if len(s.byText) == 0 {
		return nil
	}
	role := false
	for end := len(prompt); ; {
		start := end
		for start > 0 && !s.set.tok.Added(prompt[start-1]) {
			start--
		}
		if start == 0 {
			return nil // no message, but the whole text or what precedes the first one
		}
		text := s.set.tok.Decode(prompt[start:end])
		switch key := s.key(text); {
		case key == "":
		case !role && slices.Contains(roles, key):
			role = true
		default:
			return s.sameConversation(s.message(text), s.set.tok.Decode(prompt[:start]))
		}
		end = start - 1
	}
}

// message finds the rows of a message, with or without a first line that names the role, and marks around the result of
// a tool that are no tokens of their own.
func (s *Source) message(text string) []int {
	if candidates := s.byText[s.key(text)]; len(candidates) > 0 {
		return candidates
	}
	if _, rest, ok := strings.Cut(text, "\n"); ok {
		if candidates := s.byText[s.key(rest)]; len(candidates) > 0 {
			return candidates
		}
		rest, _ = strings.CutPrefix(s.key(rest), "<tool_response>")
		rest, _ = strings.CutSuffix(rest, "</tool_response>")
		return s.byText[s.key(rest)]
	}
	return nil
}

// sameConversation leaves of the candidates those whose earlier messages are all in the text before, in their order: of
// those the ones with the most. Where none are, all candidates stay.
func (s *Source) sameConversation(candidates []int, before string) []int {
	var best []int
	most := 0
	for _, i := range candidates {
		n := len(s.set.Rows[i].Before)
		if n < most || !s.follows(s.set.Rows[i].Before, before) {
			continue
		}
		if n > most {
			best, most = nil, n
		}
		best = append(best, i)
	}
	if best == nil {
		return candidates
	}
	return best
}

func (s *Source) follows(messages []string, text string) bool {
	for _, m := range messages {
		at := strings.Index(text, s.key(m))
		if at < 0 {
			return false
		}
		text = text[at+len(s.key(m)):]
	}
	return true
}

// findPrefix finds the rows that share the most blocks of tokens with a prompt.
func (s *Source) findPrefix(prompt []uint32) []int {
	if len(s.chains) == 0 {
		return nil
	}
	hashes := trace.BlockHashes(trimTemplate(prompt, s.set.tok), block)
	for n := len(hashes); n > 0 && n*block >= s.opt.MinDepth; n-- {
		if candidates := s.chains[hashes[n-1]]; len(candidates) > 0 {
			return candidates
		}
	}
	return nil
}

// tokens are those of a row's completion.
func (s *Source) tokens(i int) ([]uint32, error) {
	row := &s.set.Rows[i]
	// The numbers of a tokenizer that is not here mean nothing to one of words.
	if row.Tokens != nil && (row.Completion == "" || s.set.tok == nil || !s.set.tok.IsWords()) {
		return row.Tokens, nil
	}
	s.mu.Lock()
	tokens, ok := s.said[i]
	s.mu.Unlock()
	if ok {
		return tokens, nil
	}
	text := row.Completion
	if row.Calls != nil && s.opt.Calls != nil {
		calls, err := s.opt.Calls(row.Calls)
		if err != nil {
			return nil, fmt.Errorf("%s: row %d: %w", s.set.Name, row.Number, err)
		}
		text += calls
	}
	if tokens, ok = s.set.tok.EncodeOutput(text); !ok {
		return nil, fmt.Errorf("%s: row %d: the tokenizer cannot spell its completion", s.set.Name, row.Number)
	}
	s.mu.Lock()
	s.said[i] = tokens
	s.mu.Unlock()
	return tokens, nil
}

// script answers with a row.
func (s *Source) script(i int, r *player.Request) (player.Script, error) {
	tokens, err := s.tokens(i)
	if err != nil {
		return player.Script{}, err
	}
	return Answer(tokens, r), nil
}

// Answer answers with tokens, then the end of sequence that the request names. As of a model, stop ids end
// it, and a request that wants more gets more.
func Answer(tokens []uint32, r *player.Request) player.Script {
	eos, least := r.Sampling.EOSTokenID, r.Sampling.MinTokens
	script := player.Script{Finish: player.FinishStop, Stops: true, CachedTokens: player.LookUp}
	if eos < 0 && !r.Sampling.IgnoreEOS { // only the end shows that it has ended
		script.Tokens = padded(tokens, least)
		return script
	}
	script.Finish = player.FinishLength
	ignore := r.Sampling.IgnoreEOS // the request is valid during this call only
	script.Fill = func(position int) uint32 {
		if position < len(tokens) || (position < least || ignore) && len(tokens) > 0 {
			return tokens[position%len(tokens)]
		}
		return uint32(eos)
	}
	return script
}

// longest bounds what min_tokens makes of a completion.
const longest = 1 << 20

// padded repeats tokens until there are at least so many.
func padded(tokens []uint32, least int) []uint32 {
	tokens = slices.Clip(tokens)
	for n := len(tokens); n > 0 && len(tokens) < min(least, longest); {
		tokens = append(tokens, tokens[len(tokens)-n])
	}
	return tokens
}
