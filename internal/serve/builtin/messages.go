package builtin

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// messagesRequest is the body of /v1/messages, the API of Anthropic. The Python frontend makes a chat of it, and so
// does this one.
type messagesRequest struct {
	Model         string          `json:"model"`
	MaxTokens     *int32          `json:"max_tokens"`
	Messages      []blockMessage  `json:"messages"`
	System        json.RawMessage `json:"system"`
	StopSequences []string        `json:"stop_sequences"`
	Stream        bool            `json:"stream"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	TopK          *int64          `json:"top_k"`
	ToolChoice    *struct {
		Type              string `json:"type"`
		Name              string `json:"name"`
		DisableConcurrent bool   `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	Tools []struct {
		Name        string          `json:"name"`
		Description *string         `json:"description"`
		Schema      json.RawMessage `json:"input_schema"`
		Strict      *bool           `json:"strict"`
	} `json:"tools"`
	OutputConfig *struct {
		Format *struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
	CacheSalt  salt            `json:"cache_salt"`
	KVTransfer json.RawMessage `json:"kv_transfer_params"`
	XArgs      json.RawMessage `json:"vllm_xargs"`
}

type blockMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type contentBlock struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Input    json.RawMessage `json:"input"`
	ToolUse  string          `json:"tool_use_id"`
	Content  json.RawMessage `json:"content"`
	Thinking string          `json:"thinking"`
	Source   struct {
		Type  string `json:"type"`
		Media string `json:"media_type"`
		Data  string `json:"data"`
		URL   string `json:"url"`
	} `json:"source"`
}

// missing are the members that have to be there, and are not.
func (q *messagesRequest) missing(generates bool) (names []string) {
	if q.Model == "" {
		names = append(names, "model")
	}
	if q.Messages == nil {
		names = append(names, "messages")
	}
	if generates && q.MaxTokens == nil {
		names = append(names, "max_tokens")
	}
	return names
}

// chat makes the request of a chat.
func (q *messagesRequest) chat() (*chatRequest, *apiError) {
	c := &chatRequest{params: params{
		Model: q.Model, Stream: q.Stream, Stop: q.StopSequences, Temperature: q.Temperature, TopP: q.TopP, TopK: q.TopK,
		CacheSalt: q.CacheSalt, KVTransfer: q.KVTransfer, XArgs: q.XArgs, pythonOnly: true,
	}, MaxTokens: unsigned(q.MaxTokens)}
	c.textOnly = badRequest("", "%s is not a multimodal model", q.Model)
	system, err := blockTexts(q.System)
	if err != nil {
		return nil, err
	}
	if len(system) > 0 {
		c.Messages = append(c.Messages, textMessage("system", strings.Join(system, "")))
	}
	for _, m := range q.Messages {
		if err := m.add(c); err != nil {
			return nil, err
		}
	}
	for _, t := range q.Tools {
		c.Tools = append(c.Tools, tool{"function", function{t.Name, t.Description, t.Schema, t.Strict}})
	}
	if t := q.ToolChoice; t != nil {
		parallel := !t.DisableConcurrent
		c.Parallel = &parallel
		switch t.Type {
		case "auto", "none":
			c.ToolChoice = toJSON(t.Type)
		case "any":
			c.ToolChoice = toJSON("required")
		case "tool":
			if t.Name == "" {
				return nil, badRequest("", "tool_choice.name is required when type is 'tool'")
			}
			c.ToolChoice = chosenFunction(t.Name)
		default:
			return nil, badRequest("", "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
		}
	}
	if q.OutputConfig != nil && q.OutputConfig.Format != nil && len(q.OutputConfig.Format.Schema) > 0 {
		c.ResponseFormat = schemaFormat(q.OutputConfig.Format.Schema)
	}
	return c, nil
}

func textMessage(role, text string) message {
	return message{Role: role, Content: toJSON(text)}
}

// blocks are the parts of a content. A text is one part.
func blocks(raw json.RawMessage) (all []contentBlock, err *apiError) {
	if absent(raw) {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []contentBlock{{Type: "text", Text: text}}, nil
	}
	if json.Unmarshal(raw, &all) != nil {
		return nil, badRequest("", "content: Input should be a valid string or list")
	}
	return all, nil
}

// blockTexts are the texts among the parts of a content.
func blockTexts(raw json.RawMessage) (texts []string, err *apiError) {
	all, err := blocks(raw)
	for _, b := range all {
		if b.Type == "text" && b.Text != "" {
			texts = append(texts, b.Text)
		}
	}
	return texts, err
}

// add makes messages of a chat: the results of tools are messages of their own.
func (m *blockMessage) add(c *chatRequest) *apiError {
	if m.Role != "user" && m.Role != "assistant" && m.Role != "system" {
		return badRequest("", "messages.role: Input should be 'user', 'assistant' or 'system'")
	}
	all, err := blocks(m.Content)
	if err != nil {
		return err
	}
	one := message{Role: m.Role}
	var texts []string
	var parts []any // of a message with images
	images := false
	for _, b := range all {
		switch b.Type {
		case "text":
			if b.Text != "" {
				texts = append(texts, b.Text)
				parts = append(parts, textPart(b.Text))
			}
		case "thinking":
			one.Reasoning += b.Thinking
		case "redacted_thinking", "tool_reference":
		case "tool_use":
			var call toolCall
			arguments := "{}"
			if len(b.Input) > 0 {
				arguments = string(b.Input)
			}
			call.ID, call.Type, call.Function.Name, call.Function.Arguments = b.ID, "function", b.Name, &arguments
			one.ToolCalls = append(one.ToolCalls, call)
		case "tool_result":
			results, err := blockTexts(b.Content)
			if err != nil {
				return err
			}
			if m.Role != "user" {
				texts = append(texts, "Tool result: "+strings.Join(results, "\n"))
				continue
			}
			result := textMessage("tool", strings.Join(results, "\n"))
			result.ToolCall = &b.ToolUse
			c.Messages = append(c.Messages, result)
		case "image":
			images = true
			where := b.Source.URL
			if b.Source.Type != "url" {
				where = "data:" + cmp.Or(b.Source.Media, "image/jpeg") + ";base64," + b.Source.Data
			}
			parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]string{"url": where}})
		default:
			return badRequest("messages", "`%s` input is not supported by this model", b.Type)
		}
	}
	switch {
	case images:
		one.Content = toJSON(parts)
	case texts != nil:
		one.Content = toJSON(strings.Join(texts, "\n"))
	}
	if one.Content != nil || one.Reasoning != "" || one.ToolCalls != nil {
		c.Messages = append(c.Messages, one)
	}
	return nil
}

