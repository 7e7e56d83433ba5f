package builtin

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// responsesRequest is the body of /v1/responses. The Python frontend makes a chat of it, and so does this one; vllm-rs
// has no such endpoint. Of the members of params, those count that the Python frontend has here.
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

	named  string // the tool that tool_choice names
	nested bool   // tools may have the form of a chat
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
	Format    *responseFormat `json:"format"`
	Verbosity *string         `json:"verbosity"`
}

type responseFormat struct {
	Name        string          `json:"name"`
	Schema      json.RawMessage `json:"schema"`
	Type        string          `json:"type"`
	Description *string         `json:"description"`
	Strict      *bool           `json:"strict"`
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
		return nil, missing("input").ofPython("input")
	case q.Background && q.Store != nil && !*q.Store:
		return nil, badRequest("background", "background can only be used when `store` is true")
	case q.Background:
		return nil, refused("background", "This vLLM engine does not support `store=True` and therefore does not support the background mode. "+
			"To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.")
	case !absent(q.Prompt):
		return nil, badRequest("prompt", "prompt template is not supported")
	case !absent(q.PreviousMessages) && q.Previous != nil:
		return nil, refused("previous_response_id", "Only one of `previous_input_messages` and `previous_response_id` can be set.")
	case q.Previous != nil: // nothing is stored, as by default
		return nil, notFoundResponse(*q.Previous)
	case q.MaxOutput != nil && *q.MaxOutput < 1:
		return nil, badRequest("max_tokens", "max_tokens must be at least 1, got %d", *q.MaxOutput)
	case q.Temperature != nil && *q.Temperature < 0:
		return nil, badRequest("temperature", "temperature must be non-negative, got %v", *q.Temperature)
	}
	for i, name := range q.Include {
		if !slices.Contains(includes, name) {
			return nil, badBody("include: %q is not one of %s", name, strings.Join(includes, ", ")).ofPython("include." + strconv.Itoa(i))
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
				return nil, missing("text.format.schema").ofPython("text.format.json_schema.schema")
			}
			c.ResponseFormat = schemaFormat(f.Schema)
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

// empty reports whether a member is absent, or an object without members.
func empty(raw json.RawMessage) bool { return absent(raw) || membersOf(raw) == nil && raw[0] == '{' }

// addInput makes messages of the input. Several items of an assistant are one message.
func (q *responsesRequest) addInput(c *chatRequest) *apiError {
	var text string
	if json.Unmarshal(q.Input, &text) == nil {
		c.Messages = append(c.Messages, textMessage("user", text))
		return nil
	}
	var items []responseItem
	if err := json.Unmarshal(q.Input, &items); err != nil {
		return badBody("input: want a text or a list of items: %v", err).ofPython("input")
	}
	// ofAssistant is the last message if it is one of the assistant, and begins one otherwise.
	ofAssistant := func(free func(*message) bool) *message {
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
			m := ofAssistant(func(*message) bool { return true })
			m.ToolCalls = append(m.ToolCalls, call)
		case item.Type == "function_call_output":
			c.Messages = append(c.Messages, message{Role: "tool", Content: item.Output, ToolCall: &item.CallID})
		case item.Type == "reasoning":
			if item.Encrypted != nil && *item.Encrypted != "" {
				return badRequest("input", "Encrypted content is not supported.")
			}
			ofAssistant(func(m *message) bool { return m.Reasoning == "" }).Reasoning = cmp.Or(firstText(item.Content), firstText(item.Summary))
		case item.Type != "" && item.Type != "message" || item.Role == "":
			return badBody("input: items of type %q are not supported", item.Type).ofPython("input")
		case item.Role == "assistant":
			content := item.Content
			if len(content) > 0 && content[0] == '[' {
				content = toJSON(firstText(content))
			}
			ofAssistant(func(m *message) bool { return m.Content == nil }).Content = content
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
			name := "tools." + strconv.Itoa(i) + ".FunctionTool.name"
			return missing(name).ofPython(name)
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
			return badRequest("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.")
		}
		c.ToolChoice = q.ToolChoice
	case json.Unmarshal(q.ToolChoice, &named) == nil:
		q.named = cmp.Or(named.Name, named.Function.Name)
		if named.Type != "function" && named.Type != "custom" {
			break // of another kind of tool
		}
		if !slices.ContainsFunc(c.Tools, func(t tool) bool { return t.Function.Name == q.named && q.named != "" }) {
			return badRequest("tool_choice", "Tool choice 'function' not found in 'tools' parameter.")
		}
		c.ToolChoice = chosenFunction(q.named)
	}
	if len(c.Tools) == 0 {
		c.ToolChoice = nil
	}
	return nil
}

