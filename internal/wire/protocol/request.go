package protocol

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Request type bytes, the first frame of a frontend's message.
// vllm/v1/engine/__init__.py EngineCoreRequestType, the same in every line.
const (
	TypeAdd         byte = 0x00
	TypeAbort       byte = 0x01
	TypeStartDPWave byte = 0x02
	TypeUtility     byte = 0x03
)

// Request is an EngineCoreRequest: one generation request as the frontend
// hands it to the engine (vllm/v1/engine/__init__.py). Decoding into the same
// value again reuses its slices.
type Request struct {
	ID               string   // unique in the engine
	ExternalID       string   // what the HTTP client sees; empty when absent
	PromptTokenIDs   []uint32 // nil when the prompt is embeddings
	Sampling         Sampling
	HasSampling      bool
	ArrivalTime      float64 // Unix seconds
	LoRA             *LoRA
	CacheSalt        string
	SessionID        string // of the conversation; empty when absent, as in lines before 0.28
	DataParallelRank int    // -1 when the frontend leaves the choice open
	ClientIndex      int    // which output socket takes the answer
	CurrentWave      int
	Priority         int // lower runs first
	Resumable        bool
	AbortImmediately bool
	Pooling          []byte // raw msgpack, nil when absent
	MMFeatures       []byte // raw msgpack, nil when absent
	PromptEmbeds     []byte // raw msgpack, nil when absent
	ReasoningArgs    []byte // raw msgpack map for the reasoning parser of the engine (reasoning_parser_kwargs), nil when absent
	TraceHeaders     []byte // raw msgpack map of HTTP headers that say which trace the request is part of, nil when absent
	Fields           int    // how many fields the frontend sent
	// Unverified says that decoding passed over values without a look at their types, so
	// that [Codec.Undecodable] may find something.
	Unverified bool
	// Aux are the auxiliary frames of the message, for what refers to them by number.
	// Decoding leaves them nil: they are the caller's to set.
	Aux [][]byte
	// Tail holds the raw values past those the line declares: a newer
	// frontend's fields, kept and not refused.
	Tail [][]byte
	// Receiver takes the outputs of a request that came from a frontend in this process. Without one, they are sent in
	// messages.
	Receiver Receiver
}

// A Receiver takes the outputs of one request. Its methods are called from the goroutine of the engine, which does nothing else
// until they return.
type Receiver interface {
	// Receive takes an output, which is valid during the call only. at is in seconds of the clock that stamps events. After
	// an output that finishes the request there is no other one.
	Receive(o *Output, at float64)
	// Full reports whether the request gets no more outputs for now.
	Full() bool
}

// loraFields are the fields of LoRARequest that every line has, at its begin.
var loraFields = []string{"lora_name", "lora_int_id", "lora_path"}

// LoRA names the adapter of a request. The shape of LoRARequest changed in
// 0.32, its first three fields never did (vllm/lora/request.py).
type LoRA struct {
	Name string
	ID   int64
	Path string
	// InPlace lets an engine load an adapter again that it has.
	InPlace bool
	Raw     []byte // the whole array; nil lets a codec write it from the others
}

// minRequestFields is the number of fields without a default, in every line.
const minRequestFields = 9

// A requestField is how a field of EngineCoreRequest is read and written.
type requestField struct {
	decode func(cur *pack.Cursor, r *Request) error
	append func(b []byte, c *Codec, r *Request) []byte
	needed bool // None is not a value of it
}

