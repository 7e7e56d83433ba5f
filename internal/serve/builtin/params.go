package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// params are the members that the requests of completions and of chats have in common. A member that is null is one that is absent.
type params struct {
	Model         string         `json:"model"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	RequestID     string         `json:"request_id"`
	N             *uint32        `json:"n"`
	Echo          bool           `json:"echo"`

	MinTokens         uint32             `json:"min_tokens"`
	Temperature       *float64           `json:"temperature"`
	TopP              *float64           `json:"top_p"`
	TopK              *int32             `json:"top_k"`
	MinP              *float64           `json:"min_p"`
	FrequencyPenalty  *float64           `json:"frequency_penalty"`
	PresencePenalty   *float64           `json:"presence_penalty"`
	RepetitionPenalty *float64           `json:"repetition_penalty"`
	Seed              *int64             `json:"seed"`
	Stop              stringOrList       `json:"stop"`
	StopTokenIDs      []uint32           `json:"stop_token_ids"`
	IncludeStop       bool               `json:"include_stop_str_in_output"`
	IgnoreEOS         bool               `json:"ignore_eos"`
	SkipSpecial       *bool              `json:"skip_special_tokens"`
	SpacesBetween     *bool              `json:"spaces_between_special_tokens"`
	AddSpecial        *bool              `json:"add_special_tokens"`
	PromptLogprobs    *int32             `json:"prompt_logprobs"`
	LogitBias         map[string]float64 `json:"logit_bias"`
	AllowedTokenIDs   []uint32           `json:"allowed_token_ids"`
	BadWords          []string           `json:"bad_words"`
	Repetition        *repetition        `json:"repetition_detection"`
	TruncatePrompt    *int32             `json:"truncate_prompt_tokens"`
	UseBeamSearch     bool               `json:"use_beam_search"`
	LengthPenalty     *float64           `json:"length_penalty"`
	ThinkingBudget    *int64             `json:"thinking_token_budget"`

	ResponseFormat    json.RawMessage `json:"response_format"`
	StructuredOutputs json.RawMessage `json:"structured_outputs"`

	Priority          int32           `json:"priority"`
	ReturnTokenIDs    bool            `json:"return_token_ids"`
	TokensAsIDs       bool            `json:"return_tokens_as_token_ids"`
	CacheSalt         string          `json:"cache_salt"`
	KVTransfer        json.RawMessage `json:"kv_transfer_params"`
	CacheThreshold    *float64        `json:"cache_hit_threshold"` // this and the next one are of the simulator
	ExtraArgs         json.RawMessage `json:"extra_args"`
	ECTransfer        json.RawMessage `json:"ec_transfer_params"`
	XArgs             json.RawMessage `json:"vllm_xargs"`
	biases            []protocol.Bias // logit_bias
	constraint        []byte          // structured outputs as the engine gets them
	logprobs          int             // candidates for each token, or protocol.NoLogprobs
	promptLogprobs    int             // likewise for the prompt
	max               *int            // tokens of an answer
	usage, continuous bool            // of a stream
	answers           int             // for each prompt
	onlyIDs           bool            // nothing is decoded
	keepTokens        bool            // the ids of the answer are needed at the end
	rank              int             // of the engine that the client wants, from 1; 0 is any
	tools, response   bool            // of /render: the request has tools, or is of /v1/responses
	pythonOnly        bool            // the endpoint is one of the Python frontend, which vllm-rs does not have
	planner           planner         // of answers that this server chooses; nil if there are none
	cacheThreshold    bool            // the answer is that too little of the prompt is cached
	pooling           []byte          // of a request that generates nothing
	rpc               bool            // the request is one of gRPC
	media             []mediaItem     // of the prompt
	noPayload         bool            // of /render: nothing but the names of images is wanted
}

type streamOptions struct {
	IncludeUsage    *bool `json:"include_usage"`
	ContinuousUsage *bool `json:"continuous_usage_stats"`
}

type repetition struct {
	MaxSize uint32 `json:"max_pattern_size"`
	MinSize uint32 `json:"min_pattern_size"`
	Count   uint32 `json:"min_count"`
}

// stringOrList is a list of strings, of which one alone may stand without brackets.
type stringOrList []string

func (s *stringOrList) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		*s = make([]string, 1)
		return json.Unmarshal(data, &(*s)[0])
	}
	return json.Unmarshal(data, (*[]string)(s))
}

// bodies are buffers for what clients send.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// mostKept is how many bytes of a buffer are kept for the next request.
const mostKept = 64 << 10

// readJSON reads the body of a request, and returns where it ends. The error is of the client.
func readJSON(r *http.Request, to any) (end string, err *apiError) { return readBody(r, to, jsonError) }

// readBody is readJSON with the words in which to say what is wrong with a body.
func readBody(r *http.Request, to any, wrong func(text []byte, err error) *apiError) (end string, err *apiError) {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if kind = strings.TrimSpace(kind); kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return "", badJSON("Expected request with `Content-Type: application/json`")
	}
	b := bodies.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= mostKept {
			bodies.Put(b)
		}
	}()
	b.Reset()
	if _, err := b.ReadFrom(r.Body); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return "", &apiError{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the body of the request has more than %d bytes", tooLarge.Limit)}
		}
		return "", badJSON("Failed to buffer the request body: %v", err)
	}
	if err := json.Unmarshal(b.Bytes(), to); err != nil {
		return "", wrong(b.Bytes(), err)
	}
	return place(b.Bytes(), int64(b.Len())), nil
}

// wantedRank is what X-Data-Parallel-Rank says, from 1; 0 is any engine.
func wantedRank(r *http.Request) int {
	if values := r.Header["X-Data-Parallel-Rank"]; len(values) > 0 {
		if n, err := strconv.Atoi(values[0]); err == nil && n >= 0 && n < math.MaxInt32 {
			return n + 1
		}
	}
	return 0
}

// place is where a text goes on after so many bytes.
func place(text []byte, offset int64) string {
	before := text[:min(max(int(offset), 0), len(text))]
	return "at line " + strconv.Itoa(1+bytes.Count(before, []byte("\n"))) + " column " + strconv.Itoa(len(before)-1-bytes.LastIndexByte(before, '\n'))
}

// jsonError says as vllm-rs does what is wrong with a body.
func jsonError(text []byte, err error) *apiError {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	var own *apiError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(text)):
		return badJSON("Failed to parse the request body as JSON: EOF while parsing a value %s", place(text, int64(len(text))))
	case errors.As(err, &syntax) && strings.Contains(syntax.Error(), "after top-level value"):
		return badJSON("Failed to parse the request body as JSON: trailing characters %s", place(text, syntax.Offset))
	case errors.As(err, &syntax):
		return badJSON("Failed to parse the request body as JSON: %s %s", strings.TrimPrefix(syntax.Error(), "json: "), place(text, syntax.Offset))
	case errors.As(err, &typ):
		field := strings.TrimPrefix(strings.TrimPrefix(typ.Field, "params."), "chat.") // of Go, not of the request
		if field != "" {
			field += ": "
		}
		return badType("%s%s, expected %s %s", field, rustValue(text, typ), rustType(typ.Type.String()), place(text, typ.Offset))
	}
	return badType("%v", err)
}

// missingField is the error for a member that has to be there. end is where the body ends.
func missingField(end, name string) *apiError { return badType("missing field `%s` %s", name, end) }

// rustValue and rustType name values and types of JSON as the errors of vllm-rs do.
func rustValue(text []byte, typ *json.UnmarshalTypeError) string {
	kind, number, _ := strings.Cut(typ.Value, " ")
	switch kind {
	case "array":
		return "invalid type: sequence"
	case "object":
		return "invalid type: map"
	case "bool":
		return "invalid type: boolean"
	case "number":
		if strings.ContainsAny(number, ".eE") {
			return "invalid type: floating point `" + number + "`"
		}
		return "invalid value: integer `" + number + "`"
	case "string":
		value := text[:min(max(int(typ.Offset), 0), len(text))]
		if n := len(value); n > 1 && value[n-1] == '"' {
			if at := bytes.LastIndexByte(value[:n-1], '"'); at >= 0 {
				return "invalid type: string " + string(value[at:])
			}
		}
	}
	return "invalid type: " + kind
}

func rustType(name string) string {
	switch name {
	case "string":
		return "a string"
	case "bool":
		return "a boolean"
	case "int", "uint32":
		return "u32"
	case "int64":
		return "i64"
	case "float64":
		return "f32"
	}
	if strings.HasPrefix(name, "[]") || strings.HasPrefix(name, "builtin.stringOrList") {
		return "a sequence"
	}
	return "a map"
}

// check refuses what vLLM refuses, in its words, and resolves what follows from several members.
func (p *params) check(s *Server) *apiError {
	if p.Model != "" && !s.models.has(p.Model) {
		return s.noModel(p.Model, p.pythonOnly)
	}
	if p.StreamOptions != nil {
		if !p.Stream {
			return badRequest("stream_options", "stream_options are only supported when stream=true.")
		}
		p.usage = isSet(p.StreamOptions.IncludeUsage)
		p.continuous = p.usage && isSet(p.StreamOptions.ContinuousUsage)
	}
	if p.answers = int(max(or(p.N, 1), 1)); p.answers > maxAnswers { // 0 is 1, as in vllm-rs
		return badRequest("n", "n is %d: at most %d answers are allowed", p.answers, maxAnswers)
	}
	switch {
	case p.UseBeamSearch:
		return badRequest("use_beam_search", "use_beam_search is not supported.")
	case p.LengthPenalty != nil:
		return badRequest("length_penalty", "length_penalty is not supported.")
	case p.SpacesBetween != nil && !*p.SpacesBetween:
		return badRequest("spaces_between_special_tokens", "spaces_between_special_tokens is not supported.")
	case p.TruncatePrompt != nil && *p.TruncatePrompt < -1:
		return badRequest("truncate_prompt_tokens", "truncate_prompt_tokens must be >= -1.")
	case p.Echo && p.TruncatePrompt != nil:
		return badRequest("echo", "`echo=true` is not supported with `truncate_prompt_tokens`.")
	case p.TopK != nil && *p.TopK < -1:
		return badType("top_k: top_k must be -1, 0, or a positive integer, got %d", *p.TopK)
	case slices.Contains(p.Stop, ""):
		return badRequest("", "stop: Validation error: stop strings cannot be empty [{\"value\": Array [%s]}]", quotedStops(p.Stop))
	case p.ThinkingBudget != nil && *p.ThinkingBudget < -1:
		return badRequest("", "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.")
	}
	if err := p.checkPromptLogprobs(); err != nil {
		return err
	}
	return p.checkSampling(s)
}

// quotedStops is a list of texts as the errors of vllm-rs show it.
func quotedStops(stops []string) string {
	all := make([]string, len(stops))
	for i, s := range stops {
		all[i] = "String(" + strconv.Quote(s) + ")"
	}
	return strings.Join(all, ", ")
}

func (p *params) checkPromptLogprobs() *apiError {
	p.promptLogprobs = protocol.NoLogprobs
	n := p.PromptLogprobs
	switch {
	case n == nil:
		return nil
	case p.Stream && !p.rpc && (*n > 0 || *n == -1):
		return badRequest("prompt_logprobs", "`prompt_logprobs` are not available when `stream=true`.")
	case *n < -1:
		return badRequest("prompt_logprobs", "`prompt_logprobs` must be a non-negative value or -1.")
	}
	p.promptLogprobs = count(*n)
	return nil
}

// count is a number of candidates as the engine has it: -1 is the whole vocabulary.
func count(n int32) int {
	if n == -1 {
		return protocol.AllLogprobs
	}
	return int(n)
}

// unsigned converts a number that was found not to be negative.
func unsigned(v *int32) *uint32 {
	if v == nil {
		return nil
	}
	n := uint32(max(*v, 0))
	return &n
}

// intOf converts a number of a request, nil if it is not given.
func intOf[T int32 | uint32](v *T) *int {
	if v == nil {
		return nil
	}
	n := int(*v)
	return &n
}

func isSet(b *bool) bool { return b != nil && *b }

func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}

// checkSampling refuses values that are out of their range.
func (p *params) checkSampling(s *Server) *apiError {
	for _, bound := range []struct {
		name   string
		value  *float64
		lo, hi float64
		text   string
	}{
		{"temperature", p.Temperature, 0, 2, "[0, 2]"},
		{"top_p", p.TopP, math.SmallestNonzeroFloat64, 1, "(0, 1]"},
		{"min_p", p.MinP, 0, 1, "[0, 1]"},
		{"frequency_penalty", p.FrequencyPenalty, -2, 2, "[-2, 2]"},
		{"presence_penalty", p.PresencePenalty, -2, 2, "[-2, 2]"},
		{"repetition_penalty", p.RepetitionPenalty, math.SmallestNonzeroFloat64, math.MaxFloat64, "(0, inf)"},
	} {
		if v := bound.value; v != nil && (!(*v >= bound.lo && *v <= bound.hi)) {
			return badRequest("", "%s must be in %s, got %s", bound.name, bound.text, strconv.FormatFloat(*v, 'f', -1, 32))
		}
	}
	if err := p.checkLists(s); err != nil {
		return err
	}
	vocabulary := s.opt.Tokenizer.VocabSize()
	if p.AllowedTokenIDs != nil && len(p.AllowedTokenIDs) == 0 {
		return badRequest("", "allowed_token_ids should not be empty")
	}
	if r := p.Repetition; r != nil {
		switch {
		case r.MinSize > r.MaxSize:
			return badRequest("", "invalid repetition detection params: `min_pattern_size` must be less than or equal to `max_pattern_size`, got min_pattern_size=%d, max_pattern_size=%d", r.MinSize, r.MaxSize)
		case r.MaxSize > 0 && r.Count < 2:
			return badRequest("", "invalid repetition detection params: `min_count` must be at least 2, got min_count=%d", r.Count)
		}
	}
	for _, wanted := range []struct {
		name string
		n    int
	}{{"logprobs", p.logprobs}, {"prompt_logprobs", p.promptLogprobs}} {
		n := wanted.n
		if n == protocol.AllLogprobs {
			n = vocabulary
		}
		if n > mostLogprobs {
			return badRequest("", "requested %s of %d, which is greater than max allowed: %d", wanted.name, n, mostLogprobs)
		}
	}
	return nil
}

// Bounds of the lists of a request. Each of its answers is a request of the engine, which keeps copies of some of them.
const (
	maxListed    = 1 << 20 // stop_token_ids and allowed_token_ids of all answers
	maxBadWords  = 1 << 10 // the bounds of the engine
	maxBadTokens = 1 << 14
	maxBiases    = 1 << 10
	maxPrompts   = 1 << 24 // tokens of the prompts of all answers
)

// checkLists refuses lists that are too long for the engine, and ids outside of the vocabulary.
func (p *params) checkLists(s *Server) *apiError {
	vocabulary := s.opt.Tokenizer.VocabSize()
	for _, list := range []struct {
		name string
		ids  []uint32
	}{{"stop_token_ids", p.StopTokenIDs}, {"allowed_token_ids", p.AllowedTokenIDs}} {
		if n := len(list.ids); n > maxListed/p.answers {
			return badRequest(list.name, "%s has %d ids: at most %d are allowed with n=%d", list.name, n, maxListed/p.answers, p.answers)
		}
		if err := inVocabulary(list.name, list.ids, vocabulary); err != nil {
			return err
		}
	}
	if n := len(p.LogitBias) + len(p.biases); n > maxBiases {
		return badRequest("logit_bias", "logit_bias has %d tokens: at most %d are allowed", n, maxBiases)
	}
	for _, id := range slices.Sorted(maps.Keys(p.LogitBias)) {
		token, wrong := strconv.ParseUint(id, 10, 32)
		if wrong != nil {
			return badRequest("logit_bias", "logit_bias contains key(s) that are not valid token IDs: [%q]. Token IDs must be non-negative integers.", id)
		}
		p.biases = append(p.biases, protocol.Bias{Token: uint32(token), Logit: p.LogitBias[id]})
	}
	for _, bias := range p.biases {
		if err := inVocabulary("logit_bias", []uint32{bias.Token}, vocabulary); err != nil {
			return err
		}
	}
	if n := len(p.BadWords); n > maxBadWords {
		return badRequest("bad_words", "bad_words has %d words: at most %d are allowed", n, maxBadWords)
	}
	bytes := 0
	for _, word := range p.BadWords {
		if bytes += len(word); s.tooManyBytes(bytes, maxBadTokens) {
			return badRequest("bad_words", "bad_words has more than %d tokens", maxBadTokens)
		}
	}
	return nil
}

// mostLogprobs is max_logprobs of vLLM's ModelConfig.
const mostLogprobs = 20

func inVocabulary(name string, ids []uint32, size int) *apiError {
	const maxNamed = 10
	var wrong []string
	for _, id := range ids {
		if int64(id) < int64(size) {
			continue
		}
		if len(wrong) == maxNamed {
			wrong = append(wrong, "...")
			break
		}
		wrong = append(wrong, strconv.FormatUint(uint64(id), 10))
	}
	if wrong == nil {
		return nil
	}
	return badRequest("", "token_id(s) [%s] in %s are out of vocabulary. Vocabulary size: %d", strings.Join(wrong, ", "), name, size)
}

// shared is what the requests of all answers have in common. Its slices are never written again.
type shared struct {
	badWords [][]uint32
	extra    []byte // extra_args as msgpack
	media    []byte
}

// share makes what the requests of all answers have in common.
func (p *params) share(ctx context.Context, s *Server) (c shared, err *apiError) {
	tokens := 0
	for _, word := range p.BadWords {
		if ctx.Err() != nil {
			return c, nobody
		}
		for _, ids := range s.badWord(word) {
			if tokens += len(ids); tokens > maxBadTokens {
				return c, badRequest("bad_words", "bad_words has more than %d tokens", maxBadTokens)
			}
			c.badWords = append(c.badWords, ids)
		}
	}
	c.media = appendFeatures(nil, p.media)
	c.extra, err = p.extraArgs()
	return c, err
}

// fill makes a request of the engine of the parameters, but for its prompt and its ids.
func (p *params) fill(s *Server, c *shared, r *player.EngineRequest, prompt []uint32) *apiError {
	room := s.maxModelLen - len(prompt)
	if s.sim != nil {
		if err := s.sim.fits(p, len(prompt), s.maxModelLen); err != nil {
			return err
		}
	}
	if p.pooling != nil && room >= 0 {
		r.HasSampling, r.Pooling, r.Priority, r.CacheSalt = false, p.pooling, int(p.Priority), p.CacheSalt
		return nil
	}
	if room <= 0 {
		return s.tooLong(len(prompt))
	}
	r.MMFeatures = c.media
	r.HasSampling, r.Priority, r.CacheSalt = true, int(p.Priority), p.CacheSalt
	q, d := &r.Sampling, &s.model.defaults
	q.HasMaxTokens, q.MaxTokens = true, min(or(p.max, room), room)
	if p.max == nil && d.MaxNewTokens != nil {
		q.MaxTokens = min(*d.MaxNewTokens, room)
	}
	if q.MinTokens = int(p.MinTokens); q.MinTokens > q.MaxTokens {
		return badRequest("", "`min_tokens` must be less than or equal to `max_tokens`, got min_tokens=%d, max_tokens=%d", q.MinTokens, q.MaxTokens)
	}
	q.Temperature, q.TopP, q.MinP = or(p.Temperature, or(d.Temperature, 1)), or(p.TopP, or(d.TopP, 1)), or(p.MinP, or(d.MinP, 0))
	if q.Temperature == 0 && p.answers > 1 && s.sim == nil {
		return badRequest("", "n must be 1 when using greedy sampling, got %d.", p.answers)
	}
	q.TopK = max(or(intOf(p.TopK), or(d.TopK, 0)), 0)
	q.FrequencyPenalty, q.PresencePenalty = or(p.FrequencyPenalty, 0), or(p.PresencePenalty, 0)
	q.RepetitionPenalty = or(p.RepetitionPenalty, or(d.RepetitionPenalty, 1))
	if p.Seed != nil {
		q.Seed, q.HasSeed = *p.Seed, true
	}
	q.StopTokenIDs = append(q.StopTokenIDs, p.StopTokenIDs...)
	q.AllStops = append(q.AllStops, p.StopTokenIDs...)
	for i, id := range s.model.eos {
		if !slices.Contains(q.AllStops, id) {
			q.AllStops = append(q.AllStops, id)
		}
		switch {
		case p.IgnoreEOS:
		case i == 0:
			q.EOSTokenID = int64(id)
		case !slices.Contains(q.StopTokenIDs, id):
			q.StopTokenIDs = append(q.StopTokenIDs, id)
		}
	}
	q.IgnoreEOS = p.IgnoreEOS
	q.Logprobs, q.PromptLogprobs = p.logprobs, p.promptLogprobs
	q.AllowedTokenIDs, q.StructuredOutputs = p.AllowedTokenIDs, p.constraint
	if r := p.Repetition; r != nil {
		q.Repetition = protocol.Repetition{MaxSize: int(r.MaxSize), MinSize: int(r.MinSize), Count: int(r.Count)}
	}
	q.LogitBias, q.BadWords, q.ExtraArgs = p.biases, c.badWords, c.extra
	return nil
}

// tooManyBytes reports whether a text of so many bytes has more than so many tokens, whatever it says. The Python server makes the
// same estimate from characters (vllm/renderers/params.py).
func (s *Server) tooManyBytes(bytes, tokens int) bool {
	return s.longestToken > 0 && bytes/s.longestToken > tokens
}

func (s *Server) tooLong(tokens int) *apiError {
	return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, which exceeds this limit even "+
		"without any output tokens. Please reduce the length of the input prompt.", s.maxModelLen, tokens)
}

// badWord returns the ids of a word as it is, and behind a space where that has as many of them (SamplingParams.update_from_tokenizer).
func (s *Server) badWord(word string) (all [][]uint32) {
	plain, spaced := s.opt.Tokenizer.Encode(word), s.opt.Tokenizer.Encode(" "+strings.TrimLeft(word, " \t\n"))
	if len(plain) > 0 {
		all = append(all, plain)
	}
	if len(spaced) > 0 && len(spaced) == len(plain) && spaced[0] != plain[0] {
		all = append(all, spaced)
	}
	return all
}

// extraArgs are vllm_xargs and the parameters of connectors as the engine gets them.
func (p *params) extraArgs() ([]byte, *apiError) {
	if len(p.XArgs) == 0 && absent(p.KVTransfer) && absent(p.ECTransfer) {
		return nil, nil
	}
	var own map[string]any
	if len(p.XArgs) > 0 {
		if err := json.Unmarshal(p.XArgs, &own); err != nil {
			return nil, badType("vllm_xargs: expected a map")
		}
	}
	for _, transfer := range [...]struct {
		name string
		raw  json.RawMessage
	}{{"kv_transfer_params", p.KVTransfer}, {"ec_transfer_params", p.ECTransfer}} {
		if absent(transfer.raw) {
			continue
		}
		var value map[string]any
		if err := json.Unmarshal(transfer.raw, &value); err != nil {
			return nil, badType("%s: expected a map", transfer.name)
		}
		if own == nil {
			own = map[string]any{}
		}
		own[transfer.name] = value
	}
	if own == nil {
		return nil, nil
	}
	packed := appendValue(nil, own)
	if pack.Validate(packed) != nil {
		return nil, badRequest("", "the arguments for the engine are nested more than %d deep", pack.DefaultDepth)
	}
	return packed, nil
}

// appendValue writes a JSON value as msgpack.
func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return pack.AppendBool(b, v)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return pack.AppendInt(b, int64(v))
		}
		return pack.AppendFloat64(b, v)
	case string:
		return pack.AppendString(b, v)
	case []any:
		b = pack.AppendArrayHeader(b, len(v))
		for _, item := range v {
			b = appendValue(b, item)
		}
		return b
	case map[string]any:
		b = pack.AppendMapHeader(b, len(v))
		for key, item := range v {
			b = appendValue(pack.AppendString(b, key), item)
		}
		return b
	}
	return pack.AppendNil(b)
}