func (s *Server) serveResponses(w http.ResponseWriter, r *http.Request) *apiError {
	q := &responsesRequest{nested: s.sim != nil}
	if err := readPython(r, q); err != nil {
		return err
	}
	c, err := q.chat()
	if err != nil {
		return err
	}
	id := cmp.Or(q.RequestID, "resp_"+requestID(r, ""))
	g, err := s.converse(r.Context(), c, id)
	if err != nil {
		return err
	}
	defer g.close()
	o := &responseOutput{s: s, q: q, c: c, one: g.all[0], parser: s.parser(c), head: s.newEnvelope(id, "response", q.Model)}
	o.parser.of = ofResponses
	if q.Stream {
		o.answer = newAnswer(w)
		defer o.answer.release()
		o.stream(r, g)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	return succeed(w, o.whole())
}

// responseOutput makes the items of an answer: reasoning, a message, calls.
type responseOutput struct {
	*answer // nil of an answer in one piece
	s       *Server
	q       *responsesRequest
	c       *chatRequest
	one     *sequence
	parser  answerParser
	head    envelope

	items    []any // that have ended
	number   int   // of the next event
	kind     itemKind
	item     string // id of the open item
	callID   string
	name     string
	text     []byte             // of the open item
	logprobs []tokenLogprob     // likewise
	table    *protocol.Logprobs // that belongs to the next text
}

type itemKind uint8

const (
	noItem itemKind = iota
	reasoningItem
	messageItem
	callItem
)

// responseEvent is a part of a stream.
type responseEvent struct {
	Response     any            `json:"response,omitempty"`
	Item         any            `json:"item,omitempty"`
	Arguments    *string        `json:"arguments,omitempty"`
	ContentIndex *int           `json:"content_index,omitempty"`
	Delta        string         `json:"delta,omitempty"`
	ItemID       string         `json:"item_id,omitempty"`
	OutputIndex  *int           `json:"output_index,omitempty"`
	Part         any            `json:"part,omitempty"`
	Logprobs     []tokenLogprob `json:"logprobs,omitzero"`
	Text         *string        `json:"text,omitempty"`
	Number       int            `json:"sequence_number"`
	Type         string         `json:"type"`
	Name         string         `json:"name,omitempty"`
}

// send writes an event.
func (o *responseOutput) send(name string, e responseEvent) {
	e.Type, e.Number = "response."+name, o.number
	o.event(e.Type, &e)
	o.number++
}

// inItem makes an event about the open item, or about its only content.
func (o *responseOutput) inItem(e responseEvent) responseEvent {
	index := len(o.items)
	e.ItemID, e.OutputIndex = o.item, &index
	if o.kind != callItem {
		e.ContentIndex = new(0)
	}
	return e
}

// part is the content of the open item.
func (o *responseOutput) part(text string, logprobs []tokenLogprob) object {
	if o.kind == reasoningItem {
		return object{{"text", text}, {"type", "reasoning_text"}}
	}
	return object{{"annotations", []any{}}, {"text", text}, {"type", "output_text"}, {"logprobs", logprobs}}
}

// output is the open item. Its status is "" where it has none.
func (o *responseOutput) output(status string) object {
	text := string(o.text)
	switch o.kind {
	case reasoningItem:
		var content []object
		if status != inProgress {
			content = []object{o.part(text, nil)}
		}
		return object{
			{"id", o.item}, {"summary", []any{}}, {"type", "reasoning"}, {"content", content}, {"encrypted_content", nil}, {"status", orNull(status)},
		}
	case messageItem:
		content := []object{}
		if text != "" {
			content = append(content, o.part(text, o.logprobs))
		}
		return object{{"id", o.item}, {"content", content}, {"role", "assistant"}, {"status", status}, {"type", "message"}, {"phase", nil}}
	}
	return object{
		{"arguments", text},
		{"call_id", o.callID},
		{"name", o.name},
		{"type", "function_call"},
		{"id", o.item},
		{"async", nil},
		{"caller", nil},
		{"namespace", nil},
		{"status", status},
	}
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
	if o.answer == nil {
		return
	}
	index := len(o.items)
	o.send("output_item.added", responseEvent{Item: o.output(inProgress), OutputIndex: &index})
	if kind != callItem {
		o.send("content_part.added", o.inItem(responseEvent{Part: o.part("", []tokenLogprob{})}))
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
	delta := responseEvent{Delta: text}
	if kind == messageItem {
		delta.Logprobs = []tokenLogprob{}
		if o.table != nil {
			o.logprobs = append(o.logprobs, o.s.chatLogprobs(o.c, o.table).Content...)
			delta.Logprobs = o.s.tokenLogprobs(&o.c.params, int(*o.c.TopLogprobs), false, o.table) // without bytes here
			o.table = nil
		}
	}
	if o.answer != nil && text != "" {
		name := [...]string{reasoningItem: "reasoning_text.delta", messageItem: "output_text.delta", callItem: "function_call_arguments.delta"}[kind]
		o.send(name, o.inItem(delta))
	}
}

// stop ends the open item.
func (o *responseOutput) stop(status string) {
	if o.kind == noItem {
		return
	}
	shown := status
	if o.answer == nil && o.kind == reasoningItem {
		shown = ""
	}
	item := o.output(shown)
	if o.answer != nil {
		o.stopped(item)
	}
	o.items = append(o.items, item)
	o.kind = noItem
}

// stopped writes the events at the end of an item.
func (o *responseOutput) stopped(item any) {
	text := string(o.text)
	switch o.kind {
	case callItem:
		o.send("function_call_arguments.done", o.inItem(responseEvent{Arguments: &text, Name: o.name}))
	case reasoningItem:
		o.send("reasoning_text.done", o.inItem(responseEvent{Text: &text}))
	default:
		o.send("output_text.done", o.inItem(responseEvent{Text: &text, Logprobs: []tokenLogprob{}}))
	}
	if o.kind != callItem {
		o.send("content_part.done", o.inItem(responseEvent{Part: o.part(text, o.logprobs)}))
	}
	index := len(o.items)
	o.send("output_item.done", responseEvent{Item: item, OutputIndex: &index})
}

// whole is an answer that has ended.
func (o *responseOutput) whole() *response {
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
	return o.response(o.ended(), true)
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
	o.answer.named = true
	o.answer.failed = func(err *apiError) { // an event of OpenAI; vLLM ends the connection
		o.event("error", object{
			{"code", strconv.Itoa(err.status)}, {"message", err.message}, {"param", nil}, {"sequence_number", o.number}, {"type", "error"},
		})
	}
	o.answer.stream(nil)
	o.send("created", responseEvent{Response: o.response(inProgress, false)})
	o.send("in_progress", responseEvent{Response: o.response(inProgress, false)})
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
		o.send(o.ended(), responseEvent{Response: o.response(o.ended(), true)})
	})
}

