package builtin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// responsesRequest is the body of /v1/responses. The Python frontend makes a chat of it, and so does this one; vllm-rs has no such
// endpoint. Of the members of params, those count that the Python frontend has here.
type responsesRequest struct {
	params
	Input            json.RawMessage `json:"input"`
	Instructions     *string         `json:"instructions"`
	MaxOutput        *int32          `json:"max_output_tokens"`
	Include          []string        `json:"include"`
	TopLogprobs      int32           `json:"top_logprobs"`
	Tools            []responseTool  `json:"tools"`
	ToolChoice       json.RawMessage `json:"tool_choice"`
	Parallel         *bool           `json:"parallel_tool_calls"`
	Text             *responseText   `json:"text"`
	Reasoning        *responseEffort `json:"reasoning"`
	IncludeReasoning *bool           `json:"include_reasoning"`
	TemplateArgs     json.RawMessage `json:"chat_template_kwargs"`
	Previous         *string         `json:"previous_response_id"`
	PreviousMessages json.RawMessage `json:"previous_input_messages"`
	Background       bool            `json:"background"`
	Store            *bool           `json:"store"`
	Prompt           json.RawMessage `json:"prompt"`
	Truncation       *string         `json:"truncation"`
	ServiceTier      *string         `json:"service_tier"`
	MaxToolCalls     *int32          `json:"max_tool_calls"`
	User             *string         `json:"user"`
	Metadata         json.RawMessage `json:"metadata"`
	Safety           *string         `json:"safety_identifier"`
	CacheKey         *string         `json:"prompt_cache_key"`
	CacheOptions     json.RawMessage `json:"prompt_cache_options"`
	CacheRetention   *string         `json:"prompt_cache_retention"`

	named   string // the tool that tool_choice names
	members int    // of the body
	nested  bool   // tools may have the form of a chat
}

// responseTool is a tool. With llm-d-inference-sim its function may also be an object of its own, as in a chat.
type responseTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
	Function    *function       `json:"function"`
}

type responseText struct {
	Format *struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Schema      json.RawMessage `json:"schema"`
		Description *string         `json:"description"`
		Strict      *bool           `json:"strict"`
	} `json:"format"`
	Verbosity *string `json:"verbosity"`
}

type responseEffort struct {
	Context *string         `json:"context"`
	Effort  *string         `json:"effort"`
	Summary json.RawMessage `json:"generate_summary"`
	Mode    *string         `json:"mode"`
	Short   json.RawMessage `json:"summary"`
}

