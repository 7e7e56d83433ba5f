package builtin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/serve/jinja"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// params are the members that the requests of completions and of chats have in common. A member that is null is one
// that is absent.
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
	TopK              *int64             `json:"top_k"`
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
	LogprobIDs        []uint32           `json:"logprob_token_ids"`
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
	CacheSalt         salt            `json:"cache_salt"`
	Session           string          `json:"session_id"`
	Watermarking      *bool           `json:"watermarking"`
	skipReading       *bool           // of the prefix cache; nil leaves it to the engine
	KVTransfer        json.RawMessage `json:"kv_transfer_params"`
	CacheThreshold    *float64        `json:"cache_hit_threshold"` // this and the next one are of the simulator
	ExtraArgs         json.RawMessage `json:"extra_args"`
	ECTransfer        json.RawMessage `json:"ec_transfer_params"`
	XArgs             json.RawMessage `json:"vllm_xargs"`
	biases            []protocol.Bias // logit_bias
	constraint        object          // StructuredOutputsParams, its kind first; nil without one
	ofTools           bool            // the constraint is one of tools
	templateArgs      object          // of the chat template
	chats             bool            // the request is one of a chat
	logprobs          int             // candidates for each token, or protocol.NoLogprobs
	promptLogprobs    int             // likewise for the prompt
	max               *int            // tokens of an answer
	usage, continuous bool            // of a stream
	answers           int             // for each prompt
	onlyIDs           bool            // nothing is decoded
	keepTokens        bool            // the ids of the answer are needed at the end
	rank              int             // of the engine that the client wants, from 1; 0 is any
	tools             bool            // of /render: the request has tools
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

// A salt is a text that is not empty, as one that is would be none.
type salt string

func (s *salt) UnmarshalJSON(data []byte) error {
	if string(data) == `""` {
		return badRequest("", "cache_salt must not be empty")
	}
	return json.Unmarshal(data, (*string)(s))
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

// maxKept is how many bytes of a buffer are kept for the next request.
const maxKept = 64 << 10

// readJSON reads the body of a request.
func readJSON(r *http.Request, to any) *apiError {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if kind = strings.TrimSpace(kind); kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return badBody("want a request with the header Content-Type: application/json")
	}
	b := bodies.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= maxKept {
			bodies.Put(b)
		}
	}()
	b.Reset()
	if _, err := b.ReadFrom(r.Body); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return &apiError{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the body of the request has more than %d bytes", tooLarge.Limit)}
		}
		return badBody("read the body of the request: %v", err)
	}
	var syntax *json.SyntaxError
	var own *apiError
	switch err := json.Unmarshal(b.Bytes(), to); {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &syntax):
		before := b.Bytes()[:min(max(syntax.Offset-1, 0), int64(b.Len()))]
		wrong := badBody("the body is not JSON: %v at line %d column %d", syntax, 1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n'))
		wrong.place = strconv.Itoa(utf8.RuneCount(before))
		return wrong
	default:
		return badMember("", err)
	}
}

// readPython is readJSON with errors that name a member, as those of the Python frontend do.
func readPython(r *http.Request, to any) *apiError {
	err := readJSON(r, to)
	if err != nil && err.kind != "" {
		return err.ofPython(err.place)
	}
	return err
}

// badMember is the error for a member of another type. within is the member that was decoded, "" for the whole body.
func badMember(within string, err error) *apiError {
	var typ *json.UnmarshalTypeError
	if !errors.As(err, &typ) {
		return badBody("%s: %v", cmp.Or(within, "the body"), err)
	}
	path := strings.TrimPrefix(strings.TrimPrefix(typ.Field, "params."), "chat.") // of Go, not of the request
	if within != "" {
		path = strings.TrimSuffix(within+"."+path, ".")
	}
	wrong := badBody("%s: got the JSON %s, want %s", cmp.Or(path, "the body"), typ.Value, wanted(typ.Type.Kind()))
	wrong.place = path
	return wrong
}