var requestFields = map[string]*requestField{
	"request_id": {
		decode: func(cur *pack.Cursor, r *Request) (err error) { r.ID, err = cur.StrString(); return err },
		append: func(b []byte, _ *Codec, r *Request) []byte { return pack.AppendString(b, r.ID) },
	},
	"prompt_token_ids": {decode: decodePrompt, append: func(b []byte, _ *Codec, r *Request) []byte {
		if r.PromptTokenIDs == nil {
			return pack.AppendNil(b)
		}
		return pack.AppendUint32s(b, r.PromptTokenIDs)
	}},
	"mm_features": rawRequestField(func(r *Request) *[]byte { return &r.MMFeatures }),
	"sampling_params": {
		decode: func(cur *pack.Cursor, r *Request) error { r.HasSampling = true; return decodeSampling(cur, r) },
		append: func(b []byte, c *Codec, r *Request) []byte { return c.appendSampling(b, r) },
	},
	"pooling_params": rawRequestField(func(r *Request) *[]byte { return &r.Pooling }),
	"arrival_time": {
		decode: func(cur *pack.Cursor, r *Request) (err error) { r.ArrivalTime, err = cur.Float(); return err },
		append: func(b []byte, _ *Codec, r *Request) []byte { return pack.AppendFloat64(b, r.ArrivalTime) },
		needed: true,
	},
	"lora_request": {
		decode: func(cur *pack.Cursor, r *Request) (err error) {
			r.Unverified = true
			r.LoRA, err = decodeLoRA(cur)
			return err
		},
		append: func(b []byte, c *Codec, r *Request) []byte { return c.AppendLoRA(b, r.LoRA) },
	},
	"cache_salt": textRequestField(func(r *Request) *string { return &r.CacheSalt }),
	"data_parallel_rank": {
		decode: func(cur *pack.Cursor, r *Request) (err error) { r.DataParallelRank, err = smallInt(cur); return err },
		append: func(b []byte, _ *Codec, r *Request) []byte { return appendCountOrNil(b, r.DataParallelRank) },
	},
	"prompt_embeds":           rawRequestField(func(r *Request) *[]byte { return &r.PromptEmbeds }),
	"client_index":            intRequestField(smallInt, func(r *Request) *int { return &r.ClientIndex }),
	"current_wave":            intRequestField(smallInt, func(r *Request) *int { return &r.CurrentWave }),
	"priority":                intRequestField(anyInt, func(r *Request) *int { return &r.Priority }),
	"trace_headers":           rawRequestField(func(r *Request) *[]byte { return &r.TraceHeaders }),
	"reasoning_parser_kwargs": rawRequestField(func(r *Request) *[]byte { return &r.ReasoningArgs }),
	"resumable":               flagRequestField(func(r *Request) *bool { return &r.Resumable }),
	"external_req_id":         textRequestField(func(r *Request) *string { return &r.ExternalID }),
	"abort_immediately":       flagRequestField(func(r *Request) *bool { return &r.AbortImmediately }),
	"session_id":              textRequestField(func(r *Request) *string { return &r.SessionID }),
}

func rawRequestField(at func(*Request) *[]byte) *requestField {
	return &requestField{decode: func(cur *pack.Cursor, r *Request) (err error) {
		r.Unverified = true
		*at(r), err = cur.Raw()
		return err
	}, append: func(b []byte, _ *Codec, r *Request) []byte { return appendRawOrNil(b, *at(r)) }}
}

func textRequestField(at func(*Request) *string) *requestField {
	return &requestField{decode: func(cur *pack.Cursor, r *Request) (err error) {
		*at(r), err = cur.StrString()
		r.Unverified = r.Unverified || !utf8.ValidString(*at(r)) // which a strict reader wants
		return err
	}, append: func(b []byte, _ *Codec, r *Request) []byte { return appendStringOrNil(b, *at(r)) }}
}

func intRequestField(read func(*pack.Cursor) (int, error), at func(*Request) *int) *requestField {
	return &requestField{
		decode: func(cur *pack.Cursor, r *Request) (err error) { *at(r), err = read(cur); return err },
		append: func(b []byte, _ *Codec, r *Request) []byte { return pack.AppendInt(b, int64(*at(r))) }, needed: true,
	}
}

func flagRequestField(at func(*Request) *bool) *requestField {
	return &requestField{
		decode: func(cur *pack.Cursor, r *Request) (err error) { *at(r), err = cur.Bool(); return err },
		append: func(b []byte, _ *Codec, r *Request) []byte { return pack.AppendBool(b, *at(r)) }, needed: true,
	}
}

