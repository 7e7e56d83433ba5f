package builtin

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// chatRequest is the body of /v1/chat/completions.
type chatRequest struct {
	params
	chat
	MaxTokens           *uint32         `json:"max_tokens"`
	MaxCompletionTokens *uint32         `json:"max_completion_tokens"`
	Logprobs            bool            `json:"logprobs"`
	TopLogprobs         *int32          `json:"top_logprobs"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	Parallel            *bool           `json:"parallel_tool_calls"`
	IncludeReasoning    *bool           `json:"include_reasoning"`
	ProcessorArgs       json.RawMessage `json:"mm_processor_kwargs"`
	Payload             string          `json:"mm_payload"`

	choice  choice
	calls   bool  // calls of tools are looked for
	stage   uint8 // of the reasoning, where the answer begins
	message bool  // the request is one of /v1/messages
	oneCall bool  // the simulator answers with one call until a tool has answered, as it does to /v1/responses
	echo    string
	image   bool // one follows the answer
}

func (s *Server) serveChat(w http.ResponseWriter, r *http.Request) *apiError {
	var q chatRequest
	end, err := readJSON(r, &q)
	if err != nil {
		return err
	}
	q.cacheThreshold, q.image = s.sim.wantsThreshold(r), s.sim.wantsImage(r)
	id := "chatcmpl-" + requestID(r, q.RequestID)
	q.rank = wantedRank(r)
	g, err := s.converse(r.Context(), &q, id, end)
	if err != nil {
		return err
	}
	defer g.close()
	object := "chat.completion"
	if q.Stream {
		object = "chat.completion.chunk"
	}
	a := s.newAnswer(w, id, object, s.answeredBy(q.Model), int(time.Now().Unix()))
	defer a.release()
	if q.Stream {
		s.streamChat(r, g, &q, a)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	if q.image {
		s.sim.makeImage(r.Context())
	}
	return s.writeChat(g, &q, a)
}

// converse checks a request and begins it.
func (s *Server) converse(ctx context.Context, q *chatRequest, id, end string) (*generation, *apiError) {
	ids, err := s.prepareChat(ctx, q, end)
	if err != nil {
		return nil, err
	}
	return s.generate(ctx, &q.params, id, [][]uint32{ids}, s.models.adapter.find(q.Model))
}

// prepareChat checks a request, and returns its prompt.
func (s *Server) prepareChat(ctx context.Context, q *chatRequest, end string) ([]uint32, *apiError) {
	if q.Messages == nil {
		return nil, missingField(end, "messages")
	}
	p := &q.params
	p.max = intOf(cmp.Or(q.MaxCompletionTokens, q.MaxTokens))
	if s.sim != nil {
		if err := s.sim.check(p); err != nil {
			return nil, err
		}
	}
	p.noPayload = q.Payload == "none"
	if !absent(q.ProcessorArgs) && s.sim == nil {
		return nil, badRequest("mm_processor_kwargs", "mm_processor_kwargs is not supported.")
	}
	if p.max != nil && *p.max < 1 {
		return nil, outOfRange("max_completion_tokens", strconv.Itoa(*p.max), `"min": Number(1)`)
	}
	p.logprobs = protocol.NoLogprobs
	if q.Logprobs {
		p.logprobs = count(or(q.TopLogprobs, 0))
	} else if q.TopLogprobs != nil {
		return nil, badRequest("", "__all__: top_logprobs is only allowed when logprobs is enabled")
	}
	switch {
	case p.StreamOptions != nil && !p.Stream:
		return nil, badRequest("", "__all__: stream_options can only be used when stream is true")
	case p.Temperature != nil && (*p.Temperature < 0 || *p.Temperature > 2):
		return nil, outOfRange("temperature", rustFloat(*p.Temperature), `"min": Number(0.0), "max": Number(2.0)`)
	case len(q.Messages) == 0:
		return nil, badRequest("", `messages: Validation error: messages cannot be empty [{"value": Array []}]`)
	}
	if err := p.check(s); err != nil {
		return nil, err
	}
	if q.Tools != nil && len(q.Tools) == 0 {
		return nil, badRequest("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.")
	}
	for i := range q.Tools {
		if q.Tools[i].Type != "function" {
			return nil, badRequest("tools", "Only function tools are supported.")
		}
	}
	var err *apiError
	if q.choice, err = parseChoice(q.ToolChoice, q.Tools); err != nil {
		return nil, err
	}
	if err := p.constrain(); err != nil {
		return nil, err
	}
	if q.calls = len(q.Tools) > 0 && !q.choice.none; q.calls && p.constraint == nil && s.sim == nil {
		p.constrainTools(q.choice, q.Tools, or(q.Parallel, true))
	}
	if s.sim != nil {
		if err := s.planChat(q); err != nil {
			return nil, err
		}
	}
	if p.Echo {
		last := q.Messages[max(len(q.Messages)-1, 0):]
		if len(last) == 1 && last[0].Role == "assistant" {
			if q.echo, err = contentText(last[0].Content, len(q.Messages)-1); err != nil {
				return nil, err
			}
		}
		if !p.Stream && p.PromptLogprobs == nil {
			p.promptLogprobs = max(p.logprobs, 0)
		}
	}
	text, err := s.render(&q.chat)
	if err != nil {
		return nil, err
	}
	if s.tooManyBytes(len(text), s.maxModelLen) {
		return nil, s.tooLong(len(text) / s.longestToken)
	}
	if ctx.Err() != nil {
		return nil, nobody
	}
	if s.reasoning != nil {
		q.stage = s.reasoning.stage(text)
		p.keepTokens = true // they are counted at the end
	}
	ids, items, err := s.ids(&q.chat, text, isSet(p.AddSpecial))
	p.media = items
	return ids, err
}

// outOfRange is the error for a number of a chat.
func outOfRange(name, value, bounds string) *apiError {
	return badRequest("", "%s: Validation error: range [{\"value\": Number(%s), %s}]", name, value, bounds)
}

func rustFloat(v float64) string {
	text := strconv.FormatFloat(v, 'f', -1, 32)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

func callID() string { return "call_" + randomHex()[:16] }

// chatFinish is the finish_reason of an answer with calls or without.
func (q *chatRequest) chatFinish(one *sequence, calls bool) string {
	if one.finish == protocol.FinishStop && calls && (q.choice.name == "" || one.plan != nil) {
		return "tool_calls"
	}
	return one.finishReason()
}

func (s *Server) writeChat(g *generation, q *chatRequest, a *answer) *apiError {
	b := append(a.envelope(a.b), `,"choices":[`...)
	for i, one := range g.all {
		b = comma(b, i)
		parser := s.parser(q)
		reasoning, text := parser.whole(one.decoder.whole())
		b = appendInt(append(b, `{"index":`...), i)
		b = append(b, `,"message":{"role":"assistant","content":`...)
		if text == "" && q.echo == "" {
			b = append(b, "null"...)
		} else if q.image {
			b = appendText(b, q.echo+text)
			b = append(append(append(b[:len(b)-1], ','), onePixel...), ']')
		} else {
			b = appendString(b, q.echo+text)
		}
		b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null`...)
		if len(parser.tools.calls) > 0 {
			b = append(b, `,"tool_calls":[`...)
			for i, call := range parser.tools.calls {
				b = comma(b, i)
				b = appendString(append(b, `{"id":`...), s.sim.callID(chatCallPrefix, callID()))
				b = appendString(append(b, `,"type":"function","function":{"name":`...), call.name)
				b = appendString(append(b, `,"arguments":`...), string(call.arguments))
				b = append(b, "}}"...)
			}
			b = append(b, ']')
		}
		if !or(q.IncludeReasoning, true) {
			reasoning = ""
		}
		b = appendNullable(append(b, `,"reasoning":`...), reasoning)
		b = append(b, `},"logprobs":`...)
		if q.Logprobs {
			b = append(b, `{"content":[`...)
			for _, table := range one.table {
				b = s.appendChatLogprobs(b, q, table)
			}
			b = append(b, "]}"...)
		} else {
			b = append(b, "null"...)
		}
		b = appendString(append(b, `,"finish_reason":`...), q.chatFinish(one, len(parser.tools.calls) > 0))
		b = one.stop.append(append(b, `,"stop_reason":`...))
		b = appendIf(append(b, `,"token_ids":`...), q.ReturnTokenIDs, appendIDs, one.tokens)
		b = append(b, `,"routed_experts":null,"weight_versions":null}`...)
	}
	u := g.usage()
	u.reasoning = s.reasoningTokens(q, g.all)
	b = u.append(append(b, `],"service_tier":null,"usage":`...))
	b = s.appendPromptLogprobs(append(b, `,"metrics":null,"system_fingerprint":null,"prompt_logprobs":`...), &q.params, g.all[0])
	b = appendIf(append(b, `,"prompt_token_ids":`...), q.ReturnTokenIDs, appendIDs, g.all[0].prompt)
	b = appendTransfer(append(b, `,"prompt_text":null,"kv_transfer_params":`...), g.all[0].transfer)
	b = appendTransfer(append(b, `,"ec_transfer_params":`...), s.sim.encoded(q.images()))
	a.b = append(b, '}')
	return succeed(a.w, a.b)
}

// appendChatLogprobs writes an object for each row of a table.
func (s *Server) appendChatLogprobs(b []byte, q *chatRequest, t *protocol.Logprobs) []byte {
	most := int(or(q.TopLogprobs, 0))
	if most < 0 {
		most = t.Width
	}
	return s.appendTokenLogprobs(b, &q.params, t, most, true)
}

// appendTokenLogprobs writes an object for each row of a table, with so many candidates, and with the bytes of tokens or without.
func (s *Server) appendTokenLogprobs(b []byte, p *params, t *protocol.Logprobs, most int, withBytes bool) []byte {
	token := func(at int) {
		name := s.name(p, t.TokenIDs[at])
		b = appendString(append(b, `{"token":`...), name)
		b = appendLogprob(append(b, `,"logprob":`...), t.Values[at])
		if !withBytes {
			return
		}
		b = append(b, `,"bytes":[`...)
		for i := range len(name) {
			b = comma(b, i)
			b = appendInt(b, int(name[i]))
		}
		b = append(b, ']')
	}
	for row := range t.Rows() {
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
		token(row * t.Width)
		b = append(b, `,"top_logprobs":[`...)
		for i, at := range candidates(t, row, most) {
			b = comma(b, i)
			token(at)
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	return b
}

// chatStream is the state of one answer in a stream.
type chatStream struct {
	begun  bool
	parser answerParser
	ids    []string // of calls
}

func (s *Server) streamChat(r *http.Request, g *generation, q *chatRequest, a *answer) {
	a.stream()
	states := make([]chatStream, len(g.all))
	end := func(one *sequence) {
		if !q.continuous {
			a.close(nil)
			return
		}
		u := one.soFar()
		a.close(&u)
	}
	delta := func(one *sequence, p *piece, write func()) {
		a.event(one.index)
		a.b = append(a.b, `,"delta":{`...)
		write()
		a.b = append(a.b, '}')
		if q.Logprobs && p.logprobs != nil {
			a.b = append(a.b, `,"logprobs":{"content":[`...)
			a.b = append(s.appendChatLogprobs(a.b, q, p.logprobs), "]}"...)
			p.logprobs = nil
		}
		if q.ReturnTokenIDs && len(p.ids) > 0 {
			a.b = appendIDs(append(a.b, `,"token_ids":`...), p.ids)
			p.ids = p.ids[:0]
		}
		end(one)
	}
	content := func(one *sequence, p *piece, text string) {
		delta(one, p, func() {
			if a.b = append(a.b, `"content":`...); q.image {
				a.b = appendText(a.b, text)
			} else {
				a.b = appendString(a.b, text)
			}
		})
	}
	begin := func(one *sequence) {
		states[one.index] = chatStream{begun: true, parser: s.parser(q)}
		a.event(one.index)
		a.b = append(a.b, `,"delta":{"role":"assistant"}}]`...)
		if q.ReturnTokenIDs {
			a.b = appendIDs(append(a.b, `,"prompt_token_ids":`...), one.prompt)
		}
		if q.continuous {
			a.end(&usage{prompt: len(one.prompt), cached: -1})
		} else {
			a.end(nil)
		}
		if q.echo != "" {
			content(one, &piece{}, q.echo)
		}
	}
	g.streamed(r.Context(), a, func(one *sequence, p *piece, text string) {
		state := &states[one.index]
		if !state.begun {
			begin(one)
		}
		if q.calls || s.reasoning != nil {
			state.parser.add(text, one.ended, func(e callEvent) {
				if e.reasoning == "" || or(q.IncludeReasoning, true) {
					s.streamCall(one, p, e, delta, a, state)
				}
			})
		} else if text != "" {
			content(one, p, text)
		}
		if q.Logprobs && p.logprobs != nil || q.ReturnTokenIDs && len(p.ids) > 0 {
			delta(one, p, func() {}) // tokens that show nothing yet
		}
		if one.ended && one.finish != protocol.FinishError {
			if q.image {
				s.sim.makeImage(r.Context())
				a.event(one.index)
				a.b = append(append(append(a.b, `,"delta":{"content":[`...), onePixel...), `]}}],"modality":"image"`...)
				a.end(nil)
			}
			a.event(one.index)
			a.b = append(a.b, `,"delta":{`...)
			if s.sim != nil && len(state.ids) > 0 {
				a.b = s.appendCall(append(a.b, `"tool_calls":[{"index":`...), callEvent{index: len(state.ids) - 1}, state)
				a.b = append(a.b, `,"function":{"arguments":""}}]`...)
			}
			a.b = appendString(append(a.b, `},"finish_reason":`...), q.chatFinish(one, len(state.parser.tools.calls) > 0))
			if one.stop.kind != 0 {
				a.b = one.stop.append(append(a.b, `,"stop_reason":`...))
			}
			end(one)
		}
	}, func() {
		if q.usage {
			u := g.usage()
			u.reasoning = s.reasoningTokens(q, g.all)
			a.lastUsage(u)
		}
	})
}

// streamCall writes a part of an answer with reasoning or calls.
func (s *Server) streamCall(one *sequence, p *piece, e callEvent, delta func(*sequence, *piece, func()), a *answer, state *chatStream) {
	delta(one, p, func() {
		switch {
		case e.reasoning != "":
			a.b = appendString(append(a.b, `"reasoning":`...), e.reasoning)
			return
		case e.text != "":
			a.b = appendString(append(a.b, `"content":`...), e.text)
			return
		}
		a.b = s.appendCall(append(a.b, `"tool_calls":[{"index":`...), e, state)
		if e.name != "" {
			a.b = appendString(append(a.b, `,"function":{"name":`...), e.name)
		} else {
			a.b = appendString(append(a.b, `,"function":{"arguments":`...), e.arguments)
		}
		a.b = append(a.b, "}}]"...)
	})
}

// appendCall writes which call an event belongs to. The simulator repeats its id in each event.
func (s *Server) appendCall(b []byte, e callEvent, state *chatStream) []byte {
	b = appendInt(b, e.index)
	if e.name != "" {
		state.ids = append(state.ids, s.sim.callID(chatCallPrefix, callID()))
	}
	if e.name != "" || s.sim != nil {
		b = appendString(append(b, `,"id":`...), state.ids[e.index])
		b = append(b, `,"type":"function"`...)
	}
	return b
}
