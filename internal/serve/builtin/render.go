package builtin

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// The endpoints that end with /render answer with the request of /inference/v1/generate that the engine would get, as those of the
// Python frontend do: routers count the tokens of a prompt with them.

func (s *Server) serveRenderChat(w http.ResponseWriter, r *http.Request) *apiError {
	var q chatRequest
	end, err := readBody(r, &q, pythonError)
	if err != nil {
		return err
	}
	q.pythonOnly = true
	return s.renderChat(w, r, &q, end)
}

func (s *Server) serveRenderMessages(w http.ResponseWriter, r *http.Request) *apiError {
	var q messagesRequest
	if _, err := readBody(r, &q, pythonError); err != nil {
		return err
	}
	c, err := q.chat()
	if err != nil {
		return err
	}
	c.message = true
	return s.renderChat(w, r, c, "")
}

func (s *Server) serveRenderResponses(w http.ResponseWriter, r *http.Request) *apiError {
	q := responsesRequest{nested: s.sim != nil}
	members, err := readCounted(r, &q)
	if err != nil {
		return err
	}
	q.members = members
	c, err := q.chat()
	if err != nil {
		return err
	}
	ids, err := s.prepareChat(r.Context(), c, "")
	if err != nil {
		return err
	}
	c.response = true
	b, err := s.appendRendered(r.Context(), nil, &c.params, "resp_"+requestID(r, c.RequestID), ids, nil)
	if err != nil {
		return err
	}
	return succeed(w, b)
}

// renderChat writes what the engine would get of a chat.
func (s *Server) renderChat(w http.ResponseWriter, r *http.Request, q *chatRequest, end string) *apiError {
	ids, err := s.prepareChat(r.Context(), q, end)
	if err != nil {
		return err
	}
	q.params.tools = len(q.Tools) > 0
	b, err := s.appendRendered(r.Context(), nil, &q.params, "chatcmpl-"+requestID(r, q.RequestID), ids, func(b []byte) []byte {
		b = append(b, `{"tools":`...)
		if len(q.Tools) == 0 {
			b = append(b, "null"...)
		} else {
			b = append(b, '[')
			for i := range q.Tools {
				b = comma(b, i)
				f := &q.Tools[i].Function
				b = appendString(append(b, `{"type":"function","function":{"name":`...), f.Name)
				b = appendOptional(append(b, `,"description":`...), appendString, f.Description)
				b = appendCompact(append(b, `,"parameters":`...), f.Parameters)
				if f.Strict != nil {
					b = strconv.AppendBool(append(b, `,"strict":`...), *f.Strict)
				}
				b = append(b, "}}"...)
			}
			b = append(b, ']')
		}
		b = append(b, `,"tool_choice":`...)
		switch {
		case !absent(q.ToolChoice):
			b = appendCompact(b, q.ToolChoice)
		case len(q.Tools) > 0:
			b = append(b, `"auto"`...)
		case q.message:
			b = append(b, "null"...)
		default:
			b = append(b, `"none"`...)
		}
		b = strconv.AppendBool(append(b, `,"parallel_tool_calls":`...), or(q.Parallel, true))
		b = append(b, `,"include_reasoning":true,"chat_template_kwargs":{`...)
		if len(q.TemplateArgs) > 0 && q.TemplateArgs[0] == '{' {
			if args := appendCompact(nil, q.TemplateArgs); len(args) > 2 {
				b = append(append(b, args[1:len(args)-1]...), ',')
			}
		}
		b = strconv.AppendBool(append(b, `"cohere_format":"cmd4","add_generation_prompt":`...), !q.ContinueFinal && or(q.AddGenerationPrompt, true))
		b = append(strconv.AppendBool(append(b, `,"continue_final_message":`...), q.ContinueFinal), '}')
		calls := 0
		for i := range q.Messages {
			calls += len(q.Messages[i].ToolCalls)
		}
		return append(appendInt(append(b, `,"history_tool_call_cnt":`...), calls), '}')
	})
	if err != nil {
		return err
	}
	return succeed(w, b)
}

func (s *Server) serveRenderCompletions(w http.ResponseWriter, r *http.Request) *apiError {
	var q completionRequest
	end, err := readBody(r, &q, pythonError)
	if err != nil {
		return err
	}
	q.pythonOnly = true
	id := "cmpl-" + requestID(r, q.RequestID)
	prompts, err := s.prepareCompletion(r.Context(), &q, id, end)
	if err != nil {
		return err
	}
	b := []byte{'['}
	for i, ids := range prompts {
		one := id
		if len(prompts) > 1 {
			one += "-" + strconv.Itoa(i)
		}
		if b, err = s.appendRendered(r.Context(), comma(b, i), &q.params, one, ids, nil); err != nil {
			return err
		}
	}
	return succeed(w, append(b, ']'))
}

