package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/http"
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
	Embeds    json.RawMessage `json:"prompt_embeds"`
	BadWords  json.RawMessage `json:"bad_words"` // vllm-rs does not read it here

	promptOnly bool     // max_tokens is 0: nothing is generated
	echo       []string // what goes before the answers to each prompt
}

// maxAnswers is how many answers one HTTP request may have.
const maxAnswers = 1024

func (s *Server) serveCompletions(w http.ResponseWriter, r *http.Request) *apiError {
	var q completionRequest
	if err := readJSON(r, &q); err != nil {
		return err
	}
	s.readHeaders(r, &q.params)
	id := "cmpl-" + requestID(r, q.RequestID)
	prompts, err := s.prepareCompletion(r.Context(), &q, id)
	if err != nil {
		return err
	}
	g, err := s.generate(r.Context(), &q.params, id, prompts, s.models.adapter.find(q.Model))
	if err != nil {
		return err
	}
	defer g.close()
	head := s.newEnvelope(id, "text_completion", q.Model)
	if q.Stream {
		a := newAnswer(w)
		defer a.release()
		s.streamCompletion(r, g, &q, a, head)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	return s.writeCompletion(w, g, &q, head)
}

// answeredBy is the name of the model in an answer: an adapter has its own.
func (s *Server) answeredBy(model string) string {
	if l := s.models.adapter.find(model); l != nil {
		return l.Name
	}
	return s.models.base[0]
}

// prepareCompletion checks a request, and returns its prompts.
func (s *Server) prepareCompletion(ctx context.Context, q *completionRequest, id string) ([][]uint32, *apiError) {
	if len(q.Prompt) == 0 {
		return nil, missing("prompt")
	}
	p := &q.params
	var err *apiError
	if p.logprobs, err = candidateCount("logprobs", q.Logprobs); err != nil {
		return nil, err
	}
	if q.MaxTokens == nil && s.sim == nil {
		q.MaxTokens = new(uint32(16))
	}
	p.max = intOf(q.MaxTokens)
	if err := s.sim.check(p); err != nil {
		return nil, err
	}
	if err := p.check(s); err != nil {
		return nil, err
	}
	switch {
	case s.sim != nil:
	case *p.max == 0 && !p.Echo:
		return nil, badRequest("max_tokens", "max_tokens=0 is only supported when echo=true.")
	case !absent(q.Embeds) && protocol.RustChecksAsPython.Holds(s.opt.Group.Line()):
		return nil, badRequest("prompt_embeds", "prompt_embeds is not supported.")
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
	if err := p.constrain(func(format string, args ...any) *apiError { return badRequest("response_format", format, args...) }); err != nil {
		return nil, err
	}
	prompts, err := q.read(s)
	if err != nil {
		return nil, err
	}
	s.planCompletion(q, prompts)
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
			return nil, errLeft
		case one.tokenized:
			if err := inVocabulary("prompt", ids, s.vocabulary); err != nil {
				return nil, err
			}
		default:
			limit := s.maxModelLen
			if p.TruncatePrompt != nil {
				limit = math.MaxInt
			}
			var err *apiError
			if ids, err = s.encode(ctx, one.text, or(p.AddSpecial, true), limit); err != nil {
				return nil, err
			}
		}
		all = append(all, p.truncated(ids))
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
	if err := s.sim.checkPrompt(q.Prompt); err != nil {
		return nil, err
	}
	prompts, ok := readPrompts(q.Prompt)
	if !ok {
		return nil, badBody("prompt must be a string, an array of strings, an array of token ids, or an array of arrays of token ids")
	}
	for _, one := range prompts {
		if q.Echo {
			text := one.text
			if one.tokenized && !q.ReturnTokenIDs {
				text = s.opt.Tokenizer.Decode(one.ids)
			}
			q.echo = append(q.echo, text)
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

// completion is the answer to a completion, and an event of its stream.
type completion struct {
	envelope
	Choices []completionChoice `json:"choices"`
	Usage   *usage             `json:"usage"`
	Metrics none               `json:"metrics"`
	System  none               `json:"system_fingerprint"`
	KV      any                `json:"kv_transfer_params"`
	EC      none               `json:"ec_transfer_params"`
}

type completionChoice struct {
	Index        int           `json:"index"`
	Text         string        `json:"text"`
	Logprobs     *textLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
	StopReason   any           `json:"stop_reason"`
	OfPrompt     []object      `json:"prompt_logprobs"`
	TokenIDs     []uint32      `json:"token_ids"`
	PromptIDs    []uint32      `json:"prompt_token_ids"`
}

func (s *Server) writeCompletion(w http.ResponseWriter, g *generation, q *completionRequest, head envelope) *apiError {
	answer := completion{envelope: head, Usage: g.usage(), KV: unpacked(g.all[0].transfer)}
	for i, one := range g.all {
		choice := completionChoice{
			Index: i, FinishReason: one.finishReason(), StopReason: one.stop.value(), OfPrompt: s.promptLogprobs(&q.params, one),
			TokenIDs: idsIf(q.ReturnTokenIDs, one.tokens), PromptIDs: idsIf(q.ReturnTokenIDs, one.prompt),
		}
		if q.Echo {
			choice.Text = q.echo[i/q.answers]
		}
		if q.Logprobs != nil {
			choice.Logprobs = newTextLogprobs(0)
			if q.Echo {
				choice.Logprobs.prompt(s, &q.params, one)
			}
			choice.Logprobs.offset = characters(choice.Text)
			for _, table := range one.table {
				if !q.promptOnly {
					choice.Logprobs.add(s, &q.params, table)
				}
			}
		}
		if !q.promptOnly {
			choice.Text += one.decoder.whole()
		}
		answer.Choices = append(answer.Choices, choice)
	}
	return succeed(w, &answer)
}

// completionEvent is a part of a stream.
type completionEvent struct {
	Choices []completionDelta `json:"choices"`
	Usage   *usage            `json:"usage,omitempty"`
}

type completionDelta struct {
	Index        int           `json:"index"`
	Text         string        `json:"text"`
	Logprobs     *textLogprobs `json:"logprobs,omitempty"`
	FinishReason string        `json:"finish_reason,omitempty"`
	StopReason   any           `json:"stop_reason,omitempty"`
	TokenIDs     []uint32      `json:"token_ids,omitzero"`
	PromptIDs    []uint32      `json:"prompt_token_ids,omitzero"`
}

func (s *Server) streamCompletion(r *http.Request, g *generation, q *completionRequest, a *answer, head envelope) {
	a.stream(head)
	offsets := make([]int, len(g.all)) // of the text, in characters
	begun := make([]bool, len(g.all))
	event := completionEvent{Choices: make([]completionDelta, 1)}
	send := func(delta completionDelta, usage *usage) {
		event.Choices[0], event.Usage = delta, usage
		a.chunk(&event)
	}
	begin := func(one *sequence) {
		if begun[one.index] = true; !q.Echo && !q.ReturnTokenIDs {
			return
		}
		delta := completionDelta{Index: one.index, TokenIDs: idsIf(q.ReturnTokenIDs, nil), PromptIDs: idsIf(q.ReturnTokenIDs, one.prompt)}
		if q.Echo {
			delta.Text = q.echo[one.index/q.answers]
			offsets[one.index] = characters(delta.Text)
		}
		if q.promptOnly && q.Logprobs != nil {
			delta.Logprobs = newTextLogprobs(0)
			delta.Logprobs.prompt(s, &q.params, one)
		}
		send(delta, one.atBegin())
	}
	g.streamed(r.Context(), a, func(one *sequence, p *piece, text string) {
		if !begun[one.index] {
			begin(one)
		}
		if !q.promptOnly {
			delta := completionDelta{Index: one.index, Text: text, TokenIDs: idsIf(q.ReturnTokenIDs, p.ids)}
			if q.Logprobs != nil && p.logprobs != nil {
				delta.Logprobs = newTextLogprobs(offsets[one.index])
				delta.Logprobs.add(s, &q.params, p.logprobs)
			}
			send(delta, one.soFar())
			if q.Logprobs != nil {
				offsets[one.index] += characters(text)
			}
		}
		if one.ended && one.finish != protocol.FinishError {
			send(completionDelta{
				Index: one.index, FinishReason: one.finishReason(), StopReason: one.stop.value(), TokenIDs: idsIf(q.ReturnTokenIDs, nil),
			}, one.soFar())
		}
	}, func() {
		if q.usage {
			a.chunk(&completionEvent{Choices: []completionDelta{}, Usage: g.usage()})
		}
	})
}