// messageAnswer is the answer, and what the first event of a stream has of it.
type messageAnswer struct {
	ID           string       `json:"id"`
	Type         string       `json:"type"`
	Role         string       `json:"role"`
	Content      []any        `json:"content"`
	Model        string       `json:"model"`
	StopReason   any          `json:"stop_reason,omitempty"`
	StopSequence any          `json:"stop_sequence,omitempty"`
	Usage        messageUsage `json:"usage"`
}

type messageUsage struct {
	Input  int `json:"input_tokens"`
	Output int `json:"output_tokens"`
}

// toolBlock is a call, with its arguments or where it begins.
func (s *Server) toolBlock(name string, input json.RawMessage) object {
	if !json.Valid(input) {
		input = json.RawMessage("{}") // it was cut off, or has not come
	}
	return object{
		{"type", "tool_use"}, {"id", s.sim.callID(messageCallPrefix, "chatcmpl-tool-"+randomHex())}, {"name", name}, {"input", input},
	}
}

func (s *Server) serveMessages(w http.ResponseWriter, r *http.Request) *apiError {
	var q messagesRequest
	if err := readPython(r, &q); err != nil { // in the form of OpenAI, as in vLLM
		return err
	}
	id := "chatcmpl-" + requestID(r, "")
	if s.sim != nil {
		id = "msg_" + strings.TrimPrefix(id, "chatcmpl-")
	}
	if names := q.missing(true); names != nil {
		return missing(names...).ofPython(names[0])
	}
	c, err := q.chat()
	if err != nil {
		return err.inNames()
	}
	if *q.MaxTokens < 1 {
		return badBody("max_tokens must be positive, got %d", *q.MaxTokens).ofPython("max_tokens")
	}
	g, err := s.converse(r.Context(), c, id)
	if err != nil {
		return err.inNames()
	}
	defer g.close()
	head := messageAnswer{ID: id, Type: "message", Role: "assistant", Content: []any{}, Model: s.answeredBy(q.Model)}
	if q.Stream {
		a := newAnswer(w)
		defer a.release()
		s.streamMessage(r, g, c, a, head)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err.inNames()
	}
	one := g.all[0]
	parser := s.parser(c)
	reasoning, text := parser.whole(one.decoder.whole())
	if reasoning != "" {
		head.Content = append(head.Content, object{{"type", "thinking"}, {"thinking", reasoning}, {"signature", randomHex()}})
	}
	if text != "" || reasoning == "" && len(parser.tools.calls) == 0 {
		head.Content = append(head.Content, textPart(text))
	}
	for _, call := range parser.tools.calls {
		head.Content = append(head.Content, s.toolBlock(call.name, call.arguments))
	}
	head.StopReason, head.StopSequence = stopOfMessage(one, &parser.tools)
	head.Usage = messageUsage{len(one.prompt), one.count}
	return succeed(w, &head)
}