func decodePrompt(cur *pack.Cursor, r *Request) (err error) {
	if r.PromptTokenIDs, err = cur.Uint32s(r.PromptTokenIDs); r.PromptTokenIDs == nil {
		r.PromptTokenIDs = []uint32{} // an empty prompt is not one of embeddings
	}
	return err
}

// laterRequestFields are those that not every line has.
var laterRequestFields = map[string]bool{"session_id": true} // since 0.28

// requestLayout is EngineCoreRequest of a line.
type requestLayout struct {
	fields   []*requestField // nil for one that requests never set
	defaults [][]byte        // by position, of those
}

func (c *Codec) compileRequest() error {
	s, err := c.profile.needStruct("EngineCoreRequest", "array")
	if err != nil {
		return err
	}
	l := requestLayout{fields: make([]*requestField, len(s.Fields)), defaults: make([][]byte, len(s.Fields))}
	found := 0
	for i, f := range s.Fields {
		l.fields[i] = requestFields[f.Name]
		switch {
		case l.fields[i] == nil:
			if l.defaults[i], err = c.defaultOf("EngineCoreRequest", f); err != nil {
				return err
			}
		case !laterRequestFields[f.Name]:
			found++
		}
	}
	if found+len(laterRequestFields) != len(requestFields) || s.Index("request_id") != 0 {
		return fmt.Errorf("wire profile %s: EngineCoreRequest lacks a field this codec reads", c.profile.Line)
	}
	c.request = l
	c.lora, err = c.compileArray("LoRARequest", loraFields...)
	return err
}

// DecodeRequest reads the payload of an ADD message into r. Auxiliary frames
// hold tensors, which the request refers to by number, and are not needed
// here. A request shorter than the line's is accepted down to the fields
// without a default; a longer one keeps its Tail.
//
// On error, r.ID and r.ClientIndex hold what could be read before the bad
// field, so that the sender can be answered.
func (c *Codec) DecodeRequest(payload []byte, r *Request) error {
	r.Reset()
	cur := pack.NewCursor(payload)
	n, err := cur.ArrayLen()
	if err != nil {
		r.ID = truncatedID(payload)
		return fmt.Errorf("EngineCoreRequest: %w", err)
	}
	r.Fields = n
	for i := range n {
		if err := c.decodeRequestField(&cur, i, r); err != nil {
			return fmt.Errorf("EngineCoreRequest.%s: %w", c.requestFieldName(i), err)
		}
	}
	if n < minRequestFields {
		return fmt.Errorf("EngineCoreRequest: %d fields, the line %s requires %d", n, c.profile.Line, minRequestFields)
	}
	if !cur.Done() {
		return fmt.Errorf("EngineCoreRequest: %d bytes after the message", len(payload)-cur.Offset())
	}
	return nil
}

// truncatedID reads the request id of a message that ends before the fields it
// announces, or returns "": the id comes first, and the sender waits for an
// answer.
func truncatedID(payload []byte) string {
	if len(payload) == 0 {
		return ""
	}
	header := map[byte]int{0xdc: 3, 0xdd: 5}[payload[0]] // array 16, array 32
	if payload[0]&0xf0 == 0x90 {                         // fixarray
		header = 1
	}
	if header == 0 || header > len(payload) {
		return ""
	}
	cur := pack.NewCursor(payload[header:])
	id, err := cur.StrString()
	if err != nil {
		return ""
	}
	return id
}

func (c *Codec) requestFieldName(i int) string {
	if i < len(c.request.fields) {
		return c.profile.Structs["EngineCoreRequest"].Fields[i].Name
	}
	return fmt.Sprintf("[%d]", i)
}

// Reset makes r a request with the defaults of SamplingParams. It keeps the memory of its slices.
func (r *Request) Reset() {
	*r = Request{
		PromptTokenIDs:   r.PromptTokenIDs[:0],
		Sampling:         defaultSampling(r.Sampling.StopTokenIDs[:0], r.Sampling.AllStops[:0]),
		DataParallelRank: -1,
	}
}