// wanted names the values of JSON that a type takes.
func wanted(kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int32:
		return "a whole number of 32 bits"
	case reflect.Uint32:
		return "a whole number from 0 to 4294967295"
	case reflect.Int64:
		return "a whole number of 64 bits"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// missing is the error for members that have to be there.
func missing(names ...string) *apiError {
	return badBody("missing in the request: %s", strings.Join(names, ", "))
}

// readHeaders reads the headers that change a request.
func (s *Server) readHeaders(r *http.Request, p *params) {
	p.cacheThreshold = s.sim != nil && r.Header.Get("X-Cache-Threshold-Finish-Reason") == "true"
	number := func(name string) (n int64, ok bool) {
		n, err := strconv.ParseInt(r.Header.Get(name), 10, 32)
		return n, err == nil
	}
	if n, ok := number("X-Data-Parallel-Rank"); ok && n >= 0 && n < math.MaxInt32 {
		p.rank = int(n) + 1
	}
	if !protocol.RustReadsHeaders.Holds(s.opt.Group.Line()) {
		return
	}
	if n, ok := number("X-Vllm-Priority"); ok {
		p.Priority = int32(n)
	}
	p.Session = cmp.Or(p.Session, r.Header.Get("X-Session-Id"))
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
	line, asRust := s.opt.Group.Line(), s.sim == nil && !p.rpc && !p.pythonOnly
	if !p.onlyIDs && !protocol.RustReadsLogprobIDs.Holds(line) {
		p.LogprobIDs = nil
	}
	switch {
	case p.UseBeamSearch:
		return badRequest("use_beam_search", "use_beam_search is not supported.")
	case p.LengthPenalty != nil && !p.onlyIDs && !protocol.RustChecksAsPython.Holds(line):
		return badRequest("length_penalty", "length_penalty is not supported.")
	case p.SpacesBetween != nil && !*p.SpacesBetween && !p.onlyIDs:
		return badRequest("spaces_between_special_tokens", "spaces_between_special_tokens is not supported.")
	case p.TruncatePrompt != nil && asRust && !protocol.RustTruncates.Holds(line):
		return badRequest("truncate_prompt_tokens", "truncate_prompt_tokens is not supported.")
	case p.TruncatePrompt != nil && (*p.TruncatePrompt < -1 || int(*p.TruncatePrompt) > s.longestPrompt(p)):
		return badRequest("truncate_prompt_tokens", "truncate_prompt_tokens must be from -1 to %d", s.longestPrompt(p))
	case len(p.LogprobIDs) > 0 && p.logprobs == protocol.NoLogprobs && !p.onlyIDs:
		return badRequest("logprob_token_ids", "logprob_token_ids needs logprobs")
	case p.Echo && p.TruncatePrompt != nil:
		return badRequest("echo", "`echo=true` is not supported with `truncate_prompt_tokens`.")
	case p.TopK != nil && (*p.TopK < -1 || *p.TopK > math.MaxUint32):
		return badBody("top_k must be at least -1, and below 2^32, got %d", *p.TopK)
	case p.TopK != nil && *p.TopK < 0 && asRust && !protocol.RustTruncates.Holds(line):
		return badBody("top_k must be at least 0, got %d", *p.TopK)
	case len(p.Stop) > 4 && asRust && protocol.RustBoundsStops.Holds(line):
		return badRequest("", "stop has %d strings: at most 4 are allowed", len(p.Stop))
	case slices.Contains(p.Stop, ""):
		return badRequest("", "stop strings cannot be empty")
	case p.ThinkingBudget != nil && *p.ThinkingBudget < -1:
		return badRequest("", "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.")
	}
	if err := p.checkPromptLogprobs(); err != nil {
		return err
	}
	return p.checkSampling(s)
}

func (p *params) checkPromptLogprobs() (err *apiError) {
	if n := p.PromptLogprobs; n != nil && p.Stream && !p.rpc && (*n > 0 || *n == -1) {
		return badRequest("prompt_logprobs", "`prompt_logprobs` are not available when `stream=true`.")
	}
	p.promptLogprobs, err = candidateCount("prompt_logprobs", p.PromptLogprobs)
	return err
}

// candidateCount is how many candidates for each token a member asks for, as the engine has it: none without the
// member, and all for -1.
func candidateCount(member string, n *int32) (int, *apiError) {
	switch {
	case n == nil:
		return protocol.NoLogprobs, nil
	case *n < -1:
		return 0, badRequest(member, "%s must be at least 0, or -1 for all, got %d", member, *n)
	case *n == -1:
		return protocol.AllLogprobs, nil
	}
	return int(*n), nil
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
func intOf[T int32 | uint32 | int64](v *T) *int {
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
		{"repetition_penalty", p.RepetitionPenalty, math.SmallestNonzeroFloat64, math.MaxFloat32, "(0, 3.4e38]"},
	} {
		if v := bound.value; v != nil && (!(*v >= bound.lo && *v <= bound.hi)) {
			return badRequest("", "%s must be in %s, got %s", bound.name, bound.text, strconv.FormatFloat(*v, 'f', -1, 32))
		}
	}
	if err := p.checkLists(s); err != nil {
		return err
	}
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
			n = s.vocabulary
		}
		if n > maxLogprobs {
			return badRequest("", "requested %s of %d, which is greater than max allowed: %d", wanted.name, n, maxLogprobs)
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
	for _, list := range []struct {
		name string
		ids  []uint32
	}{{"stop_token_ids", p.StopTokenIDs}, {"allowed_token_ids", p.AllowedTokenIDs}, {"logprob_token_ids", p.LogprobIDs}} {
		if n := len(list.ids); n > maxListed/p.answers {
			return badRequest(list.name, "%s has %d ids: at most %d are allowed with n=%d", list.name, n, maxListed/p.answers, p.answers)
		}
		if err := inVocabulary(list.name, list.ids, s.vocabulary); err != nil {
			return err
		}
	}
	if n := len(p.LogitBias) + len(p.biases); n > maxBiases {
		return badRequest("logit_bias", "logit_bias has %d tokens: at most %d are allowed", n, maxBiases)
	}
	for _, id := range slices.Sorted(maps.Keys(p.LogitBias)) {
		token, wrong := strconv.ParseUint(strings.TrimPrefix(id, "+"), 10, 32)
		if wrong != nil {
			return badRequest("logit_bias", "logit_bias contains key(s) that are not valid token IDs: [%q]. Token IDs must be non-negative integers.", id)
		}
		p.biases = append(p.biases, protocol.Bias{Token: uint32(token), Logit: p.LogitBias[id]})
	}
	for _, bias := range p.biases {
		if err := inVocabulary("logit_bias", []uint32{bias.Token}, s.vocabulary); err != nil {
			return err
		}
	}
	if n := len(p.BadWords); n > maxBadWords {
		return badRequest("bad_words", "bad_words has %d words: at most %d are allowed", n, maxBadWords)
	}
	return nil
}

// longestPrompt is how many tokens truncate_prompt_tokens may leave.
func (s *Server) longestPrompt(p *params) int {
	if protocol.RustLeavesRoom.Holds(s.opt.Group.Line()) {
		return s.maxModelLen - or(p.max, 0)
	}
	return s.maxModelLen
}

// truncated are the last of the ids of a prompt, as many as truncate_prompt_tokens says.
func (p *params) truncated(ids []uint32) []uint32 {
	if n := or(p.TruncatePrompt, -1); n >= 0 && len(ids) > int(n) {
		return ids[len(ids)-int(n):]
	}
	return ids
}

// maxLogprobs is max_logprobs of vLLM's ModelConfig.
const maxLogprobs = 20

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
	// These are msgpack; nil without one.
	extra, media, constraint, reasoning []byte
}