// response is the object of the answer. Members that echo the request have the defaults of vLLM.
type response struct {
	ID             string          `json:"id"`
	Created        int             `json:"created_at"`
	Incomplete     object          `json:"incomplete_details"`
	Instructions   *string         `json:"instructions"`
	Metadata       json.RawMessage `json:"metadata"`
	Model          string          `json:"model"`
	Object         string          `json:"object"`
	Output         []any           `json:"output"`
	Parallel       bool            `json:"parallel_tool_calls"`
	Temperature    float           `json:"temperature"`
	ToolChoice     any             `json:"tool_choice"`
	Tools          []object        `json:"tools"`
	TopP           float           `json:"top_p"`
	Background     bool            `json:"background"`
	MaxOutput      int             `json:"max_output_tokens"`
	MaxToolCalls   *int32          `json:"max_tool_calls"`
	Previous       none            `json:"previous_response_id"`
	Prompt         none            `json:"prompt"`
	CacheOptions   json.RawMessage `json:"prompt_cache_options"`
	CacheKey       *string         `json:"prompt_cache_key"`
	CacheRetention *string         `json:"prompt_cache_retention"`
	Reasoning      *responseEffort `json:"reasoning"`
	Safety         *string         `json:"safety_identifier"`
	Tier           string          `json:"service_tier"`
	Status         string          `json:"status"`
	Text           *responseText   `json:"text"`
	TopLogprobs    *int32          `json:"top_logprobs"`
	Truncation     string          `json:"truncation"`
	Usage          object          `json:"usage"`
	User           *string         `json:"user"`
	Presence       float           `json:"presence_penalty"`
	Frequency      float           `json:"frequency_penalty"`
	KV             any             `json:"kv_transfer_params"`
	EC             none            `json:"ec_transfer_params"`
	InputMessages  none            `json:"input_messages"`
	OutputMessages none            `json:"output_messages"`
}