// appendConstraint writes StructuredOutputsParams with all members.
func appendConstraint(b, constraint []byte) []byte {
	cur := pack.NewCursor(constraint)
	_, _ = cur.MapLen()
	name, _ := cur.StrString()
	b = append(b, '{')
	for _, other := range constraintOrder {
		b = append(append(append(b, '"'), other...), `":`...)
		switch {
		case other != name:
			b = append(b, "null"...)
		case name == "structural_tag": // a text, which Python has written
			tag, _ := cur.StrString()
			b = appendString(b, spacedJSON([]byte(tag)))
		default:
			b = appendPacked(b, &cur)
		}
		b = append(b, ',')
	}
	return append(b, `"disable_any_whitespace":false,"disable_additional_properties":false,"whitespace_pattern":null,"_backend":null,"_backend_was_auto":false}`...)
}

// appendRendered writes a request of /inference/v1/generate. Sampling parameters that have the default of vLLM are left out.
func (s *Server) appendRendered(ctx context.Context, b []byte, p *params, id string, ids []uint32, parsing func([]byte) []byte) ([]byte, *apiError) {
	var made player.EngineRequest
	common, err := p.share(ctx, s)
	if err == nil {
		err = p.fill(s, &common, &made, ids)
	}
	if err != nil {
		return b, err
	}
	q := &made.Sampling
	b = appendString(append(b, `{"request_id":`...), id)
	b = appendIDs(append(b, `,"token_ids":`...), ids)
	b = append(b, `,"token_offsets":null,"features":`...)
	b = append(appendRenderedFeatures(b, p), `,"content_parts":null,"sampling_params":{`...)
	first := len(b)
	member := func(name string) {
		if len(b) > first {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
	}
	number := func(name string, value float64) {
		member(name)
		b = appendFloat(b, value)
	}
	whole := func(name string, value, otherwise int64) {
		if value != otherwise {
			member(name)
			b = strconv.AppendInt(b, value, 10)
		}
	}
	flag := func(name string, value, otherwise bool) {
		if value != otherwise {
			member(name)
			b = strconv.AppendBool(b, value)
		}
	}
	whole("n", int64(p.answers), 1)
	number("presence_penalty", or(p.PresencePenalty, 0))
	number("frequency_penalty", or(p.FrequencyPenalty, 0))
	number("repetition_penalty", or(p.RepetitionPenalty, 1))
	number("temperature", q.Temperature)
	number("top_p", q.TopP)
	whole("top_k", int64(q.TopK), 0)
	number("min_p", q.MinP)
	if q.HasSeed {
		member("seed")
		b = strconv.AppendInt(b, q.Seed, 10)
	}
	member("stop")
	stops, _ := json.Marshal(append([]string{}, p.Stop...))
	b = append(b, stops...)
	member("stop_token_ids")
	b = appendIDs(b, p.StopTokenIDs)
	flag("ignore_eos", q.IgnoreEOS, false)
	whole("max_tokens", int64(q.MaxTokens), 16)
	whole("min_tokens", int64(q.MinTokens), 0)
	whole("logprobs", int64(q.Logprobs), int64(protocol.NoLogprobs))
	whole("prompt_logprobs", int64(q.PromptLogprobs), int64(protocol.NoLogprobs))
	flag("skip_special_tokens", or(p.SkipSpecial, !p.tools), true)
	flag("include_stop_str_in_output", p.IncludeStop, false)
	whole("output_kind", map[bool]int64{true: 1, false: 2}[p.Stream], 0)
	b = append(b, `,"skip_clone":true`...)
	if p.constraint != nil {
		member("structured_outputs")
		b = appendConstraint(b, p.constraint)
	}
	if len(p.AllowedTokenIDs) > 0 {
		member("allowed_token_ids")
		b = appendIDs(b, p.AllowedTokenIDs)
	}
	words, _ := json.Marshal(append([]string{}, p.BadWords...))
	member("bad_words")
	b = append(b, words...)
	if parsing == nil && p.response {
		b = append(b, `,"extra_args":{}`...)
	}
	b = append(b, `,"skip_reading_prefix_cache":false},"model":`...)
	b = appendNullable(b, p.Model)
	b = appendIf(append(b, `,"reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":`...), p.ReturnTokenIDs, strconv.AppendBool, true)
	b = append(b, `,"output_mode":"tokens","parse_context":`...)
	if parsing == nil {
		b = append(b, "null"...)
	} else {
		b = parsing(b)
	}
	b = strconv.AppendBool(append(b, `,"stream":`...), p.Stream)
	b = appendNullable(append(b, `,"stream_options":null,"cache_salt":`...), p.CacheSalt)
	b = appendInt(append(b, `,"priority":`...), int(p.Priority))
	for _, transfer := range []struct {
		name string
		raw  json.RawMessage
	}{{"kv_transfer_params", p.KVTransfer}, {"ec_transfer_params", p.ECTransfer}} {
		b = append(append(append(b, `,"`...), transfer.name...), `":`...)
		b = appendCompact(b, transfer.raw)
	}
	return append(b, '}'), nil
}