func (c *Codec) decodeRequestField(cur *pack.Cursor, i int, r *Request) (err error) {
	if i >= len(c.request.fields) {
		raw, err := cur.Raw()
		if err == nil {
			r.Tail = append(r.Tail, raw)
		}
		return err
	}
	field := c.request.fields[i]
	switch {
	case i > 0 && cur.Nil():
		if field == requestFields["prompt_token_ids"] {
			r.PromptTokenIDs = nil
		}
		r.Unverified = r.Unverified || field != nil && field.needed
		return nil
	case field == nil:
		r.Unverified = true
		return cur.Skip()
	}
	return field.decode(cur, r)
}

// smallInt reads a count or an index: 0 to 2^31-1.
func smallInt(cur *pack.Cursor) (int, error) {
	v, err := cur.Int()
	if err == nil && (v < 0 || v > 1<<31-1) {
		return 0, fmt.Errorf("%d is out of range", v)
	}
	return int(v), err
}

// anyInt reads a signed 64-bit integer.
func anyInt(cur *pack.Cursor) (int, error) {
	v, err := cur.Int()
	return int(v), err
}

func decodeLoRA(cur *pack.Cursor) (*LoRA, error) {
	raw, err := cur.Raw()
	if err != nil {
		return nil, err
	}
	return DecodeLoRA(raw)
}

// DecodeLoRA reads a LoRARequest, of a request or of an add_lora call.
func DecodeLoRA(raw []byte) (*LoRA, error) {
	in := pack.NewCursor(raw)
	n, err := in.ArrayLen()
	if err != nil {
		return nil, err
	}
	if n < 2 {
		return nil, fmt.Errorf("LoRARequest has %d fields, at least lora_name and lora_int_id are required", n)
	}
	l := &LoRA{Raw: raw}
	if l.Name, err = in.StrString(); err != nil {
		return nil, fmt.Errorf("lora_name: %w", err)
	}
	if l.ID, err = in.Int(); err != nil {
		return nil, fmt.Errorf("lora_int_id: %w", err)
	}
	if n > 2 && !in.Nil() {
		if l.Path, err = in.StrString(); err != nil {
			return nil, fmt.Errorf("lora_path: %w", err)
		}
	}
	return l, nil
}

// DecodeAbort reads the payload of an ABORT message: the ids to drop.
func DecodeAbort(payload []byte) ([]string, error) {
	cur := pack.NewCursor(payload)
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, fmt.Errorf("abort: %w", err)
	}
	ids := make([]string, 0, n)
	for i := range n {
		id, err := cur.StrString()
		if err != nil {
			return nil, fmt.Errorf("abort: id %d: %w", i, err)
		}
		ids = append(ids, id)
	}
	if !cur.Done() {
		return nil, fmt.Errorf("abort: %d bytes after the message", len(payload)-cur.Offset())
	}
	return ids, nil
}

// AppendAbort writes the payload of an ABORT message.
func AppendAbort(b []byte, ids ...string) []byte {
	b = pack.AppendArrayHeader(b, len(ids))
	for _, id := range ids {
		b = pack.AppendString(b, id)
	}
	return b
}

// DecodeStartWave reads the payload of START_DP_WAVE, which the data-parallel
// coordinator sends: the wave, and the engine that already knows, or -1
// (vllm/v1/engine/coordinator.py). Python's frontends before 0.33 write an identity in
// place of the engine's index, which no engine takes for its own.
func DecodeStartWave(payload []byte) (wave, exclude int, err error) {
	cur := pack.NewCursor(payload)
	n, err := cur.ArrayLen()
	if err != nil {
		return 0, 0, fmt.Errorf("start_dp_wave: %w", err)
	}
	if n != 2 {
		return 0, 0, fmt.Errorf("start_dp_wave: %d values, want [wave, engine_index]", n)
	}
	if wave, err = smallInt(&cur); err != nil {
		return 0, 0, fmt.Errorf("start_dp_wave: wave: %w", err)
	}
	switch exclude = -1; {
	case cur.Nil():
	case cur.Kind() == pack.Bin:
		_, err = cur.Bin()
	default:
		exclude, err = smallInt(&cur)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("start_dp_wave: engine_index: %w", err)
	}
	if !cur.Done() {
		return 0, 0, fmt.Errorf("start_dp_wave: %d bytes after the message", len(payload)-cur.Offset())
	}
	return wave, exclude, nil
}