// stopOfMessage is how an answer ended, and the stop string if one ended it.
func stopOfMessage(q *sequence, parser *callParser) (reason, sequence any) {
	calls := len(parser.calls)
	switch {
	case q.finish == protocol.FinishLength:
		return "max_tokens", nil
	case q.finish != protocol.FinishStop:
		return nil, nil
	case calls > 0 && json.Valid(parser.calls[calls-1].arguments):
		return "tool_use", nil
	case q.stop.kind == 1:
		return "stop_sequence", q.stop.text
	case calls > 0:
		return "tool_use", nil
	}
	return "end_turn", nil
}

// messageEvent is a part of a stream.
type messageEvent struct {
	Type    string         `json:"type"`
	Message *messageAnswer `json:"message,omitempty"`
	Block   any            `json:"content_block,omitempty"`
	Delta   any            `json:"delta,omitempty"`
	Index   *int           `json:"index,omitempty"`
	Usage   *messageUsage  `json:"usage,omitempty"`
}

// A messageStream writes events with names. Each text, each call and each reasoning is a block.
type messageStream struct {
	*answer
	s     *Server
	block string // type of the open one, "" for none
	index int    // of the block
}

// send writes an event of the open block.
func (m *messageStream) send(e messageEvent) {
	e.Index = &m.index
	m.event(e.Type, e)
}

// open begins a block unless one of this type is open. Each call is a block of its own.
func (m *messageStream) open(kind string, block any) {
	if m.block == kind && kind != "tool_use" {
		return
	}
	m.stop()
	m.block = kind
	m.send(messageEvent{Type: "content_block_start", Block: block})
	if kind == "text" && m.s.sim != nil && m.index == 0 {
		m.event("ping", messageEvent{Type: "ping"})
	}
}

func (m *messageStream) stop() {
	if m.block == "" {
		return
	}
	if m.block == "thinking" {
		m.send(messageEvent{Type: "content_block_delta", Delta: object{{"type", "signature_delta"}, {"signature", randomHex()}}})
	}
	m.send(messageEvent{Type: "content_block_stop"})
	m.block = ""
	m.index++
}

func (m *messageStream) show(e callEvent) {
	var delta any
	switch {
	case e.reasoning != "":
		m.open("thinking", object{{"type", "thinking"}, {"thinking", ""}})
		delta = object{{"type", "thinking_delta"}, {"thinking", e.reasoning}}
	case e.name != "":
		m.open("tool_use", m.s.toolBlock(e.name, nil))
		return
	case e.text != "":
		m.open("text", textPart(""))
		delta = object{{"type", "text_delta"}, {"text", e.text}}
	default:
		delta = object{{"type", "input_json_delta"}, {"partial_json", e.arguments}}
	}
	m.send(messageEvent{Type: "content_block_delta", Delta: delta})
}

func (s *Server) streamMessage(r *http.Request, g *generation, c *chatRequest, a *answer, head messageAnswer) {
	a.named = true
	a.stream(nil)
	m, begun, parser := &messageStream{answer: a, s: s}, false, s.parser(c)
	g.streamed(r.Context(), a, func(one *sequence, _ *piece, text string) {
		if !begun {
			begun = true
			null := json.RawMessage("null")
			head.StopReason, head.StopSequence, head.Usage = null, null, messageUsage{Input: len(one.prompt)}
			a.event("message_start", messageEvent{Type: "message_start", Message: &head})
		}
		parser.add(text, one.ended, m.show)
	}, func() {
		m.stop()
		one := g.all[0]
		reason, sequence := stopOfMessage(one, &parser.tools)
		a.event("message_delta", messageEvent{
			Type: "message_delta", Delta: object{{"stop_reason", reason}, {"stop_sequence", sequence}}, Usage: &messageUsage{len(one.prompt), one.count},
		})
		a.event("message_stop", messageEvent{Type: "message_stop"})
	})
}

func (s *Server) serveCountTokens(w http.ResponseWriter, r *http.Request) *apiError {
	var q messagesRequest
	if err := readPython(r, &q); err != nil { // in the form of OpenAI, as in vLLM
		return err
	}
	if names := q.missing(false); names != nil {
		return missing(names...).ofPython(names[0])
	}
	c, err := q.chat()
	if err != nil {
		return err.inNames()
	}
	if !s.models.has(q.Model) {
		return s.noModel(q.Model, true).inNames()
	}
	text, err := s.render(r.Context(), &c.chat)
	if err != nil {
		return err.inNames()
	}
	ids, _, err := s.ids(r.Context(), &c.chat, text, false)
	if err != nil {
		return err.inNames()
	}
	return succeed(w, object{{"input_tokens", len(ids)}, {"context_management", object{{"original_input_tokens", len(ids)}}}})
}