// share makes what the requests of all answers have in common.
func (p *params) share(ctx context.Context, s *Server) (c shared, err *apiError) {
	left, line := maxBadTokens, s.opt.Group.Line()
	for _, word := range p.BadWords {
		// As it is, and behind a space where that has as many tokens (SamplingParams.update_from_tokenizer).
		trimmed := strings.TrimLeft(word, " \t\n")
		if protocol.RustChecksAsPython.Holds(line) {
			if word = trimmed; word == "" {
				return c, badRequest("", "bad_words has a word without tokens")
			}
		}
		plain, err := s.opt.Tokenizer.EncodeWithin(ctx, word, left)
		var spaced []uint32
		if err == nil {
			spaced, err = s.opt.Tokenizer.EncodeWithin(ctx, " "+trimmed, left+1)
		}
		switch {
		case errors.Is(err, tokenizer.ErrTooLong):
			return c, badRequest("bad_words", "bad_words has more than %d tokens", maxBadTokens)
		case err != nil:
			return c, errLeft
		}
		if len(plain) > 0 {
			c.badWords = append(c.badWords, plain)
		}
		if len(spaced) > 0 && len(spaced) == len(plain) && spaced[0] != plain[0] {
			c.badWords = append(c.badWords, spaced)
			left -= len(spaced)
		}
		left = max(left-len(plain), 0)
	}
	c.media, c.constraint = appendFeatures(nil, p.media), p.packed(line)
	if !s.local && !p.rpc && (protocol.RustSendsTemplateArgs.Holds(line) || p.chats && p.constraint != nil) {
		c.reasoning, _ = packJSON(toJSON(object{{"chat_template_kwargs", append(object{}, p.templateArgs...)}}))
	}
	c.extra, err = p.extraArgs(line)
	return c, err
}