// Sampling holds the members of SamplingParams that decide what an engine core
// must answer (vllm/sampling_params.py). Others are kept in Raw.
type Sampling struct {
	MaxTokens      int  // 0 when HasMaxTokens is false
	HasMaxTokens   bool // the key was there and not nil
	MinTokens      int
	StopTokenIDs   []uint32
	EOSTokenID     int64 // -1 when absent: ignore_eos
	IgnoreEOS      bool
	Logprobs       int // -1 none, -2 the whole vocabulary, else how many besides the sampled token
	PromptLogprobs int // as Logprobs
	// LogprobTokenIDs are the ids whose log-probabilities are wanted in place of the
	// most likely ones; Logprobs is then how many they are.
	LogprobTokenIDs []uint32
	// PromptScores asks for the log-probabilities of ids at places of the prompt after
	// PromptScoreStart (0.31 and later): a raw msgpack value for [DecodePromptScores],
	// nil when absent.
	PromptScores     []byte
	PromptScoreStart int
	// SkipReading, with HasSkipReading, says whether the prompt is looked up in the
	// prefix cache; see [Sampling.SkipsCache].
	SkipReading, HasSkipReading bool
	// AllowedTokenIDs are the only ids that may be sampled; none allows all of them.
	AllowedTokenIDs []uint32
	// BadWords are sequences of ids: after all but the last one, that one is not sampled.
	BadWords [][]uint32
	// LogitBias is what is added to the logits of ids, in the order in which it was sent.
	LogitBias []Bias
	// TopK, TopP and MinP cut off what is not likely; 0 and a TopP of 1 cut off nothing.
	TopK       int
	TopP, MinP float64
	// FrequencyPenalty, PresencePenalty and RepetitionPenalty (0 means 1) are written and not read: they change logits,
	// which an engine without weights does not have.
	FrequencyPenalty, PresencePenalty, RepetitionPenalty float64
	// AllStops are the ids that are not sampled before MinTokens are out; none means
	// StopTokenIDs and EOSTokenID.
	AllStops []uint32
	// Repetition ends a request that repeats itself.
	Repetition Repetition
	// StructuredOutputs is the raw msgpack map of what constrains the output, nil when
	// absent.
	StructuredOutputs []byte
	// ThinkingBudget, with HasThinkingBudget, is thinking_token_budget, which is written and not read.
	ThinkingBudget int64
	// NoWatermark is watermarking: false, likewise.
	NoWatermark       bool
	HasThinkingBudget bool
	Temperature       float64
	Seed              int64
	HasSeed           bool
	ExtraArgs         []byte // raw msgpack map, nil when absent
	Raw               []byte // the whole map
}

// Bias is what is added to the logit of an id.
type Bias struct {
	Token uint32
	Logit float64
}

// Repetition is RepetitionDetectionParams (vllm/sampling_params.py): a request ends when
// its last tokens are a pattern of MinSize to MaxSize tokens, Count times. MaxSize 0 looks
// for none.
type Repetition struct {
	MaxSize int `wire:"max_pattern_size"`
	MinSize int `wire:"min_pattern_size"`
	Count   int `wire:"min_count"`
}

// SkipsCache reports whether the prompt is computed anew, whatever of it the prefix cache
// has: as the request says, else where something is to be said of each of its tokens
// (vllm/sampling_params.py __post_init__).
func (s *Sampling) SkipsCache() bool {
	if s.HasSkipReading {
		return s.SkipReading
	}
	return s.PromptLogprobs != NoLogprobs || s.PromptScores != nil
}

// NoLogprobs and AllLogprobs are the special values of Sampling.Logprobs.
const (
	NoLogprobs  = -1
	AllLogprobs = -2
)

// defaultMaxTokens is SamplingParams.max_tokens when the key is absent
// (vllm/sampling_params.py).
const defaultMaxTokens = 16

