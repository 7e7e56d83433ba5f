package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"math"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// completionRequest is the body of /v1/completions.
type completionRequest struct {
	params
	Prompt    json.RawMessage `json:"prompt"`
	MaxTokens *uint32         `json:"max_tokens"`
	Logprobs  *int32          `json:"logprobs"`
	Suffix    *string         `json:"suffix"`

	promptOnly bool     // max_tokens is 0: nothing is generated
	echo       []string // what goes before the answers to each prompt
	plain      []string // each prompt, as the simulator repeats it
}

const (
	defaultCompletion = 16   // max_tokens of a completion
	maxAnswers        = 1024 // to one HTTP request
)

func (s *Server) serveCompletions(w http.ResponseWriter, r *http.Request) *apiError {
	var q completionRequest
	end, err := readJSON(r, &q)
	if err != nil {
		return err
	}
	q.cacheThreshold = s.sim.wantsThreshold(r)
	id := "cmpl-" + requestID(r, q.RequestID)
	q.rank = wantedRank(r)
	g, err := s.complete(r.Context(), &q, id, end)
	if err != nil {
		return err
	}
	defer g.close()
	a := s.newAnswer(w, id, "text_completion", s.answeredBy(q.Model), int(time.Now().Unix()))
	defer a.release()
	if q.Stream {
		s.streamCompletion(r, g, &q, a)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	return s.writeCompletion(g, &q, a)
}

// answeredBy is the name of the model in an answer: an adapter has its own.
func (s *Server) answeredBy(model string) string {
	if l := s.models.adapter.find(model); l != nil {
		return l.Name
	}
	return s.models.base[0]
}

// complete checks a request and begins it.
func (s *Server) complete(ctx context.Context, q *completionRequest, id, end string) (*generation, *apiError) {
	prompts, err := s.prepareCompletion(ctx, q, id, end)
	if err != nil {
		return nil, err
	}
	return s.generate(ctx, &q.params, id, prompts, s.models.adapter.find(q.Model))
}

// prepareCompletion checks a request, and returns its prompts.
func (s *Server) prepareCompletion(ctx context.Context, q *completionRequest, id, end string) ([][]uint32, *apiError) {
	if len(q.Prompt) == 0 {
		return nil, missingField(end, "prompt")
	}
	p := &q.params
	p.logprobs = protocol.NoLogprobs
	if n := q.Logprobs; n != nil {
		if *n < -1 {
			return nil, badRequest("logprobs", "`logprobs` must be a non-negative value or -1.")
		}
		p.logprobs = count(*n)
	}
	if q.MaxTokens == nil && s.sim == nil {
		n := uint32(defaultCompletion)
		q.MaxTokens = &n
	}
	p.max = intOf(q.MaxTokens)
	if s.sim != nil {
		if err := s.sim.check(p); err != nil {
			return nil, err
		}
	}
	if err := p.check(s); err != nil {
		return nil, err
	}
	switch {
	case s.sim != nil: // which has no such members
	case *p.max == 0 && !p.Echo:
		return nil, badRequest("max_tokens", "max_tokens=0 is only supported when echo=true.")
	case q.Suffix != nil:
		return nil, badRequest("suffix", "suffix is not supported.")
	}
	if q.promptOnly = p.max != nil && *p.max == 0; q.promptOnly {
		one := 1
		p.max = &one
	}
	if p.Echo && p.PromptLogprobs == nil && (!p.Stream || q.promptOnly) {
		p.promptLogprobs = p.logprobs
	}
	if err := p.constrain(); err != nil {
		return nil, err
	}
	prompts, err := q.read(s)
	if err != nil {
		return nil, err
	}
	if s.sim != nil && s.sim.Echo {
		p.planner = s.echoes(p, q.plain)
	}
	return s.tokenize(ctx, p, prompts, id)
}

// A prompt is a text, or token ids.
type prompt struct {
	text      string
	ids       []uint32
	tokenized bool
}

// readPrompts reads a prompt or a list of them.
func readPrompts(raw json.RawMessage) (prompts []prompt, ok bool) {
	if text, ok := plainText(raw); ok {
		return []prompt{{text: text}}, true
	}
	var text string
	var texts []string
	var lists [][]uint32
	switch ids, isIDs := parseIDs(raw); {
	case isNull(raw):
		return nil, false
	case isIDs && len(ids) > 0:
		return []prompt{{ids: ids, tokenized: true}}, true
	case isIDs:
	case json.Unmarshal(raw, &text) == nil:
		return []prompt{{text: text}}, true
	case json.Unmarshal(raw, &texts) == nil:
		for _, text := range texts {
			prompts = append(prompts, prompt{text: text})
		}
	case json.Unmarshal(raw, &lists) == nil:
		for _, ids := range lists {
			prompts = append(prompts, prompt{ids: ids, tokenized: true})
		}
	default:
		return nil, false
	}
	return prompts, true
}

// tokenize returns the ids of each prompt. id is that of the request.
func (s *Server) tokenize(ctx context.Context, p *params, prompts []prompt, id string) ([][]uint32, *apiError) {
	if n := len(prompts); n > maxAnswers/p.answers {
		return nil, badRequest("prompt", "%d prompts with n=%d are more than %d answers", n, p.answers, maxAnswers)
	}
	var all [][]uint32
	for _, one := range prompts {
		ids := one.ids
		switch {
		case ctx.Err() != nil:
			return nil, nobody
		case one.tokenized:
			if err := inVocabulary("prompt", ids, s.opt.Tokenizer.VocabSize()); err != nil {
				return nil, err
			}
		case p.TruncatePrompt == nil && s.tooManyBytes(len(one.text), s.maxModelLen):
			return nil, s.tooLong(len(one.text) / s.longestToken)
		default:
			ids = s.encode(one.text, or(p.AddSpecial, true))
		}
		if n := or(p.TruncatePrompt, -1); n >= 0 && len(ids) > int(n) {
			ids = ids[len(ids)-int(n):]
		}
		all = append(all, ids)
	}
	for _, ids := range all {
		if len(ids) == 0 {
			return nil, badRequest("", "generate request `%s` has an empty prompt_token_ids", id)
		}
	}
	if all == nil {
		return nil, badRequest("", "text request `%s` must contain at least one prompt token ID", id)
	}
	return all, nil
}

// read reads the prompts, and keeps the text of those that are to be echoed.
func (q *completionRequest) read(s *Server) ([]prompt, *apiError) {
	if s.sim != nil {
		if err := checkPrompt(q.Prompt); err != nil {
			return nil, err
		}
	}
	prompts, ok := readPrompts(q.Prompt)
	switch {
	case !ok && s.sim != nil:
		return nil, badRequest("", "prompt must be a string, an array of strings, an array of token ids, or an array of arrays of token ids")
	case !ok:
		return nil, badType("prompt: data did not match any variant of untagged enum Prompt")
	}
	for _, one := range prompts {
		if q.Echo {
			text := one.text
			if one.tokenized && !q.ReturnTokenIDs {
				text = s.opt.Tokenizer.Decode(one.ids)
			}
			q.echo = append(q.echo, text)
		}
		if s.sim != nil && s.sim.Echo {
			text := one.text
			if one.tokenized {
				list := appendIDs(nil, one.ids)
				text = string(list[1 : len(list)-1])
			}
			q.plain = append(q.plain, text)
		}
	}
	return prompts, nil
}

// plainText is a text of valid JSON without escapes.
func plainText(raw []byte) (text string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' || bytes.IndexByte(raw, '\\') >= 0 || !utf8.Valid(raw) {
		return "", false
	}
	return string(raw[1 : len(raw)-1]), true
}