// fill makes a request of the engine of the parameters, but for its prompt and its ids.
func (p *params) fill(s *Server, c *shared, r *player.EngineRequest, prompt []uint32) *apiError {
	room := s.maxModelLen - len(prompt)
	if err := s.sim.fits(p, len(prompt)); err != nil {
		return err
	}
	if p.pooling != nil && room >= 0 {
		r.HasSampling, r.Pooling, r.Priority, r.CacheSalt = false, p.pooling, int(p.Priority), string(p.CacheSalt)
		return nil
	}
	if room <= 0 {
		return s.tooLong(len(prompt))
	}
	r.MMFeatures, r.ReasoningArgs, r.DataParallelRank, r.SessionID = c.media, c.reasoning, p.rank-1, p.Session
	r.HasSampling, r.Priority, r.CacheSalt = true, int(p.Priority), string(p.CacheSalt)
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
	q.TopK = max(min(or(intOf(p.TopK), or(d.TopK, 0)), s.vocabulary), 0)
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
	slices.Sort(q.AllStops)
	q.IgnoreEOS, q.NoWatermark = p.IgnoreEOS, !or(p.Watermarking, true)
	q.HasSkipReading, q.SkipReading = p.skipReading != nil, isSet(p.skipReading)
	q.Logprobs, q.PromptLogprobs, q.LogprobTokenIDs = p.logprobs, p.promptLogprobs, p.LogprobIDs
	if len(p.LogprobIDs) > 0 {
		q.Logprobs = len(p.LogprobIDs)
	}
	if p.ThinkingBudget != nil {
		q.ThinkingBudget, q.HasThinkingBudget = *p.ThinkingBudget, true
	}
	q.AllowedTokenIDs, q.StructuredOutputs = p.AllowedTokenIDs, c.constraint
	if r := p.Repetition; r != nil {
		q.Repetition = protocol.Repetition{MaxSize: int(r.MaxSize), MinSize: int(r.MinSize), Count: int(r.Count)}
	}
	q.LogitBias, q.BadWords, q.ExtraArgs = p.biases, c.badWords, c.extra
	return nil
}

// encode returns the ids of a text, with the special tokens around it or without. The work ends when its client has
// left, and where the text has more tokens than the limit.
func (s *Server) encode(ctx context.Context, text string, special bool, limit int) ([]uint32, *apiError) {
	ids, err := s.opt.Tokenizer.EncodeWithin(ctx, text, limit)
	switch {
	case errors.Is(err, tokenizer.ErrTooLong):
		return nil, badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains more than %d input tokens. "+
			"Please reduce the length of the input prompt.", s.maxModelLen, limit)
	case err != nil:
		return nil, errLeft
	case !special:
		return ids, nil
	}
	before, after := s.opt.Tokenizer.Template()
	return slices.Concat(before, ids, after), nil
}

func (s *Server) tooLong(tokens int) *apiError {
	return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, which exceeds this limit even "+
		"without any output tokens. Please reduce the length of the input prompt.", s.maxModelLen, tokens)
}

// extraArgs are vllm_xargs or extra_args and the parameters of connectors as the engine gets them.
func (p *params) extraArgs(line string) ([]byte, *apiError) {
	var all object
	for _, of := range [...]struct {
		name string
		raw  json.RawMessage
		own  bool
	}{{"vllm_xargs", p.XArgs, true}, {"extra_args", p.ExtraArgs, true}, {"kv_transfer_params", p.KVTransfer, false}, {"ec_transfer_params", p.ECTransfer, false}} {
		if absent(of.raw) || of.name == "extra_args" && !(p.onlyIDs && protocol.RustScalesOut.Holds(line)) {
			continue
		}
		var value map[string]json.RawMessage
		if err := json.Unmarshal(of.raw, &value); err != nil {
			return nil, badMember(of.name, err)
		}
		if of.own {
			all = append(all, membersOf(of.raw)...)
		} else {
			all = append(all, member{of.name, of.raw})
		}
	}
	if all == nil {
		return nil, nil
	}
	packed, err := packJSON(toJSON(all))
	if err != nil || pack.Validate(packed) != nil {
		return nil, badRequest("", "the arguments for the engine are nested more than %d deep", pack.DefaultDepth)
	}
	return packed, nil
}

// packJSON returns JSON as msgpack. The members of objects keep their order.
func packJSON(text []byte) ([]byte, error) {
	v, err := jinja.FromJSON(text)
	if err != nil {
		return nil, err
	}
	return appendValue(nil, v), nil
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return pack.AppendBool(b, v)
	case int64:
		return pack.AppendInt(b, v)
	case float64:
		return pack.AppendFloat64(b, v)
	case string:
		return pack.AppendString(b, v)
	case *jinja.List:
		b = pack.AppendArrayHeader(b, len(v.Items))
		for _, item := range v.Items {
			b = appendValue(b, item)
		}
		return b
	case *jinja.Dict:
		b = pack.AppendMapHeader(b, v.Len())
		for key, item := range v.All() {
			b = appendValue(pack.AppendString(b, key), item)
		}
		return b
	}
	return pack.AppendNil(b)
}