// defaultSampling is SamplingParams without a key. stops and all are the buffers for the
// ids that stop.
func defaultSampling(stops, all []uint32) Sampling {
	return Sampling{
		MaxTokens: defaultMaxTokens, HasMaxTokens: true, EOSTokenID: -1,
		Logprobs: NoLogprobs, PromptLogprobs: NoLogprobs, Temperature: 1, TopP: 1,
		StopTokenIDs: stops, AllStops: all,
	}
}

func decodeSampling(cur *pack.Cursor, r *Request) error {
	start, s := *cur, &r.Sampling
	n, err := cur.MapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := cur.Str()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		if err := decodeSamplingValue(cur, key, r); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if s.Logprobs == NoLogprobs && len(s.LogprobTokenIDs) > 0 {
		s.Logprobs = len(s.LogprobTokenIDs) // vllm/sampling_params.py num_logprobs
	}
	if len(s.AllStops) == 0 {
		s.AllStops = s.appendStops(s.AllStops)
	}
	size := cur.Offset() - start.Offset()
	s.Raw = start.Rest()[:size:size]
	return nil
}

// appendStops adds the stop token ids and the end of sequence.
func (s *Sampling) appendStops(ids []uint32) []uint32 {
	ids = append(ids, s.StopTokenIDs...)
	if s.EOSTokenID >= 0 && s.EOSTokenID <= math.MaxUint32 && !slices.Contains(ids, uint32(s.EOSTokenID)) {
		ids = append(ids, uint32(s.EOSTokenID))
	}
	return ids
}

func decodeSamplingValue(cur *pack.Cursor, key []byte, r *Request) error {
	if cur.Nil() {
		if string(key) == "max_tokens" {
			r.Sampling.MaxTokens, r.Sampling.HasMaxTokens = 0, false
		} else {
			r.Unverified = true
		}
		return nil
	}
	if decode := samplingKeys[string(key)]; decode != nil {
		return decode(cur, r)
	}
	if kind, known := passedKeys[string(key)]; !known || cur.Kind() != kind {
		r.Unverified = true
	}
	return cur.Skip()
}

// samplingKeys are those of SamplingParams that decide what an engine core must answer.
var samplingKeys = map[string]func(cur *pack.Cursor, r *Request) error{
	"max_tokens":     samplingKey(smallInt, func(s *Sampling) *int { return &s.MaxTokens }),
	"min_tokens":     samplingKey(smallInt, func(s *Sampling) *int { return &s.MinTokens }),
	"_eos_token_id":  samplingKey((*pack.Cursor).Int, func(s *Sampling) *int64 { return &s.EOSTokenID }),
	"ignore_eos":     samplingKey((*pack.Cursor).Bool, func(s *Sampling) *bool { return &s.IgnoreEOS }),
	"temperature":    samplingKey((*pack.Cursor).Float, func(s *Sampling) *float64 { return &s.Temperature }),
	"top_k":          samplingKey(anyInt, func(s *Sampling) *int { return &s.TopK }),
	"top_p":          samplingKey((*pack.Cursor).Float, func(s *Sampling) *float64 { return &s.TopP }),
	"min_p":          samplingKey((*pack.Cursor).Float, func(s *Sampling) *float64 { return &s.MinP }),
	"stop_token_ids": func(cur *pack.Cursor, r *Request) error { return stopIDs(cur, &r.Sampling.StopTokenIDs) },
	// What is masked until min_tokens are out.
	"_all_stop_token_ids": func(cur *pack.Cursor, r *Request) error { return stopIDs(cur, &r.Sampling.AllStops) },
	"seed": func(cur *pack.Cursor, r *Request) (err error) {
		r.Sampling.HasSeed = true
		r.Sampling.Seed, err = cur.Int()
		return err
	},
	// Which log-probabilities are wanted, and what follows from such a wish.
	"logprobs":             samplingKey(logprobsCount, func(s *Sampling) *int { return &s.Logprobs }),
	"prompt_logprobs":      samplingKey(logprobsCount, func(s *Sampling) *int { return &s.PromptLogprobs }),
	"logprob_token_ids":    samplingKey(readUint32s, func(s *Sampling) *[]uint32 { return &s.LogprobTokenIDs }),
	"prompt_logprob_start": samplingKey(smallInt, func(s *Sampling) *int { return &s.PromptScoreStart }),
	"skip_reading_prefix_cache": func(cur *pack.Cursor, r *Request) (err error) {
		r.Sampling.HasSkipReading = true
		r.Sampling.SkipReading, err = cur.Bool()
		return err
	},
	// Which ids may be sampled.
	"allowed_token_ids": samplingKey(readUint32s, func(s *Sampling) *[]uint32 { return &s.AllowedTokenIDs }),
	"_bad_words_token_ids": samplingKey(func(cur *pack.Cursor) ([][]uint32, error) {
		return readList(cur, readUint32s)
	}, func(s *Sampling) *[][]uint32 { return &s.BadWords }),
	"logit_bias": samplingKey(decodeLogitBias, func(s *Sampling) *[]Bias { return &s.LogitBias }),
	// What is kept as it is.
	"extra_args":               rawSamplingKey(func(s *Sampling) *[]byte { return &s.ExtraArgs }),
	"structured_outputs":       rawSamplingKey(func(s *Sampling) *[]byte { return &s.StructuredOutputs }),
	"prompt_logprob_token_ids": rawSamplingKey(func(s *Sampling) *[]byte { return &s.PromptScores }),
	"repetition_detection": func(cur *pack.Cursor, r *Request) error {
		r.Unverified = true
		raw, err := cur.Raw()
		v, to := ViewOf(raw), &r.Sampling.Repetition
		to.MaxSize, _ = v.Field("max_pattern_size").small()
		to.MinSize, _ = v.Field("min_pattern_size").small()
		to.Count, _ = v.Field("min_count").small()
		return err
	},
}

