package builtin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

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
	chosen  Chosen
}

func (s *Server) serveChat(w http.ResponseWriter, r *http.Request) *apiError {
	var q chatRequest
	if err := readJSON(r, &q); err != nil {
		return err
	}
	s.readHeaders(r, &q.params)
	q.image, q.chosen = s.sim.wantsImage(r), chosenOf(r.Context())
	id := "chatcmpl-" + requestID(r, q.RequestID)
	g, err := s.converse(r.Context(), &q, id)
	if err != nil {
		return err
	}
	defer g.close()
	if q.Stream {
		a := newAnswer(w)
		defer a.release()
		s.streamChat(r, g, &q, a, s.newEnvelope(id, "chat.completion.chunk", q.Model))
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	if q.image {
		s.sim.makeImage(r.Context())
	}
	return s.writeChat(w, g, &q, s.newEnvelope(id, "chat.completion", q.Model))
}

// converse checks a request and begins it.
func (s *Server) converse(ctx context.Context, q *chatRequest, id string) (*generation, *apiError) {
	ids, err := s.prepareChat(ctx, q)
	if err != nil {
		return nil, err
	}
	return s.generate(ctx, &q.params, id, [][]uint32{ids}, s.models.adapter.find(q.Model))
}

// prepareChat checks a request, and returns its prompt.
func (s *Server) prepareChat(ctx context.Context, q *chatRequest) ([]uint32, *apiError) {
	if q.Messages == nil {
		return nil, missing("messages")
	}
	p := &q.params
	p.max = intOf(cmp.Or(q.MaxCompletionTokens, q.MaxTokens))
	if err := s.sim.check(p); err != nil {
		return nil, err
	}
	p.noPayload = q.Payload == "none"
	if !absent(q.ProcessorArgs) && s.sim == nil {
		return nil, badRequest("mm_processor_kwargs", "mm_processor_kwargs is not supported.")
	}
	if p.max != nil && *p.max < 1 {
		return nil, badRequest("", "max_completion_tokens must be at least 1, got %d", *p.max)
	}
	if q.Logprobs && q.TopLogprobs == nil {
		q.TopLogprobs = new(int32)
	} else if !q.Logprobs && (or(q.TopLogprobs, 0) != 0 || q.TopLogprobs != nil && !protocol.RustChecksAsPython.Holds(s.opt.Group.Line())) {
		return nil, badRequest("", "top_logprobs is only allowed when logprobs is enabled")
	}
	var err *apiError
	if p.logprobs, err = candidateCount("top_logprobs", q.TopLogprobs); err != nil {
		return nil, err
	}
	if !q.Logprobs {
		p.logprobs = protocol.NoLogprobs
	}
	p.chats = true
	switch {
	case p.StreamOptions != nil && !p.Stream:
		return nil, badRequest("", "stream_options can only be used when stream is true")
	case len(q.Messages) == 0:
		return nil, badRequest("", "messages cannot be empty")
	case s.sim == nil && p.N != nil && *p.N == 0:
		return nil, badRequest("", "n must be at least 1")
	case p.RepetitionPenalty != nil && *p.RepetitionPenalty > 2:
		return nil, badRequest("", "repetition_penalty must be in (0, 2], got %v", *p.RepetitionPenalty)
	}
	if err := p.check(s); err != nil {
		return nil, err
	}
	line := s.opt.Group.Line()
	if q.Tools != nil && len(q.Tools) == 0 && protocol.RustChecksAsPython.Holds(line) {
		return nil, badRequest("tools", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.")
	}
	for i, t := range q.Tools {
		switch {
		case t.Type != "function":
			return nil, badRequest("tools", "Only function tools are supported.")
		case s.sim != nil:
		case absent(t.Function.Parameters) && !protocol.RustTruncates.Holds(line):
			return nil, missing(fmt.Sprintf("tools[%d].function.parameters", i))
		case t.Function.Name == "":
			return nil, missing(fmt.Sprintf("tools[%d].function.name", i))
		case protocol.RustBoundsStops.Holds(line) && slices.ContainsFunc(q.Tools[:i], func(other tool) bool { return other.Function.Name == t.Function.Name }):
			return nil, badRequest("", "two tools have the name %s", t.Function.Name)
		}
	}
	if q.choice, err = parseChoice(q.ToolChoice, q.Tools); err != nil {
		return nil, err
	}
	if err := p.constrain(badBody); err != nil {
		return nil, err
	}
	if q.calls = len(q.Tools) > 0 && !q.choice.none; q.calls && s.sim == nil {
		p.constrainTools(line, s.opt.Flags.ToolStrict, q.choice, q.Tools, or(q.Parallel, true))
	}
	if err := s.planChat(q); err != nil {
		return nil, err
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
	text, err := s.render(ctx, &q.chat)
	if err != nil {
		return nil, err
	}
	p.templateArgs = q.args
	if s.reasoning != nil {
		q.stage = s.reasoning.stage(text)
		p.keepTokens = true // they are counted at the end
	}
	ids, items, err := s.ids(ctx, &q.chat, text, isSet(p.AddSpecial))
	if p.media = items; err != nil {
		return nil, err
	}
	if ids = p.truncated(ids); len(ids) == 0 {
		return nil, badRequest("", "the prompt has no tokens")
	}
	return ids, nil
}

func callID() string { return "call_" + randomHex()[:16] }

// chatFinish is the finish_reason of an answer with calls or without.
func (q *chatRequest) chatFinish(one *sequence, calls bool) string {
	if one.finish == protocol.FinishStop && calls && (q.choice.name == "" || one.plan != nil) {
		return "tool_calls"
	}
	return one.finishReason()
}

// chatCompletion is the answer to a chat.
type chatCompletion struct {
	envelope
	Choices   []chatChoice `json:"choices"`
	Tier      none         `json:"service_tier"`
	Usage     *usage       `json:"usage"`
	Metrics   none         `json:"metrics"`
	System    none         `json:"system_fingerprint"`
	OfPrompt  []object     `json:"prompt_logprobs"`
	PromptIDs []uint32     `json:"prompt_token_ids"`
	Prompt    none         `json:"prompt_text"`
	KV        any          `json:"kv_transfer_params"`
	EC        any          `json:"ec_transfer_params"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      chatMessage   `json:"message"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
	StopReason   any           `json:"stop_reason"`
	TokenIDs     []uint32      `json:"token_ids"`
	Experts      none          `json:"routed_experts"`
	Versions     none          `json:"weight_versions"`
}

type chatMessage struct {
	Role        string         `json:"role"`
	Content     any            `json:"content"`
	Refusal     *string        `json:"refusal"`
	Annotations none           `json:"annotations"`
	Audio       none           `json:"audio"`
	Call        none           `json:"function_call"`
	Calls       []chatToolCall `json:"tool_calls,omitempty"`
	Reasoning   *string        `json:"reasoning"`
}

// chatToolCall is a call, or a part of one in an event. Index is nil in an answer in one piece.
type chatToolCall struct {
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string  `json:"name,omitempty"`
	Arguments *string `json:"arguments,omitempty"`
}

func (s *Server) writeChat(w http.ResponseWriter, g *generation, q *chatRequest, head envelope) *apiError {
	first := g.all[0]
	answer := chatCompletion{
		envelope: head, Usage: g.usage(), OfPrompt: s.promptLogprobs(&q.params, first), PromptIDs: idsIf(q.ReturnTokenIDs, first.prompt),
		KV: unpacked(first.transfer), EC: s.sim.encoded(q.images),
	}
	answer.Usage.OfAnswer.Reasoning = s.reasoningTokens(q, g.all)
	for i, one := range g.all {
		parser := s.parser(q)
		reasoning, text := parser.whole(one.decoder.whole())
		text = q.echo + text
		choice := chatChoice{
			Index: i, Message: chatMessage{Role: "assistant"}, FinishReason: q.chatFinish(one, len(parser.tools.calls) > 0),
			StopReason: one.stop.value(), TokenIDs: idsIf(q.ReturnTokenIDs, one.tokens),
		}
		switch m := &choice.Message; {
		case text == "":
		case q.chosen.Refusal:
			m.Refusal = &text
		case q.image:
			m.Content = []any{textPart(text), onePixel}
		default:
			m.Content = text
		}
		for at, call := range parser.tools.calls {
			arguments := string(call.arguments)
			var index *int
			if s.sim != nil { // it has one also in an answer in one piece
				index = &at
			}
			choice.Message.Calls = append(choice.Message.Calls, chatToolCall{
				Index: index, ID: s.sim.callID(chatCallPrefix, callID()), Type: "function", Function: chatFunction{call.name, &arguments},
			})
		}
		if or(q.IncludeReasoning, true) {
			choice.Message.Reasoning = orNull(reasoning)
		}
		if q.Logprobs {
			choice.Logprobs = s.chatLogprobs(q, one.table...)
		}
		answer.Choices = append(answer.Choices, choice)
	}
	return succeed(w, &answer)
}

// chatEvent is a part of a stream.
type chatEvent struct {
	Choices   []chatDelta `json:"choices"`
	Modality  string      `json:"modality,omitempty"`
	PromptIDs []uint32    `json:"prompt_token_ids,omitzero"`
	Usage     *usage      `json:"usage,omitempty"`
}

type chatDelta struct {
	Index        int           `json:"index"`
	Delta        messageDelta  `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs,omitempty"`
	FinishReason string        `json:"finish_reason,omitempty"`
	StopReason   any           `json:"stop_reason,omitempty"`
	TokenIDs     []uint32      `json:"token_ids,omitempty"`
}

type messageDelta struct {
	Role      string         `json:"role,omitempty"`
	Content   any            `json:"content,omitempty"`
	Refusal   any            `json:"refusal,omitempty"`
	Reasoning string         `json:"reasoning,omitempty"`
	Calls     []chatToolCall `json:"tool_calls,omitempty"`
}

// A chatStream writes a chat as events.
type chatStream struct {
	*answer
	s      *Server
	q      *chatRequest
	event  chatEvent
	states []chatState // by the index of the answer
}

// chatState is the state of one answer.
type chatState struct {
	begun  bool
	parser answerParser
	ids    []string // of calls
}

func (c *chatStream) send(delta chatDelta, usage *usage) {
	c.event.Choices[0], c.event.Usage = delta, usage
	c.chunk(&c.event)
}

func (c *chatStream) content(text string) any {
	if c.q.image {
		return []any{textPart(text)}
	}
	return text
}

// delta sends a part of an answer, with what else the piece has, unless it was sent before.
func (c *chatStream) delta(one *sequence, p *piece, m messageDelta) {
	if c.q.chosen.Refusal {
		m.Refusal, m.Content = m.Content, nil
	}
	d := chatDelta{Index: one.index, Delta: m}
	if c.q.Logprobs && p.logprobs != nil {
		d.Logprobs, p.logprobs = c.s.chatLogprobs(c.q, p.logprobs), nil
	}
	if c.q.ReturnTokenIDs {
		d.TokenIDs = p.ids
	}
	c.send(d, one.soFar())
	if c.q.ReturnTokenIDs {
		p.ids = p.ids[:0]
	}
}

func (c *chatStream) write(ctx context.Context, one *sequence, p *piece, text string) {
	q, state := c.q, &c.states[one.index]
	if !state.begun {
		c.states[one.index] = chatState{begun: true, parser: c.s.parser(c.q)}
		c.event.PromptIDs = idsIf(c.q.ReturnTokenIDs, one.prompt)
		c.send(chatDelta{Index: one.index, Delta: messageDelta{Role: "assistant"}}, one.atBegin())
		c.event.PromptIDs = nil
		if c.q.echo != "" {
			c.delta(one, &piece{}, messageDelta{Content: c.content(c.q.echo)})
		}
	}
	if q.calls || c.s.reasoning != nil {
		state.parser.add(text, one.ended, func(e callEvent) {
			if e.reasoning == "" || or(q.IncludeReasoning, true) {
				c.parsed(one, p, e)
			}
		})
	} else if text != "" {
		c.delta(one, p, messageDelta{Content: c.content(text)})
	}
	if q.Logprobs && p.logprobs != nil || q.ReturnTokenIDs && len(p.ids) > 0 {
		c.delta(one, p, messageDelta{}) // tokens that show nothing yet
	}
	if one.ended && one.finish != protocol.FinishError {
		c.end(ctx, one, state)
	}
}

func (c *chatStream) end(ctx context.Context, one *sequence, state *chatState) {
	if c.q.image {
		c.s.sim.makeImage(ctx)
		c.event.Modality = "image"
		c.send(chatDelta{Index: one.index, Delta: messageDelta{Content: []any{onePixel}}}, nil)
		c.event.Modality = ""
	}
	d := chatDelta{Index: one.index, FinishReason: c.q.chatFinish(one, len(state.parser.tools.calls) > 0), StopReason: one.stop.value()}
	if c.s.sim != nil && len(state.ids) > 0 {
		call := c.call(callEvent{index: len(state.ids) - 1}, state)
		call.Function.Arguments = new("")
		d.Delta.Calls = []chatToolCall{call}
	}
	c.send(d, one.soFar())
}

// parsed sends a part of an answer with reasoning or calls.
func (c *chatStream) parsed(one *sequence, p *piece, e callEvent) {
	switch state := &c.states[one.index]; {
	case e.reasoning != "":
		c.delta(one, p, messageDelta{Reasoning: e.reasoning})
	case e.text != "":
		c.delta(one, p, messageDelta{Content: e.text})
	default:
		call := c.call(e, state)
		if call.Function.Name = e.name; e.name == "" {
			call.Function.Arguments = &e.arguments
		}
		c.delta(one, p, messageDelta{Calls: []chatToolCall{call}})
	}
}

// call is the call that an event belongs to. The simulator repeats its id in each event.
func (c *chatStream) call(e callEvent, state *chatState) chatToolCall {
	call := chatToolCall{Index: &e.index}
	if e.name != "" {
		state.ids = append(state.ids, c.s.sim.callID(chatCallPrefix, callID()))
	}
	if e.name != "" || c.s.sim != nil {
		call.ID, call.Type = state.ids[e.index], "function"
	}
	return call
}

func (s *Server) streamChat(r *http.Request, g *generation, q *chatRequest, a *answer, head envelope) {
	a.stream(head)
	c := &chatStream{answer: a, s: s, q: q, event: chatEvent{Choices: make([]chatDelta, 1)}, states: make([]chatState, len(g.all))}
	g.streamed(r.Context(), a, func(one *sequence, p *piece, text string) { c.write(r.Context(), one, p, text) }, func() {
		if q.usage {
			u := g.usage()
			u.OfAnswer.Reasoning = s.reasoningTokens(q, g.all)
			a.chunk(&chatEvent{Choices: []chatDelta{}, Usage: u})
		}
	})
}
