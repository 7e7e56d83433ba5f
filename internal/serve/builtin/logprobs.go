package builtin

import (
	"iter"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// name is how a token is named in log-probabilities.
func (s *Server) name(q *params, id uint32) string {
	if q.TokensAsIDs {
		return "token_id:" + strconv.FormatUint(uint64(id), 10)
	}
	return s.shown(id, q.SkipSpecial != nil && !*q.SkipSpecial)
}

// candidates are the most likely tokens of a row of a table, at most so many: the token itself, and those that the
// engine lists behind it, among which it is not a second time. i is the place in the row, and at that in the table.
func candidates(t *protocol.Logprobs, row, limit int) iter.Seq2[int, int] {
	return func(yield func(i, at int) bool) {
		first := row * t.Width
		for i := 0; i < t.Width && limit > 0; i++ {
			if i > 0 && t.TokenIDs[first+i] == t.TokenIDs[first] {
				continue
			}
			if !yield(i, first+i) {
				return
			}
			limit--
		}
	}
}

// promptLogprobs are those of each token of the prompt: the first one has none. They are nil unless they are wanted.
func (s *Server) promptLogprobs(p *params, q *sequence) (rows []object) {
	type candidate struct {
		Logprob logprob `json:"logprob"`
		Rank    int64   `json:"rank"`
		Decoded string  `json:"decoded_token"`
	}
	if p.promptLogprobs == protocol.NoLogprobs {
		return nil
	}
	rows = []object{nil}
	for t := q.prompts; t != nil && len(rows) <= t.Rows(); {
		row := len(rows) - 1
		one := object{}
		for i, at := range candidates(t, row, t.Width) {
			rank := int64(i)
			if i == 0 {
				rank = t.Ranks[row]
			}
			id := t.TokenIDs[at]
			one = append(one, member{strconv.FormatUint(uint64(id), 10), candidate{logprob(t.Values[at]), rank, s.name(p, id)}})
		}
		rows = append(rows, one)
	}
	return rows
}

// textLogprobs are the log-probabilities of a completion.
type textLogprobs struct {
	Tokens  []string   `json:"tokens"`
	Values  []*logprob `json:"token_logprobs"`
	Top     []object   `json:"top_logprobs"`
	Offsets []int      `json:"text_offset"`

	offset int // of the next token in the text, in characters
}

func newTextLogprobs(offset int) *textLogprobs {
	return &textLogprobs{Tokens: []string{}, Values: []*logprob{}, Top: []object{}, Offsets: []int{}, offset: offset}
}

func (l *textLogprobs) token(name string, value *logprob, top object) {
	l.Tokens, l.Values, l.Top, l.Offsets = append(l.Tokens, name), append(l.Values, value), append(l.Top, top), append(l.Offsets, l.offset)
	l.offset += characters(name)
}

// prompt adds the tokens of the prompt. The first one has no log-probability.
func (l *textLogprobs) prompt(s *Server, p *params, q *sequence) {
	l.token(s.name(p, q.prompt[0]), nil, nil)
	if q.prompts != nil {
		l.add(s, p, q.prompts)
	}
}

// add adds the rows of a table.
func (l *textLogprobs) add(s *Server, p *params, t *protocol.Logprobs) {
	for row := range t.Rows() {
		top := object{}
		for _, at := range candidates(t, row, t.Width) {
			top = append(top, member{s.name(p, t.TokenIDs[at]), logprob(t.Values[at])})
		}
		value := logprob(t.Values[row*t.Width])
		l.token(s.name(p, t.TokenIDs[row*t.Width]), &value, top)
	}
}

// chatLogprobs are the log-probabilities of a chat.
type chatLogprobs struct {
	Content []tokenLogprob `json:"content"`
}

type tokenLogprob struct {
	namedLogprob
	Top []namedLogprob `json:"top_logprobs"`
}

type namedLogprob struct {
	Token   string  `json:"token"`
	Logprob logprob `json:"logprob"`
	Bytes   []int   `json:"bytes,omitzero"`
}

// tokenLogprobs are the rows of tables, with so many candidates each, and with the bytes of tokens or without.
func (s *Server) tokenLogprobs(p *params, limit int, withBytes bool, tables ...*protocol.Logprobs) []tokenLogprob {
	named := func(t *protocol.Logprobs, at int) namedLogprob {
		one := namedLogprob{Token: s.name(p, t.TokenIDs[at]), Logprob: logprob(t.Values[at])}
		if withBytes {
			one.Bytes = make([]int, len(one.Token))
			for i := range one.Bytes {
				one.Bytes[i] = int(one.Token[i])
			}
		}
		return one
	}
	all := []tokenLogprob{}
	for _, t := range tables {
		for row := range t.Rows() {
			one := tokenLogprob{named(t, row*t.Width), []namedLogprob{}}
			for _, at := range candidates(t, row, limit) {
				one.Top = append(one.Top, named(t, at))
			}
			all = append(all, one)
		}
	}
	return all
}

// chatLogprobs are those of tables, with as many candidates as were asked for.
func (s *Server) chatLogprobs(q *chatRequest, tables ...*protocol.Logprobs) *chatLogprobs {
	limit := int(or(q.TopLogprobs, 0))
	if limit < 0 {
		limit = s.opt.Tokenizer.VocabSize()
	}
	return &chatLogprobs{s.tokenLogprobs(&q.params, limit, true, tables...)}
}

// idLogprobs are the log-probabilities of ids.
type idLogprobs struct {
	Content []idLogprob `json:"content"`
}

type idLogprob struct {
	rankedLogprob
	Top []rankedLogprob `json:"top_logprobs"`
}

type rankedLogprob struct {
	ID      uint32  `json:"token_id"`
	Logprob logprob `json:"logprob"`
	Rank    int64   `json:"rank"`
}

func newIDLogprobs(tables ...*protocol.Logprobs) *idLogprobs {
	all := []idLogprob{}
	for _, t := range tables {
		for row := range t.Rows() {
			first := row * t.Width
			one := idLogprob{rankedLogprob{t.TokenIDs[first], logprob(t.Values[first]), t.Ranks[row]}, []rankedLogprob{}}
			for i, at := range candidates(t, row, t.Width) {
				rank := int64(i)
				if i == 0 {
					rank = t.Ranks[row]
				}
				one.Top = append(one.Top, rankedLogprob{t.TokenIDs[at], logprob(t.Values[at]), rank})
			}
			all = append(all, one)
		}
	}
	return &idLogprobs{all}
}
