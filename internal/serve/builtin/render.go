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

// The endpoints that end with /render answer with the request of /inference/v1/generate that the engine would get, as those of the
// Python frontend do: routers count the tokens of a prompt with them.

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
	q := responsesRequest{nested: s.policy.lenient}
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

// parseContext is what the answer is parsed with.
type parseContext struct {
	Tools            []chatTool `json:"tools"`
	ToolChoice       any        `json:"tool_choice"`
	Parallel         bool       `json:"parallel_tool_calls"`
	IncludeReasoning bool       `json:"include_reasoning"`
	TemplateArgs     object     `json:"chat_template_kwargs"`
	Calls            int        `json:"history_tool_call_cnt"`
}

type chatTool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
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
	context := &parseContext{Parallel: or(q.Parallel, true), IncludeReasoning: true}
	for _, t := range q.Tools {
		context.Tools = append(context.Tools, chatTool{"function", t.Function})
	}
	switch {
	case !absent(q.ToolChoice):
		context.ToolChoice = q.ToolChoice
	case len(q.Tools) > 0:
		context.ToolChoice = "auto"
	case !q.message:
		context.ToolChoice = "none"
	}
	context.TemplateArgs = append(membersOf(q.TemplateArgs), member{"cohere_format", "cmd4"},
		member{"add_generation_prompt", !q.ContinueFinal && or(q.AddGenerationPrompt, true)}, member{"continue_final_message", q.ContinueFinal})
	for i := range q.Messages {
		context.Calls += len(q.Messages[i].ToolCalls)
	}
	one.Context = context
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
	ID         string            `json:"request_id"`
	IDs        []uint32          `json:"token_ids"`
	Offsets    none              `json:"token_offsets"`
	Features   *renderedFeatures `json:"features"`
	Parts      none              `json:"content_parts"`
	Sampling   renderedSampling  `json:"sampling_params"`
	Model      *string           `json:"model"`
	Reasoned   none              `json:"reasoning_ended"`
	ParserArgs none              `json:"reasoning_parser_kwargs"`
	ReturnIDs  *bool             `json:"return_token_ids"`
	Mode       string            `json:"output_mode"`
	Context    *parseContext     `json:"parse_context"`
	Stream     bool              `json:"stream"`
	StreamOpts none              `json:"stream_options"`
	CacheSalt  *string           `json:"cache_salt"`
	Priority   int32             `json:"priority"`
	KV         json.RawMessage   `json:"kv_transfer_params"`
	EC         json.RawMessage   `json:"ec_transfer_params"`
}

// renderedSampling has the sampling parameters that are not the default of vLLM.
type renderedSampling struct {
	N              int        `json:"n,omitempty"`
	Presence       float      `json:"presence_penalty"`
	Frequency      float      `json:"frequency_penalty"`
	Repetition     float      `json:"repetition_penalty"`
	Temperature    float      `json:"temperature"`
	TopP           float      `json:"top_p"`
	TopK           int        `json:"top_k,omitempty"`
	MinP           float      `json:"min_p"`
	Seed           *int64     `json:"seed,omitempty"`
	Stop           []string   `json:"stop"`
	StopIDs        []uint32   `json:"stop_token_ids"`
	IgnoreEOS      bool       `json:"ignore_eos,omitempty"`
	MaxTokens      int        `json:"max_tokens,omitempty"`
	MinTokens      int        `json:"min_tokens,omitempty"`
	Logprobs       *int       `json:"logprobs,omitempty"`
	PromptLogprobs *int       `json:"prompt_logprobs,omitempty"`
	SkipSpecial    *bool      `json:"skip_special_tokens,omitempty"`
	IncludeStop    bool       `json:"include_stop_str_in_output,omitempty"`
	Kind           int        `json:"output_kind"`
	SkipClone      bool       `json:"skip_clone"`
	Structured     *structure `json:"structured_outputs,omitempty"`
	Allowed        []uint32   `json:"allowed_token_ids,omitempty"`
	BadWords       []string   `json:"bad_words"`
	Extra          none       `json:"extra_args,omitempty"`
	SkipCache      bool       `json:"skip_reading_prefix_cache"`
}

// structure is StructuredOutputsParams with all members.
type structure struct {
	JSON         any  `json:"json"`
	Regex        any  `json:"regex"`
	Choice       any  `json:"choice"`
	Grammar      any  `json:"grammar"`
	Object       any  `json:"json_object"`
	Tag          any  `json:"structural_tag"`
	NoWhitespace bool `json:"disable_any_whitespace"`
	NoAdditional bool `json:"disable_additional_properties"`
	Whitespace   none `json:"whitespace_pattern"`
	Backend      none `json:"_backend"`
	WasAuto      bool `json:"_backend_was_auto"`
}

// newStructure reads a constraint as the engine gets it: a map with one member.
func newStructure(constraint []byte) *structure {
	given, _ := unpacked(constraint).(object)
	if len(given) == 0 {
		return nil
	}
	s, value := &structure{}, given[0].value
	switch given[0].name {
	case "json":
		s.JSON = value
	case "regex":
		s.Regex = value
	case "choice":
		s.Choice = value
	case "grammar":
		s.Grammar = value
	case "json_object":
		s.Object = value
	case "structural_tag": // a text, which Python has written
		tag, _ := value.(string)
		s.Tag = spacedJSON([]byte(tag))
	}
	return s
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
		ID: id, IDs: ids, Features: newRenderedFeatures(p), Model: orNull(p.Model), Mode: "tokens", Stream: p.Stream, CacheSalt: orNull(p.CacheSalt),
		Priority: p.Priority, KV: p.KVTransfer, EC: p.ECTransfer,
		Sampling: renderedSampling{
			Presence: float(or(p.PresencePenalty, 0)), Frequency: float(or(p.FrequencyPenalty, 0)), Repetition: float(or(p.RepetitionPenalty, 1)),
			Temperature: float(q.Temperature), TopP: float(q.TopP), TopK: q.TopK, MinP: float(q.MinP), Stop: append([]string{}, p.Stop...),
			StopIDs: idsIf(true, p.StopTokenIDs), IgnoreEOS: q.IgnoreEOS, MinTokens: q.MinTokens, IncludeStop: p.IncludeStop,
			Kind: 2, SkipClone: true, Structured: newStructure(p.constraint), Allowed: p.AllowedTokenIDs, BadWords: append([]string{}, p.BadWords...),
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
type renderedFeatures struct {
	Hashes struct {
		Image []string `json:"image"`
	} `json:"mm_hashes"`
	Places struct {
		Image []renderedPlace `json:"image"`
	} `json:"mm_placeholders"`
	Data *struct {
		Image []none `json:"image"`
	} `json:"kwargs_data"`
	Metadata none `json:"mm_metadata"`
}

type renderedPlace struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

func newRenderedFeatures(p *params) *renderedFeatures {
	if len(p.media) == 0 {
		return nil
	}
	f := &renderedFeatures{}
	for _, item := range p.media {
		f.Hashes.Image, f.Places.Image = append(f.Hashes.Image, item.hash), append(f.Places.Image, renderedPlace{item.offset, item.length})
	}
	if !p.noPayload {
		f.Data = &struct {
			Image []none `json:"image"`
		}{make([]none, len(p.media))}
	}
	return f
}