// parseIDs reads a list of ids. It is most of what is done for a long prompt, so it is not left to package json.
func parseIDs(raw []byte) (ids []uint32, ok bool) {
	if len(raw) < 2 || raw[0] != '[' {
		return nil, false
	}
	ids = make([]uint32, 0, min(len(raw)/2, 1<<12))
	space := func(at int) int {
		for at < len(raw) && (raw[at] == ' ' || raw[at] == '\n' || raw[at] == '\t' || raw[at] == '\r') {
			at++
		}
		return at
	}
	at := space(1)
	if at < len(raw) && raw[at] == ']' {
		return ids, true
	}
	for {
		at = space(at)
		start, n := at, uint64(0)
		for at < len(raw) && raw[at] >= '0' && raw[at] <= '9' && at-start < 11 {
			n = n*10 + uint64(raw[at]-'0')
			at++
		}
		if at == start || n > math.MaxUint32 {
			return nil, false
		}
		ids = append(ids, uint32(n))
		if at = space(at); at >= len(raw) {
			return nil, false
		}
		switch raw[at] {
		case ',':
			at++
		case ']':
			return ids, true
		default:
			return nil, false
		}
	}
}

func (s *Server) writeCompletion(g *generation, q *completionRequest, a *answer) *apiError {
	b := append(a.envelope(a.b), `,"choices":[`...)
	for i, one := range g.all {
		b = comma(b, i)
		text, echo := "", ""
		if q.Echo {
			echo = q.echo[i/q.answers]
		}
		if !q.promptOnly {
			text = one.decoder.whole()
		}
		b = appendInt(append(b, `{"index":`...), i)
		b = appendString(append(b, `,"text":`...), echo+text)
		b = append(b, `,"logprobs":`...)
		if q.Logprobs != nil {
			l := textLogprobs{s: s, q: &q.params}
			if q.Echo {
				l.prompt(one)
			}
			if !q.promptOnly {
				l.offset = characters(echo)
				for _, table := range one.table {
					l.add(table)
				}
			}
			b = l.append(b)
		} else {
			b = append(b, "null"...)
		}
		b = appendString(append(b, `,"finish_reason":`...), one.finishReason())
		b = one.stop.append(append(b, `,"stop_reason":`...))
		b = s.appendPromptLogprobs(append(b, `,"prompt_logprobs":`...), &q.params, one)
		b = append(b, `,"token_ids":`...)
		if q.ReturnTokenIDs {
			b = appendIDs(b, one.tokens)
			b = appendIDs(append(b, `,"prompt_token_ids":`...), one.prompt)
		} else {
			b = append(b, `null,"prompt_token_ids":null`...)
		}
		b = append(b, '}')
	}
	u := g.usage()
	b = u.append(append(b, `],"usage":`...))
	b = appendTransfer(append(b, `,"metrics":null,"system_fingerprint":null,"kv_transfer_params":`...), g.all[0].transfer)
	a.b = append(b, `,"ec_transfer_params":null}`...)
	return succeed(a.w, a.b)
}

