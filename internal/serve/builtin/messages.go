package builtin

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// messagesRequest is the body of /v1/messages, the API of Anthropic. The Python frontend makes a chat of it, and so does this one.
type messagesRequest struct {
	Model         string          `json:"model"`
	MaxTokens     *int32          `json:"max_tokens"`
	Messages      []blockMessage  `json:"messages"`
	System        json.RawMessage `json:"system"`
	StopSequences []string        `json:"stop_sequences"`
	Stream        bool            `json:"stream"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	TopK          *int32          `json:"top_k"`
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
	CacheSalt  string          `json:"cache_salt"`
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
			c.ToolChoice = appendString(nil, t.Type)
		case "any":
			c.ToolChoice = appendString(nil, "required")
		case "tool":
			if t.Name == "" {
				return nil, badRequest("", "tool_choice.name is required when type is 'tool'")
			}
			c.ToolChoice = append(appendString([]byte(`{"type":"function","function":{"name":`), t.Name), "}}"...)
		default:
			return nil, badRequest("", "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
		}
	}
	if q.OutputConfig != nil && q.OutputConfig.Format != nil && len(q.OutputConfig.Format.Schema) > 0 {
		c.ResponseFormat = append(append([]byte(`{"type":"json_schema","json_schema":{"schema":`), q.OutputConfig.Format.Schema...), "}}"...)
	}
	return c, nil
}

func textMessage(role, text string) message {
	return message{Role: role, Content: appendString(nil, text)}
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
	var parts []json.RawMessage // of a message with images
	images := false
	for _, b := range all {
		switch b.Type {
		case "text":
			if b.Text != "" {
				texts = append(texts, b.Text)
				parts = append(parts, append(appendString([]byte(`{"type":"text","text":`), b.Text), '}'))
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
			parts = append(parts, append(appendString([]byte(`{"type":"image_url","image_url":{"url":`), where), "}}"...))
		default:
			return badRequest("messages", "`%s` input is not supported by this model", b.Type)
		}
	}
	switch {
	case images:
		one.Content, _ = json.Marshal(parts) // never fails
	case texts != nil:
		one.Content = appendString(nil, strings.Join(texts, "\n"))
	}
	if one.Content != nil || one.Reasoning != "" || one.ToolCalls != nil {
		c.Messages = append(c.Messages, one)
	}
	return nil
}

func (s *Server) serveMessages(w http.ResponseWriter, r *http.Request) *apiError {
	var q messagesRequest
	members, err := readCounted(r, &q)
	if err != nil { // in the form of OpenAI, as in vLLM
		return err
	}
	id := "chatcmpl-" + requestID(r, "")
	if s.sim != nil {
		id = "msg_" + requestID(r, "")
	}
	if missing := q.missing(true); missing != nil {
		return missingMembers(members, missing...)
	}
	c, err := q.chat()
	if err != nil {
		return err.inNames()
	}
	if *q.MaxTokens < 1 {
		e := badJSON("1 validation error:\n  {'type': 'value_error', 'loc': 'body.max_tokens', 'msg': 'Value error, max_tokens must be positive', 'input': '%d', "+
			"'ctx': {'error': ValueError('max_tokens must be positive')}}", *q.MaxTokens)
		e.param = "body.max_tokens"
		return e
	}
	g, err := s.converse(r.Context(), c, id, "")
	if err != nil {
		return err.inNames()
	}
	defer g.close()
	a := s.newAnswer(w, id, "", s.answeredBy(q.Model), 0)
	defer a.release()
	if q.Stream {
		s.streamMessage(r, g, c, a)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err.inNames()
	}
	one := g.all[0]
	parser := s.parser(c)
	reasoning, text := parser.whole(one.decoder.whole())
	b := appendString(append(a.b, `{"id":`...), a.id)
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	if reasoning != "" {
		b = appendString(append(b, `{"type":"thinking","thinking":`...), reasoning)
		b = append(appendString(append(b, `,"signature":`...), randomHex()), '}')
	}
	if text != "" || reasoning == "" && len(parser.tools.calls) == 0 {
		if b[len(b)-1] == '}' {
			b = append(b, ',')
		}
		b = append(appendString(append(b, `{"type":"text","text":`...), text), '}')
	}
	for _, call := range parser.tools.calls {
		if b[len(b)-1] == '}' {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"type":"tool_use","id":`...), s.sim.callID(messageCallPrefix, "chatcmpl-tool-"+randomHex()))
		b = appendString(append(b, `,"name":`...), call.name)
		arguments := call.arguments
		if !json.Valid(arguments) {
			arguments = []byte("{}") // it was cut off
		}
		b = append(append(append(b, `,"input":`...), arguments...), '}')
	}
	b = appendString(append(b, `],"model":`...), a.model)
	reason, sequence := stopOfMessage(one, &parser.tools)
	if reason != "" {
		b = appendString(append(b, `,"stop_reason":`...), reason)
	}
	if sequence != "" {
		b = appendString(append(b, `,"stop_sequence":`...), sequence)
	}
	a.b = append(appendBlockUsage(append(b, `,"usage":`...), len(one.prompt), one.count), '}')
	return succeed(w, a.b)
}

func appendBlockUsage(b []byte, in, out int) []byte {
	b = appendInt(append(b, `{"input_tokens":`...), in)
	return append(appendInt(append(b, `,"output_tokens":`...), out), '}')
}

// stopOfMessage is how an answer ended, and the stop string if one ended it.
func stopOfMessage(q *sequence, parser *callParser) (reason, sequence string) {
	calls := len(parser.calls)
	switch {
	case q.finish == protocol.FinishLength:
		return "max_tokens", ""
	case q.finish != protocol.FinishStop:
		return "", ""
	case calls > 0 && json.Valid(parser.calls[calls-1].arguments):
		return "tool_use", ""
	case q.stop.kind == 1:
		return "stop_sequence", q.stop.text
	case calls > 0:
		return "tool_use", ""
	}
	return "end_turn", ""
}

// streamMessage writes events with names. Each text and each call is a block.
func (s *Server) streamMessage(r *http.Request, g *generation, c *chatRequest, a *answer) {
	a.named = true
	a.stream()
	const noBlock, textBlock, callBlock, thinkingBlock = 0, 1, 2, 3
	block, index, begun := noBlock, 0, false
	parser := s.parser(c)
	event := func(name string) {
		a.b = append(append(append(a.b, "event: "...), name...), "\ndata: {\"type\":\""...)
		a.b = append(append(a.b, name...), '"')
	}
	end := func() { a.b = append(a.b, "}\n\n"...) }
	at := func() {
		a.b = appendInt(append(a.b, `,"index":`...), index)
		end()
	}
	stop := func() {
		if block == thinkingBlock {
			event("content_block_delta")
			a.b = append(appendString(append(a.b, `,"delta":{"type":"signature_delta","signature":`...), randomHex()), '}')
			at()
		}
		if block != noBlock {
			event("content_block_stop")
			at()
			block = noBlock
			index++
		}
	}
	show := func(e callEvent) {
		switch {
		case e.reasoning != "":
			if block != thinkingBlock {
				stop()
				block = thinkingBlock
				event("content_block_start")
				a.b = append(a.b, `,"content_block":{"type":"thinking","thinking":""}`...)
				at()
			}
			event("content_block_delta")
			a.b = append(appendString(append(a.b, `,"delta":{"type":"thinking_delta","thinking":`...), e.reasoning), '}')
		case e.name != "":
			stop()
			block = callBlock
			event("content_block_start")
			a.b = appendString(append(a.b, `,"content_block":{"type":"tool_use","id":`...), s.sim.callID(messageCallPrefix, "chatcmpl-tool-"+randomHex()))
			a.b = append(appendString(append(a.b, `,"name":`...), e.name), `,"input":{}}`...)
		case e.text != "":
			if block != textBlock {
				stop()
				block = textBlock
				event("content_block_start")
				a.b = append(a.b, `,"content_block":{"type":"text","text":""}`...)
				at()
				if s.sim != nil && index == 0 {
					event("ping")
					end()
				}
			}
			event("content_block_delta")
			a.b = append(appendString(append(a.b, `,"delta":{"type":"text_delta","text":`...), e.text), '}')
		default:
			event("content_block_delta")
			a.b = append(appendString(append(a.b, `,"delta":{"type":"input_json_delta","partial_json":`...), e.arguments), '}')
		}
		at()
	}
	g.streamed(r.Context(), a, func(one *sequence, _ *piece, text string) {
		if !begun {
			begun = true
			event("message_start")
			a.b = appendString(append(a.b, `,"message":{"id":`...), a.id)
			a.b = appendString(append(a.b, `,"type":"message","role":"assistant","content":[],"model":`...), a.model)
			a.b = append(a.b, `,"stop_reason":null,"stop_sequence":null,"usage":`...)
			a.b = append(appendBlockUsage(a.b, len(one.prompt), 0), '}')
			end()
		}
		parser.add(text, one.ended, show)
	}, func() {
		stop()
		one := g.all[0]
		reason, sequence := stopOfMessage(one, &parser.tools)
		event("message_delta")
		a.b = append(a.b, `,"delta":{"stop_reason":`...)
		a.b = appendNullable(a.b, reason)
		a.b = appendNullable(append(a.b, `,"stop_sequence":`...), sequence)
		a.b = appendBlockUsage(append(a.b, `},"usage":`...), len(one.prompt), one.count)
		end()
		event("message_stop")
		end()
	})
}

func (s *Server) serveCountTokens(w http.ResponseWriter, r *http.Request) *apiError {
	var q messagesRequest
	members, err := readCounted(r, &q)
	if err != nil { // in the form of OpenAI, as in vLLM
		return err
	}
	if missing := q.missing(false); missing != nil {
		return missingMembers(members, missing...)
	}
	c, err := q.chat()
	if err != nil {
		return err.inNames()
	}
	if !s.models.has(q.Model) {
		return s.noModel(q.Model, true).inNames()
	}
	text, err := s.render(&c.chat)
	if err != nil {
		return err.inNames()
	}
	ids, _, err := s.ids(&c.chat, text, false)
	if err != nil {
		return err.inNames()
	}
	n := len(ids)
	b := appendInt([]byte(`{"input_tokens":`), n)
	b = appendInt(append(b, `,"context_management":{"original_input_tokens":`...), n)
	return succeed(w, append(b, "}}"...))
}