func samplingKey[T any](read func(*pack.Cursor) (T, error), at func(*Sampling) *T) func(*pack.Cursor, *Request) error {
	return func(cur *pack.Cursor, r *Request) (err error) { *at(&r.Sampling), err = read(cur); return err }
}

func rawSamplingKey(at func(*Sampling) *[]byte) func(*pack.Cursor, *Request) error {
	return func(cur *pack.Cursor, r *Request) (err error) {
		r.Unverified = true
		*at(&r.Sampling), err = cur.Raw()
		return err
	}
}

func readUint32s(cur *pack.Cursor) ([]uint32, error) { return cur.Uint32s(nil) }

// passedKeys decide nothing; every line wants them of these kinds.
var passedKeys = map[string]pack.Kind{
	"frequency_penalty": pack.Float, "presence_penalty": pack.Float, "repetition_penalty": pack.Float,
	"watermarking": pack.Bool, "routed_experts_prompt_start": pack.Int,
}

// stopIDs reads ids to stop at. An id that no token has, such as -1, is left out: engines serve such a request, and never stop there.
func stopIDs(cur *pack.Cursor, ids *[]uint32) (err error) {
	before, room := *cur, (*ids)[:0]
	if *ids, err = cur.Uint32s(room); err == nil {
		return nil
	}
	*cur, *ids = before, room
	all, err := readList(cur, (*pack.Cursor).Int)
	for _, id := range all {
		if id >= 0 && id <= math.MaxUint32 {
			*ids = append(*ids, uint32(id))
		}
	}
	return err
}

func decodeLogitBias(cur *pack.Cursor) ([]Bias, error) {
	n, err := cur.MapLen()
	if err != nil || n == 0 {
		return nil, err
	}
	var biases []Bias
	for range n {
		token, err := smallInt(cur)
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		logit, err := cur.Float()
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", token, err)
		}
		biases = append(biases, Bias{uint32(token), logit})
	}
	return biases, nil
}

// logprobsCount reads logprobs or prompt_logprobs; -1 on the wire asks for the
// whole vocabulary.
func logprobsCount(cur *pack.Cursor) (int, error) {
	v, err := cur.Int()
	switch {
	case err != nil:
		return NoLogprobs, err
	case v == -1:
		return AllLogprobs, nil
	case v < 0 || v > 1<<20:
		return NoLogprobs, fmt.Errorf("%d is out of range", v)
	}
	return int(v), nil
}