func (s *Server) streamCompletion(r *http.Request, g *generation, q *completionRequest, a *answer) {
	a.stream()
	offsets := make([]int, len(g.all)) // of the text, in characters
	begun := make([]bool, len(g.all))
	soFar := func(one *sequence) *usage {
		if !q.continuous {
			return nil
		}
		u := one.soFar()
		return &u
	}
	begin := func(one *sequence) {
		if begun[one.index] = true; !q.Echo && !q.ReturnTokenIDs {
			return
		}
		echo := ""
		if q.Echo {
			echo = q.echo[one.index/q.answers]
			offsets[one.index] = characters(echo)
		}
		a.event(one.index)
		a.b = appendString(append(a.b, `,"text":`...), echo)
		if q.promptOnly && q.Logprobs != nil {
			l := textLogprobs{s: s, q: &q.params}
			l.prompt(one)
			a.b = l.append(append(a.b, `,"logprobs":`...))
		}
		if q.ReturnTokenIDs {
			a.b = appendIDs(append(a.b, `,"token_ids":[],"prompt_token_ids":`...), one.prompt)
		}
		if q.continuous {
			a.close(&usage{prompt: len(one.prompt), cached: -1})
		} else {
			a.close(nil)
		}
	}
	g.streamed(r.Context(), a, func(one *sequence, p *piece, text string) {
		if !begun[one.index] {
			begin(one)
		}
		if !q.promptOnly {
			a.event(one.index)
			a.b = appendString(append(a.b, `,"text":`...), text)
			if q.Logprobs != nil && p.logprobs != nil {
				l := textLogprobs{s: s, q: &q.params, offset: offsets[one.index]}
				l.add(p.logprobs)
				a.b = l.append(append(a.b, `,"logprobs":`...))
			}
			if q.ReturnTokenIDs {
				a.b = appendIDs(append(a.b, `,"token_ids":`...), p.ids)
			}
			a.close(soFar(one))
			if q.Logprobs != nil {
				offsets[one.index] += characters(text)
			}
		}
		if one.ended && one.finish != protocol.FinishError {
			a.event(one.index)
			a.b = appendString(append(a.b, `,"text":"","finish_reason":`...), one.finishReason())
			if one.stop.kind != 0 {
				a.b = one.stop.append(append(a.b, `,"stop_reason":`...))
			}
			if q.ReturnTokenIDs {
				a.b = append(a.b, `,"token_ids":[]`...)
			}
			a.close(soFar(one))
		}
	}, func() {
		if q.usage {
			a.lastUsage(g.usage())
		}
	})
}

