package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// The endpoints that end with /render answer with the request of /inference/v1/generate that the engine would get, as
// those of the Python frontend do: routers count the tokens of a prompt with them.

func (s *Server) serveRenderChat(w http.ResponseWriter, r *http.Request) *apiError {
	var q chatRequest
	if err := readPython(r, &q); err != nil {
		return err
	}
	q.pythonOnly = true
	return s.renderChat(w, r, &q)
}

func (s *Server) serveRenderMessages(w http.ResponseWriter, r *http.Request) *apiError {
	var q messagesRequest
	if err := readPython(r, &q); err != nil {
		return err
	}
	c, err := q.chat()
	if err != nil {
		return err
	}
	c.message = true
	return s.renderChat(w, r, c)
}

func (s *Server) serveRenderResponses(w http.ResponseWriter, r *http.Request) *apiError {
	q := responsesRequest{nested: s.sim != nil}
	if err := readPython(r, &q); err != nil {
		return err
	}
	c, err := q.chat()
	if err != nil {
		return err
	}
	ids, err := s.prepareChat(r.Context(), c)
	if err != nil {
		return err
	}
	one, err := s.newRendered(r.Context(), &c.params, "resp_"+requestID(r, c.RequestID), ids)
	if err != nil {
		return err
	}
	one.Sampling.Extra = &struct{}{}
	return succeed(w, one)
}

func (s *Server) renderChat(w http.ResponseWriter, r *http.Request, q *chatRequest) *apiError {
	ids, err := s.prepareChat(r.Context(), q)
	if err != nil {
		return err
	}
	q.params.tools = len(q.Tools) > 0
	one, err := s.newRendered(r.Context(), &q.params, "chatcmpl-"+requestID(r, q.RequestID), ids)
	if err != nil {
		return err
	}
	var tools []object
	for _, t := range q.Tools {
		tools = append(tools, object{{"type", "function"}, {"function", t.Function}})
	}
	var choice any
	switch {
	case !absent(q.ToolChoice):
		choice = q.ToolChoice
	case len(q.Tools) > 0:
		choice = "auto"
	case !q.message:
		choice = "none"
	}
	calls := 0
	for i := range q.Messages {
		calls += len(q.Messages[i].ToolCalls)
	}
	one.Context = object{
		{"tools", tools},
		{"tool_choice", choice},
		{"parallel_tool_calls", or(q.Parallel, true)},
		{"include_reasoning", true},
		{"chat_template_kwargs", append(membersOf(q.TemplateArgs), member{"cohere_format", "cmd4"},
			member{"add_generation_prompt", !q.ContinueFinal && or(q.AddGenerationPrompt, true)}, member{"continue_final_message", q.ContinueFinal})},
		{"history_tool_call_cnt", calls},
	}
	return succeed(w, one)
}

// membersOf are the members of an object, in their order.
func membersOf(raw json.RawMessage) (o object) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return nil
	}
	for d.More() {
		name, _ := d.Token()
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return nil
		}
		text, _ := name.(string)
		o = append(o, member{text, value})
	}
	return o
}

func (s *Server) serveRenderCompletions(w http.ResponseWriter, r *http.Request) *apiError {
	var q completionRequest
	if err := readPython(r, &q); err != nil {
		return err
	}
	q.pythonOnly = true
	id := "cmpl-" + requestID(r, q.RequestID)
	prompts, err := s.prepareCompletion(r.Context(), &q, id)
	if err != nil {
		return err
	}
	all := make([]*rendered, len(prompts))
	for i, ids := range prompts {
		one := id
		if len(prompts) > 1 {
			one += "-" + strconv.Itoa(i)
		}
		if all[i], err = s.newRendered(r.Context(), &q.params, one, ids); err != nil {
			return err
		}
	}
	return succeed(w, all)
}

// rendered is a request of /inference/v1/generate.
type rendered struct {
	ID         string           `json:"request_id"`
	IDs        []uint32         `json:"token_ids"`
	Offsets    none             `json:"token_offsets"`
	Features   object           `json:"features"`
	Parts      none             `json:"content_parts"`
	Sampling   renderedSampling `json:"sampling_params"`
	Model      *string          `json:"model"`
	Reasoned   none             `json:"reasoning_ended"`
	ParserArgs none             `json:"reasoning_parser_kwargs"`
	ReturnIDs  *bool            `json:"return_token_ids"`
	Mode       string           `json:"output_mode"`
	Context    object           `json:"parse_context"`
	Stream     bool             `json:"stream"`
	StreamOpts none             `json:"stream_options"`
	CacheSalt  *string          `json:"cache_salt"`
	Priority   int32            `json:"priority"`
	KV         json.RawMessage  `json:"kv_transfer_params"`
	EC         json.RawMessage  `json:"ec_transfer_params"`
}