func (o *responseOutput) response(status string, ended bool) *response {
	q, p := o.q, &o.c.params
	temperature := or(p.Temperature, or(o.s.model.defaults.Temperature, 1))
	a := &response{
		ID: o.head.ID, Created: o.head.Created, Instructions: q.Instructions, Metadata: q.Metadata, Model: o.head.Model, Object: o.head.Object,
		Output: []any{}, Parallel: or(q.Parallel, true), Temperature: float(temperature), ToolChoice: q.choice(), Tools: []object{},
		TopP: float(or(p.TopP, or(o.s.model.defaults.TopP, 1))), MaxOutput: o.one.record.maxTokens, MaxToolCalls: q.MaxToolCalls,
		CacheOptions: q.CacheOptions, CacheKey: q.CacheKey, CacheRetention: q.CacheRetention, Reasoning: q.Reasoning, Safety: q.Safety,
		Tier: or(q.ServiceTier, "auto"), Status: status, Text: q.Text, Truncation: or(q.Truncation, "disabled"), User: q.User,
		Presence: float(or(p.PresencePenalty, 0)), Frequency: float(or(p.FrequencyPenalty, 0)), KV: unpacked(o.one.transfer),
	}
	if status == "incomplete" {
		a.Incomplete = object{{"reason", "max_output_tokens"}}
	}
	if temperature < 1e-5 { // the greatest logit is taken
		a.TopP = 1
	}
	for _, t := range q.Tools {
		a.Tools = append(a.Tools, object{
			{"name", t.Name},
			{"parameters", t.Parameters},
			{"strict", t.Strict},
			{"type", t.Type},
			{"allowed_callers", nil},
			{"async", nil},
			{"defer_loading", nil},
			{"description", t.Description},
			{"output_schema", nil},
		})
	}
	if o.c.Logprobs {
		a.TopLogprobs = &q.TopLogprobs
	}
	if one := o.one; ended {
		a.Output = append(a.Output, o.items...)
		turns := []int{}
		a.Usage = object{
			{"input_tokens", len(one.prompt)},
			{"input_tokens_details", object{
				{"cached_tokens", one.cached}, {"cache_write_tokens", one.stored}, {"input_tokens_per_turn", turns}, {"cached_tokens_per_turn", turns},
			}},
			{"output_tokens", one.count},
			{"output_tokens_details", object{
				{"reasoning_tokens", o.s.reasoningTokens(o.c, []*sequence{one})},
				{"tool_output_tokens", 0},
				{"output_tokens_per_turn", turns},
				{"tool_output_tokens_per_turn", turns},
			}},
			{"total_tokens", len(one.prompt) + one.count},
		}
	}
	return a
}

// choice is tool_choice: without tools it is "none".
func (q *responsesRequest) choice() any {
	switch {
	case q.named != "":
		return object{{"name", q.named}, {"type", "function"}}
	case len(q.Tools) == 0:
		return "none"
	case absent(q.ToolChoice):
		return "auto"
	}
	return q.ToolChoice
}

// MarshalJSON implements [json.Marshaler]: only a schema has all members.
func (f *responseFormat) MarshalJSON() ([]byte, error) {
	if f.Type != "json_schema" {
		return toJSON(object{{"type", f.Type}}), nil
	}
	type plain responseFormat
	return toJSON((*plain)(f)), nil
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