// textLogprobs are the log-probabilities of a completion.
type textLogprobs struct {
	s      *Server
	q      *params
	offset int // of the next token in the text, in characters

	tokens, values, top, offsets []byte
}

// name is how a token is named.
func (s *Server) name(q *params, id uint32) string {
	if q.TokensAsIDs {
		return tokenName(id)
	}
	return s.shown(id, q.SkipSpecial != nil && !*q.SkipSpecial)
}

// prompt adds the tokens of the prompt. The first one has no log-probability.
func (l *textLogprobs) prompt(q *sequence) {
	l.token(q.prompt[0], nil)
	if q.prompts != nil {
		l.add(q.prompts)
	}
}

// add adds the rows of a table.
func (l *textLogprobs) add(t *protocol.Logprobs) {
	for row := range t.Rows() {
		l.token(t.TokenIDs[row*t.Width], &protocol.Logprobs{
			Width: t.Width, TokenIDs: t.TokenIDs[row*t.Width : (row+1)*t.Width], Values: t.Values[row*t.Width : (row+1)*t.Width],
		})
	}
}

func (l *textLogprobs) token(id uint32, row *protocol.Logprobs) {
	name := l.s.name(l.q, id)
	l.tokens = appendString(comma(l.tokens, len(l.tokens)), name)
	l.offsets = appendInt(comma(l.offsets, len(l.offsets)), l.offset)
	l.offset += characters(name)
	l.values, l.top = comma(l.values, len(l.values)), comma(l.top, len(l.top))
	if row == nil {
		l.values, l.top = append(l.values, "null"...), append(l.top, "null"...)
		return
	}
	l.values = appendLogprob(l.values, row.Values[0])
	l.top = append(l.top, '{')
	for i, at := range candidates(row, 0, row.Width) {
		l.top = comma(l.top, i)
		l.top = appendLogprob(append(appendString(l.top, l.s.name(l.q, row.TokenIDs[at])), ':'), row.Values[at])
	}
	l.top = append(l.top, '}')
}

// candidates are the most likely tokens of a row of a table, at most so many: the token itself, and those that the engine lists behind it,
// among which it is not a second time. i is the place in the row, and at that in the table.
func candidates(t *protocol.Logprobs, row, most int) iter.Seq2[int, int] {
	return func(yield func(i, at int) bool) {
		first := row * t.Width
		for i := 0; i < t.Width && most > 0; i++ {
			if i > 0 && t.TokenIDs[first+i] == t.TokenIDs[first] {
				continue
			}
			if !yield(i, first+i) {
				return
			}
			most--
		}
	}
}

func (l *textLogprobs) append(b []byte) []byte {
	b = append(append(b, `{"tokens":[`...), l.tokens...)
	b = append(append(b, `],"token_logprobs":[`...), l.values...)
	b = append(append(b, `],"top_logprobs":[`...), l.top...)
	b = append(append(b, `],"text_offset":[`...), l.offsets...)
	return append(b, "]}"...)
}

// appendPromptLogprobs writes prompt_logprobs: for each token of the prompt but the first one, what was likely there.
func (s *Server) appendPromptLogprobs(b []byte, p *params, q *sequence) []byte {
	if p.promptLogprobs == protocol.NoLogprobs {
		return append(b, "null"...)
	}
	b = append(b, "[null"...)
	if t := q.prompts; t != nil {
		for row := range t.Rows() {
			b = append(b, ",{"...)
			rank := t.Ranks[row]
			for i, at := range candidates(t, row, t.Width) {
				id := t.TokenIDs[at]
				if i > 0 {
					b = append(b, ',')
					rank = int64(i)
				}
				b = append(strconv.AppendUint(append(b, '"'), uint64(id), 10), `":{"logprob":`...)
				b = appendLogprob(b, t.Values[at])
				b = strconv.AppendInt(append(b, `,"rank":`...), rank, 10)
				b = appendString(append(b, `,"decoded_token":`...), s.name(p, id))
				b = append(b, '}')
			}
			b = append(b, '}')
		}
	}
	return append(b, ']')
}