// renderedSampling has the sampling parameters that are not the default of vLLM.
type renderedSampling struct {
	N              int      `json:"n,omitempty"`
	Presence       float    `json:"presence_penalty"`
	Frequency      float    `json:"frequency_penalty"`
	Repetition     float    `json:"repetition_penalty"`
	Temperature    float    `json:"temperature"`
	TopP           float    `json:"top_p"`
	TopK           int      `json:"top_k,omitempty"`
	MinP           float    `json:"min_p"`
	Seed           *int64   `json:"seed,omitempty"`
	Stop           []string `json:"stop"`
	StopIDs        []uint32 `json:"stop_token_ids"`
	IgnoreEOS      bool     `json:"ignore_eos,omitempty"`
	MaxTokens      int      `json:"max_tokens,omitempty"`
	MinTokens      int      `json:"min_tokens,omitempty"`
	Logprobs       *int     `json:"logprobs,omitempty"`
	PromptLogprobs *int     `json:"prompt_logprobs,omitempty"`
	SkipSpecial    *bool    `json:"skip_special_tokens,omitempty"`
	IncludeStop    bool     `json:"include_stop_str_in_output,omitempty"`
	Kind           int      `json:"output_kind"`
	SkipClone      bool     `json:"skip_clone"`
	Structured     object   `json:"structured_outputs,omitempty"`
	Allowed        []uint32 `json:"allowed_token_ids,omitempty"`
	BadWords       []string `json:"bad_words"`
	Extra          none     `json:"extra_args,omitempty"`
	SkipCache      bool     `json:"skip_reading_prefix_cache"`
}

// structure is StructuredOutputsParams with all members, of a constraint.
func structure(constraint object) (o object) {
	if constraint == nil {
		return nil
	}
	for _, name := range []string{"json", "regex", "choice", "grammar", "json_object", "structural_tag"} {
		var value any
		if constraint[0].name == name {
			value = constraint[0].value
		}
		if tag, ok := value.(string); ok && name == "structural_tag" { // Python has written it
			value = spacedJSON([]byte(tag))
		}
		o = append(o, member{name, value})
	}
	return append(o, member{"disable_any_whitespace", false}, member{"disable_additional_properties", false}, member{"whitespace_pattern", nil},
		member{"_backend", nil}, member{"_backend_was_auto", false})
}

// newRendered makes a request of /inference/v1/generate.
func (s *Server) newRendered(ctx context.Context, p *params, id string, ids []uint32) (*rendered, *apiError) {
	var made player.EngineRequest
	common, err := p.share(ctx, s)
	if err == nil {
		err = p.fill(s, &common, &made, ids)
	}
	if err != nil {
		return nil, err
	}
	q := &made.Sampling
	one := &rendered{
		ID: id, IDs: ids, Features: renderedFeatures(p), Model: orNull(p.Model), Mode: "tokens", Stream: p.Stream, CacheSalt: orNull(string(p.CacheSalt)),
		Priority: p.Priority, KV: p.KVTransfer, EC: p.ECTransfer,
		Sampling: renderedSampling{
			Presence: float(or(p.PresencePenalty, 0)), Frequency: float(or(p.FrequencyPenalty, 0)), Repetition: float(or(p.RepetitionPenalty, 1)),
			Temperature: float(q.Temperature), TopP: float(q.TopP), TopK: q.TopK, MinP: float(q.MinP), Stop: append([]string{}, p.Stop...),
			StopIDs: idsIf(true, p.StopTokenIDs), IgnoreEOS: q.IgnoreEOS, MinTokens: q.MinTokens, IncludeStop: p.IncludeStop,
			Kind: 2, SkipClone: true, Structured: structure(p.constraint), Allowed: p.AllowedTokenIDs, BadWords: append([]string{}, p.BadWords...),
		},
	}
	given := &one.Sampling
	if p.answers != 1 {
		given.N = p.answers
	}
	if q.HasSeed {
		given.Seed = &q.Seed
	}
	if q.MaxTokens != 16 {
		given.MaxTokens = q.MaxTokens
	}
	if q.Logprobs != protocol.NoLogprobs {
		given.Logprobs = &q.Logprobs
	}
	if q.PromptLogprobs != protocol.NoLogprobs {
		given.PromptLogprobs = &q.PromptLogprobs
	}
	if skip := or(p.SkipSpecial, !p.tools); !skip {
		given.SkipSpecial = &skip
	}
	if p.Stream {
		given.Kind = 1
	}
	if p.ReturnTokenIDs {
		one.ReturnIDs = &p.ReturnTokenIDs
	}
	return one, nil
}

// renderedFeatures are the images of a prompt.
func renderedFeatures(p *params) object {
	if len(p.media) == 0 {
		return nil
	}
	var hashes []string
	var places []object
	for _, item := range p.media {
		hashes, places = append(hashes, item.hash), append(places, object{{"offset", item.offset}, {"length", item.length}})
	}
	var data any
	if !p.noPayload {
		data = object{{"image", make([]none, len(p.media))}}
	}
	return object{
		{"mm_hashes", object{{"image", hashes}}}, {"mm_placeholders", object{{"image", places}}}, {"kwargs_data", data}, {"mm_metadata", nil},
	}
}