// responseItem is a part of the input: a message, a call of a tool, its result, or reasoning.
type responseItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Status    string          `json:"status"`
	Content   json.RawMessage `json:"content"`
	Summary   json.RawMessage `json:"summary"`
	Encrypted *string         `json:"encrypted_content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

func notFoundResponse(id string) *apiError {
	return &apiError{status: http.StatusNotFound, message: "Response with id '" + id + "' not found.", kind: "invalid_request_error", param: "response_id"}
}

// chat makes the request of a chat.
func (q *responsesRequest) chat() (*chatRequest, *apiError) {
	refused := func(param, text string) *apiError {
		return &apiError{status: http.StatusBadRequest, message: text, kind: "invalid_request_error", param: param}
	}
	switch {
	case absent(q.Input):
		members := q.members
		if len(q.Tools) == 0 && len(q.ToolChoice) == 0 {
			members++ // vLLM adds tool_choice
		}
		return nil, missingMembers(members, "input")
	case q.Background && q.Store != nil && !*q.Store:
		return nil, badMember("background", "background can only be used when `store` is true")
	case q.Background:
		return nil, refused("background", "This vLLM engine does not support `store=True` and therefore does not support the background mode. "+
			"To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.")
	case !absent(q.Prompt):
		return nil, badMember("prompt", "prompt template is not supported")
	case !absent(q.PreviousMessages) && q.Previous != nil:
		return nil, refused("previous_response_id", "Only one of `previous_input_messages` and `previous_response_id` can be set.")
	case q.Previous != nil: // nothing is stored, as by default
		return nil, notFoundResponse(*q.Previous)
	case q.MaxOutput != nil && *q.MaxOutput < 1:
		return nil, badRequest("max_tokens", "max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%[1]d)", *q.MaxOutput)
	case q.Temperature != nil && *q.Temperature < 0:
		t := string(appendFloat(nil, *q.Temperature))
		return nil, badRequest("temperature", "temperature must be non-negative, got %s. (parameter=temperature, value=%[1]s)", t)
	}
	for i, name := range q.Include {
		if !slices.Contains(includes, name) {
			all := "'" + strings.Join(includes[:len(includes)-1], "', '") + "' or '" + includes[len(includes)-1] + "'"
			e := badJSON("1 validation error:\n  {'type': 'literal_error', 'loc': 'body.include.%d', 'msg': \"Input should be %s\", 'input': '%s', 'ctx': {'expected': \"%[2]s\"}}", i, all, name)
			e.param = "body.include." + strconv.Itoa(i)
			return nil, e
		}
	}
	p := q.params
	c := &chatRequest{MaxTokens: unsigned(q.MaxOutput), Parallel: q.Parallel, params: params{
		Model: p.Model, Stream: p.Stream, RequestID: p.RequestID, Temperature: p.Temperature, TopP: p.TopP, TopK: p.TopK, MinP: p.MinP,
		FrequencyPenalty: p.FrequencyPenalty, PresencePenalty: p.PresencePenalty, RepetitionPenalty: p.RepetitionPenalty, Seed: p.Seed,
		Stop: p.Stop, StopTokenIDs: p.StopTokenIDs, IncludeStop: p.IncludeStop, IgnoreEOS: p.IgnoreEOS, SkipSpecial: p.SkipSpecial,
		SpacesBetween: p.SpacesBetween, LogitBias: p.LogitBias, StructuredOutputs: p.StructuredOutputs, Priority: p.Priority,
		CacheSalt: p.CacheSalt, KVTransfer: p.KVTransfer, ECTransfer: p.ECTransfer, XArgs: p.XArgs, pythonOnly: true,
	}}
	c.TemplateArgs = q.TemplateArgs
	if q.Reasoning != nil {
		c.Effort = q.Reasoning.Effort
	}
	c.oneCall = true
	c.textOnly = badRequest("", "%s is not a multimodal model", p.Model)
	if slices.Contains(q.Include, "message.output_text.logprobs") {
		c.Logprobs, c.TopLogprobs = true, &q.TopLogprobs
	}
	if q.Instructions != nil && *q.Instructions != "" {
		c.Messages = append(c.Messages, textMessage("system", *q.Instructions))
	}
	if err := q.addInput(c); err != nil {
		return nil, err
	}
	if len(c.Messages) == 0 {
		return nil, badRequest("", "Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	if err := q.addTools(c); err != nil {
		return nil, err
	}
	if q.Text != nil && q.Text.Format != nil {
		f := q.Text.Format
		if !absent(p.StructuredOutputs) {
			return nil, badRequest("structured_outputs", "Cannot specify both structured_outputs and text.format")
		}
		switch f.Type {
		case "json_schema":
			if len(f.Schema) == 0 {
				return nil, missingMembers(3, "text.format.json_schema.schema")
			}
			c.ResponseFormat = append(append([]byte(`{"type":"json_schema","json_schema":{"schema":`), f.Schema...), "}}"...)
		case "json_object":
			c.ResponseFormat = []byte(`{"type":"json_object"}`)
		}
	}
	return c, nil
}

// includes are the values of include. All but that for log-probabilities have no effect, as in vLLM.
var includes = []string{
	"code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results", "message.input_image.image_url",
	"message.output_text.logprobs", "reasoning.encrypted_content",
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// absent reports whether a member is not there, or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || isNull(raw) }

// missingMembers are members that have to be there, of a body with so many members.
func missingMembers(members int, names ...string) *apiError {
	var b strings.Builder
	fmt.Fprintf(&b, "%d validation error", len(names))
	if len(names) > 1 {
		b.WriteByte('s')
	}
	b.WriteByte(':')
	for _, name := range names {
		fmt.Fprintf(&b, "\n  {'type': 'missing', 'loc': 'body.%s', 'msg': 'Field required', 'input': '<dict of %d items>'}", name, members)
	}
	e := badJSON("%s", b.String())
	e.param = "body." + names[0]
	return e
}

// badMember is an error of the Python frontend that names the parameter.
func badMember(name, text string) *apiError { return badRequest(name, "%s (parameter=%s)", text, name) }

// addInput makes messages of the input. What an assistant said in several items is one message.
func (q *responsesRequest) addInput(c *chatRequest) *apiError {
	var text string
	if json.Unmarshal(q.Input, &text) == nil {
		c.Messages = append(c.Messages, textMessage("user", text))
		return nil
	}
	var items []responseItem
	if err := json.Unmarshal(q.Input, &items); err != nil {
		shown := string(q.Input)
		if shown[0] == '{' || shown[0] == '[' {
			shown = "<a value>"
		}
		e := badJSON("2 validation errors:\n  {'type': 'string_type', 'loc': 'body.input', 'msg': 'Input should be a valid string', 'input': '%s'}\n"+
			"  {'type': 'list_type', 'loc': 'body.input', 'msg': 'Input should be a valid list', 'input': '%[1]s'}", shown)
		e.param = "body.input"
		return e
	}
	// said is the last message if the assistant said it, and begins one otherwise.
	said := func(free func(*message) bool) *message {
		if n := len(c.Messages); n > 0 && c.Messages[n-1].Role == "assistant" && free(&c.Messages[n-1]) {
			return &c.Messages[n-1]
		}
		c.Messages = append(c.Messages, message{Role: "assistant"})
		return &c.Messages[len(c.Messages)-1]
	}
	for i := range items {
		item := &items[i]
		switch {
		case item.Type == "function_call":
			call := toolCall{ID: item.CallID, Type: "function"}
			call.Function.Name, call.Function.Arguments = item.Name, &item.Arguments
			m := said(func(*message) bool { return true })
			m.ToolCalls = append(m.ToolCalls, call)
		case item.Type == "function_call_output":
			c.Messages = append(c.Messages, message{Role: "tool", Content: item.Output, ToolCall: &item.CallID})
		case item.Type == "reasoning":
			if item.Encrypted != nil && *item.Encrypted != "" {
				return badRequest("input", "Encrypted content is not supported.")
			}
			said(func(m *message) bool { return m.Reasoning == "" }).Reasoning = cmp.Or(firstText(item.Content), firstText(item.Summary))
		case item.Type != "" && item.Type != "message" || item.Role == "":
			e := badJSON("Unsupported input item type: %s", item.Type) // vLLM lists what each kind of item lacks
			e.param = "body.input"
			return e
		case item.Role == "assistant":
			content := item.Content
			if len(content) > 0 && content[0] == '[' {
				content = appendString(nil, firstText(content))
			}
			said(func(m *message) bool { return m.Content == nil }).Content = content
		default:
			c.Messages = append(c.Messages, message{Role: item.Role, Content: item.Content})
		}
	}
	if n := len(items); n > 0 && (items[n-1].Status == "in_progress" || items[n-1].Status == "incomplete") && items[n-1].Role == "assistant" {
		c.ContinueFinal = true
	}
	return nil
}

// firstText is the text of the first part of a content.
func firstText(raw json.RawMessage) string {
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 {
		return ""
	}
	return parts[0].Text
}

// addTools adds the tools that are functions, and what is chosen among them.
func (q *responsesRequest) addTools(c *chatRequest) *apiError {
	for i := range q.Tools {
		t := &q.Tools[i]
		if f := t.Function; f != nil && t.Name == "" && q.nested {
			t.Name, t.Description, t.Parameters, t.Strict = f.Name, f.Description, f.Parameters, f.Strict
		}
		if t.Type != "function" {
			continue
		}
		if t.Name == "" {
			return missingMembers(2, "tools."+strconv.Itoa(i)+".FunctionTool.name") // vLLM lists what each kind of tool lacks
		}
		c.Tools = append(c.Tools, tool{t.Type, function{t.Name, t.Description, t.Parameters, t.Strict}})
	}
	var word string
	var named struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	switch {
	case absent(q.ToolChoice):
	case json.Unmarshal(q.ToolChoice, &word) == nil:
		if word == "required" && len(q.Tools) == 0 {
			return badMember("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
		}
		c.ToolChoice = q.ToolChoice
	case json.Unmarshal(q.ToolChoice, &named) == nil:
		q.named = cmp.Or(named.Name, named.Function.Name)
		if named.Type != "function" && named.Type != "custom" {
			break // of another kind of tool
		}
		if !slices.ContainsFunc(c.Tools, func(t tool) bool { return t.Function.Name == q.named && q.named != "" }) {
			return badMember("tool_choice", "Tool choice 'function' not found in 'tools' parameter.")
		}
		c.ToolChoice = append(appendString([]byte(`{"type":"function","function":{"name":`), q.named), "}}"...)
	}
	if len(c.Tools) == 0 {
		c.ToolChoice = nil
	}
	return nil
}

// readCounted reads a body, and counts its members: the errors of the Python frontend tell how many there are.
func readCounted(r *http.Request, to any) (members int, err *apiError) {
	var raw json.RawMessage
	if _, err := readBody(r, &raw, pythonError); err != nil {
		return 0, err
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return 0, jsonError(raw, err)
	}
	var all map[string]json.RawMessage
	_ = json.Unmarshal(raw, &all) // it is an object
	return len(all), nil
}

func (s *Server) serveResponses(w http.ResponseWriter, r *http.Request) *apiError {
	q := &responsesRequest{nested: s.sim != nil}
	members, err := readCounted(r, q)
	if err != nil {
		return err
	}
	q.members = members
	c, err := q.chat()
	if err != nil {
		return err
	}
	id := cmp.Or(q.RequestID, "resp_"+requestID(r, ""))
	g, err := s.converse(r.Context(), c, id, "")
	if err != nil {
		return err
	}
	defer g.close()
	a := s.newAnswer(w, id, "response", s.answeredBy(q.Model), int(time.Now().Unix()))
	defer a.release()
	o := &responseOutput{answer: a, s: s, q: q, c: c, one: g.all[0], parser: s.parser(c)}
	o.parser.of = ofResponses
	if q.Stream {
		o.stream(r, g)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	o.whole()
	return succeed(w, a.b)
}

// responseOutput writes the items of an answer: reasoning, a message, calls.
type responseOutput struct {
	*answer
	s       *Server
	q       *responsesRequest
	c       *chatRequest
	one     *sequence
	parser  answerParser
	streams bool

	items    []byte // that have ended, as JSON
	index    int    // of the item
	number   int    // of the next event
	kind     itemKind
	item     string // id of the open item
	callID   string
	name     string
	text     []byte             // of the open item
	logprobs []byte             // likewise
	table    *protocol.Logprobs // that belongs to the next text
}

type itemKind uint8

const (
	noItem itemKind = iota
	reasoningItem
	messageItem
	callItem
)

// begin begins an event, and end ends it. more are members behind all others.
func (o *responseOutput) begin(name string) {
	o.b = append(append(append(o.b, "event: response."...), name...), "\ndata: {"...)
}

func (o *responseOutput) end(name, more string) {
	o.b = appendInt(append(o.b, `,"sequence_number":`...), o.number)
	o.b = append(append(append(o.b, `,"type":"response.`...), name...), '"')
	o.b = append(append(o.b, more...), "}\n\n"...)
	o.number++
}

// place writes to which item an event belongs.
func (o *responseOutput) place() {
	o.b = appendString(append(o.b, `"item_id":`...), o.item)
	o.b = appendInt(append(o.b, `,"output_index":`...), o.index)
}

// part writes the content of the open item.
func (o *responseOutput) part(b []byte, text string, logprobs []byte) []byte {
	if o.kind == reasoningItem {
		return append(appendString(append(b, `{"text":`...), text), `,"type":"reasoning_text"}`...)
	}
	b = appendString(append(b, `{"annotations":[],"text":`...), text)
	b = append(b, `,"type":"output_text","logprobs":`...)
	if logprobs == nil {
		return append(b, "null}"...)
	}
	return append(append(append(b, '['), logprobs...), "]}"...)
}

// appendItem writes the open item. Its status is "" where it has none.
func (o *responseOutput) appendItem(b []byte, status string) []byte {
	text := string(o.text)
	switch o.kind {
	case reasoningItem:
		b = appendString(append(b, `{"id":`...), o.item)
		b = append(b, `,"summary":[],"type":"reasoning","content":`...)
		if status == inProgress {
			b = append(b, "null"...)
		} else {
			b = append(o.part(append(b, '['), text, nil), ']')
		}
		b = appendNullable(append(b, `,"encrypted_content":null,"status":`...), status)
	case messageItem:
		b = append(appendString(append(b, `{"id":`...), o.item), `,"content":[`...)
		if text != "" {
			b = o.part(b, text, o.logprobs)
		}
		b = appendString(append(b, `],"role":"assistant","status":`...), status)
		b = append(b, `,"type":"message","phase":null`...)
	default:
		b = appendString(append(b, `{"arguments":`...), text)
		b = appendString(append(b, `,"call_id":`...), o.callID)
		b = appendString(append(b, `,"name":`...), o.name)
		b = appendString(append(b, `,"type":"function_call","id":`...), o.item)
		b = appendString(append(b, `,"async":null,"caller":null,"namespace":null,"status":`...), status)
	}
	return append(b, '}')
}

const inProgress = "in_progress"

// start begins an item.
func (o *responseOutput) start(kind itemKind, name string) {
	o.kind, o.name, o.text, o.logprobs = kind, name, o.text[:0], nil
	switch kind {
	case reasoningItem:
		o.item = "rs_" + randomHex()
	case messageItem:
		o.item = "msg_" + randomHex()
	default:
		o.item, o.callID = "fc_"+randomHex(), o.s.sim.callID("call_", "chatcmpl-tool-"+randomHex())
	}
	if !o.streams {
		return
	}
	o.begin("output_item.added")
	o.b = o.appendItem(append(o.b, `"item":`...), inProgress)
	o.b = appendInt(append(o.b, `,"output_index":`...), o.index)
	o.end("output_item.added", "")
	if kind != callItem {
		o.begin("content_part.added")
		o.b = append(o.b, `"content_index":0,`...)
		o.place()
		o.b = o.part(append(o.b, `,"part":`...), "", []byte{})
		o.end("content_part.added", "")
	}
}

// show writes a part of the answer. Parts of another kind are another item.
func (o *responseOutput) show(e callEvent) {
	kind, text := messageItem, e.text
	switch {
	case e.reasoning != "":
		if !or(o.q.IncludeReasoning, true) {
			return
		}
		kind, text = reasoningItem, e.reasoning
	case e.name != "" || e.arguments != "":
		if e.index > 0 && !or(o.q.Parallel, true) {
			return
		}
		kind, text = callItem, e.arguments
	}
	if o.kind != kind || e.name != "" {
		o.stop("completed")
		o.start(kind, e.name)
	}
	o.text = append(o.text, text...)
	table := o.table
	if kind == messageItem && table != nil {
		if o.logprobs != nil {
			o.logprobs = append(o.logprobs, ',')
		}
		rows := o.s.appendChatLogprobs([]byte{'['}, o.c, table)
		o.logprobs = append(o.logprobs, rows[1:]...)
		o.table = nil
	}
	if !o.streams || text == "" {
		return
	}
	name := [...]string{reasoningItem: "reasoning_text.delta", messageItem: "output_text.delta", callItem: "function_call_arguments.delta"}[kind]
	o.begin(name)
	if kind != callItem {
		o.b = append(o.b, `"content_index":0,`...)
	}
	o.b = append(appendString(append(o.b, `"delta":`...), text), ',')
	o.place()
	if kind == messageItem {
		o.b = append(o.s.appendDeltaLogprobs(append(o.b, `,"logprobs":[`...), o.c, table), ']')
	}
	o.end(name, "")
}

// appendDeltaLogprobs writes log-probabilities as they are in the events of texts: without bytes.
func (s *Server) appendDeltaLogprobs(b []byte, c *chatRequest, t *protocol.Logprobs) []byte {
	if t == nil {
		return b
	}
	return s.appendTokenLogprobs(b, &c.params, t, int(*c.TopLogprobs), false)
}

// stop ends the open item.
func (o *responseOutput) stop(status string) {
	if o.kind == noItem {
		return
	}
	if len(o.items) > 0 {
		o.items = append(o.items, ',')
	}
	shown := status
	if !o.streams && o.kind == reasoningItem {
		shown = ""
	}
	o.items = o.appendItem(o.items, shown)
	if o.streams {
		o.stopped(status)
	}
	o.kind = noItem
	o.index++
}

// stopped writes the events at the end of an item.
func (o *responseOutput) stopped(status string) {
	switch name := "output_text.done"; o.kind {
	case callItem:
		name = "function_call_arguments.done"
		o.begin(name)
		o.b = append(appendString(append(o.b, `"arguments":`...), string(o.text)), ',')
		o.place()
		o.end(name, `,"name":`+string(appendString(nil, o.name)))
	case reasoningItem:
		name = "reasoning_text.done"
		fallthrough
	default:
		o.begin(name)
		o.b = append(o.b, `"content_index":0,`...)
		o.place()
		if o.kind == messageItem {
			o.b = append(o.b, `,"logprobs":[]`...)
		}
		o.b = appendString(append(o.b, `,"text":`...), string(o.text))
		o.end(name, "")
		o.begin("content_part.done")
		o.b = append(o.b, `"content_index":0,`...)
		o.place()
		o.b = o.part(append(o.b, `,"part":`...), string(o.text), o.logprobs)
		o.end("content_part.done", "")
	}
	o.begin("output_item.done")
	o.b = o.appendItem(append(o.b, `"item":`...), status)
	o.b = appendInt(append(o.b, `,"output_index":`...), o.index)
	o.end("output_item.done", "")
}

// whole writes an answer that has ended.
func (o *responseOutput) whole() {
	reasoning, text := o.parser.whole(o.one.decoder.whole())
	if reasoning != "" {
		o.show(callEvent{reasoning: reasoning})
	}
	if text != "" {
		for _, table := range o.one.table {
			o.table = table
			o.show(callEvent{text: text})
			text = ""
		}
		if text != "" {
			o.show(callEvent{text: text})
		}
	}
	for i, call := range o.parser.tools.calls {
		o.show(callEvent{name: call.name, arguments: spacedJSON(call.arguments), index: i})
	}
	o.stop(o.ended())
	o.b = o.response(o.b, o.ended(), true)
}

// ended is the status of an answer that has ended.
func (o *responseOutput) ended() string {
	if o.one.finish == protocol.FinishLength {
		return "incomplete"
	}
	return "completed"
}

// stream writes events.
func (o *responseOutput) stream(r *http.Request, g *generation) {
	o.streams, o.answer.named = true, true
	o.answer.failed = func(err *apiError) { // an event of OpenAI; vLLM ends the connection
		o.b = appendInt(append(o.b, "event: error\ndata: {\"code\":\""...), err.status)
		o.b = appendString(append(o.b, `","message":`...), err.message)
		o.b = appendInt(append(o.b, `,"param":null,"sequence_number":`...), o.number)
		o.b = append(o.b, `,"type":"error"}`+"\n\n"...)
	}
	o.answer.stream()
	whole := func(name, status string, ended bool) {
		o.begin(name)
		o.b = o.response(append(o.b, `"response":`...), status, ended)
		o.end(name, "")
	}
	whole("created", inProgress, false)
	whole("in_progress", inProgress, false)
	if o.flush() != nil {
		return // the client has left
	}
	g.streamed(r.Context(), o.answer, func(one *sequence, p *piece, text string) {
		if o.c.Logprobs && (o.s.reasoning == nil || or(o.q.IncludeReasoning, true)) {
			o.table = p.logprobs
		}
		o.parser.add(text, one.ended, o.show)
	}, func() {
		o.stop(o.ended())
		whole(o.ended(), o.ended(), true)
	})
}

// response writes the object of the answer. Members that echo the request have the defaults of vLLM.
func (o *responseOutput) response(b []byte, status string, ended bool) []byte {
	q, p := o.q, &o.c.params
	raw := func(name string, value json.RawMessage) {
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = appendCompact(b, value)
	}
	text := func(name string, value *string) {
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = appendOptional(b, appendString, value)
	}
	number := func(name string, value float64) {
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = appendFloat(b, value)
	}
	b = appendString(append(b, `{"id":`...), o.answer.id)
	b = appendInt(append(b, `,"created_at":`...), o.created)
	if status == "incomplete" {
		b = append(b, `,"incomplete_details":{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, `,"incomplete_details":null`...)
	}
	text("instructions", q.Instructions)
	raw("metadata", q.Metadata)
	b = appendString(append(b, `,"model":`...), o.model)
	b = append(b, `,"object":"response","output":[`...)
	if ended {
		b = append(b, o.items...)
	}
	b = strconv.AppendBool(append(b, `],"parallel_tool_calls":`...), or(q.Parallel, true))
	temperature := or(p.Temperature, or(o.s.model.defaults.Temperature, 1))
	number("temperature", temperature)
	b = q.appendChoice(append(b, `,"tool_choice":`...))
	b = q.appendTools(append(b, `,"tools":`...))
	if temperature < 1e-5 { // the greatest logit is taken
		number("top_p", 1)
	} else {
		number("top_p", or(p.TopP, or(o.s.model.defaults.TopP, 1)))
	}
	b = appendInt(append(b, `,"background":false,"max_output_tokens":`...), o.one.record.maxTokens)
	b = appendOptional(append(b, `,"max_tool_calls":`...), appendInt, intOf(q.MaxToolCalls))
	b = append(b, `,"previous_response_id":null,"prompt":null`...)
	raw("prompt_cache_options", q.CacheOptions)
	text("prompt_cache_key", q.CacheKey)
	text("prompt_cache_retention", q.CacheRetention)
	b = append(b, `,"reasoning":`...)
	if e := q.Reasoning; e == nil {
		b = append(b, "null"...)
	} else {
		b = appendOptional(append(b, `{"context":`...), appendString, e.Context)
		b = appendOptional(append(b, `,"effort":`...), appendString, e.Effort)
		raw("generate_summary", e.Summary)
		text("mode", e.Mode)
		raw("summary", e.Short)
		b = append(b, '}')
	}
	text("safety_identifier", q.Safety)
	b = appendString(append(b, `,"service_tier":`...), or(q.ServiceTier, "auto"))
	b = appendString(append(b, `,"status":`...), status)
	b = q.Text.append(append(b, `,"text":`...))
	b = appendIf(append(b, `,"top_logprobs":`...), o.c.Logprobs, appendInt, int(q.TopLogprobs))
	b = appendString(append(b, `,"truncation":`...), or(q.Truncation, "disabled"))
	b = append(b, `,"usage":`...)
	if ended {
		b = o.appendUsage(b)
	} else {
		b = append(b, "null"...)
	}
	text("user", q.User)
	number("presence_penalty", or(p.PresencePenalty, 0))
	number("frequency_penalty", or(p.FrequencyPenalty, 0))
	b = appendTransfer(append(b, `,"kv_transfer_params":`...), o.one.transfer)
	return append(b, `,"ec_transfer_params":null,"input_messages":null,"output_messages":null}`...)
}

func (o *responseOutput) appendUsage(b []byte) []byte {
	one := o.one
	b = appendInt(append(b, `{"input_tokens":`...), len(one.prompt))
	b = appendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), one.cached)
	b = appendInt(append(b, `,"cache_write_tokens":`...), one.stored)
	b = append(b, `,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...)
	b = appendInt(b, one.count)
	b = appendInt(append(b, `,"output_tokens_details":{"reasoning_tokens":`...), o.s.reasoningTokens(o.c, []*sequence{one}))
	b = append(b, `,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	return append(appendInt(b, len(one.prompt)+one.count), '}')
}

// appendChoice writes tool_choice: without tools it is "none".
func (q *responsesRequest) appendChoice(b []byte) []byte {
	switch {
	case q.named != "":
		return append(appendString(append(b, `{"name":`...), q.named), `,"type":"function"}`...)
	case len(q.Tools) == 0:
		return append(b, `"none"`...)
	case absent(q.ToolChoice):
		return append(b, `"auto"`...)
	}
	return appendCompact(b, q.ToolChoice)
}

func (q *responsesRequest) appendTools(b []byte) []byte {
	b = append(b, '[')
	for i := range q.Tools {
		t := &q.Tools[i]
		b = comma(b, i)
		b = appendString(append(b, `{"name":`...), t.Name)
		b = appendCompact(append(b, `,"parameters":`...), t.Parameters)
		b = appendOptional(append(b, `,"strict":`...), strconv.AppendBool, t.Strict)
		b = appendString(append(b, `,"type":`...), t.Type)
		b = appendOptional(append(b, `,"allowed_callers":null,"async":null,"defer_loading":null,"description":`...), appendString, t.Description)
		b = append(b, `,"output_schema":null}`...)
	}
	return append(b, ']')
}

func (t *responseText) append(b []byte) []byte {
	if t == nil {
		return append(b, "null"...)
	}
	b = append(b, `{"format":`...)
	switch f := t.Format; {
	case f == nil:
		b = append(b, "null"...)
	case f.Type == "json_schema":
		b = appendString(append(b, `{"name":`...), f.Name)
		b = appendCompact(append(b, `,"schema":`...), f.Schema)
		b = appendOptional(append(b, `,"type":"json_schema","description":`...), appendString, f.Description)
		b = append(appendOptional(append(b, `,"strict":`...), strconv.AppendBool, f.Strict), '}')
	default:
		b = append(appendString(append(b, `{"type":`...), f.Type), '}')
	}
	return append(appendOptional(append(b, `,"verbosity":`...), appendString, t.Verbosity), '}')
}

// appendFloat writes a number as Python does.
func appendFloat(b []byte, v float64) []byte { return append(b, pythonFloat(v)...) }

// appendCompact writes JSON that was read before. What is empty was not there, and is null.
func appendCompact(b []byte, raw json.RawMessage) []byte {
	var out bytes.Buffer
	if json.Compact(&out, raw) != nil {
		return append(b, "null"...)
	}
	return append(b, out.Bytes()...)
}

// spacedJSON is JSON as Python writes it, with a space behind each comma and colon. What is no JSON stays as it is.
func spacedJSON(raw []byte) string {
	if !json.Valid(raw) {
		return string(raw)
	}
	var b []byte
	quoted := false
	for i := 0; i < len(raw); i++ {
		ch := raw[i]
		switch {
		case quoted && ch == '\\':
			b = append(b, ch)
			i++
			ch = raw[i]
		case ch == '"':
			quoted = !quoted
		case quoted:
		case ch == ' ' || ch == '\n' || ch == '\t' || ch == '\r':
			continue
		case ch == ',' || ch == ':':
			b = append(b, ch)
			ch = ' '
		}
		b = append(b, ch)
	}
	return string(b)
}

// Paths of responses by their ids.
const (
	responsesPath  = "/v1/responses/"
	oneResponse    = responsesPath + "{response_id}"
	cancelResponse = "/cancel"
)

// serveStored answers what concerns a stored response: none is stored, as by default of vLLM.
func (s *Server) serveStored(_ http.ResponseWriter, r *http.Request) *apiError {
	id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, responsesPath), cancelResponse)
	return notFoundResponse(id)
}
