package protocol

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// FinishReason says why a request ended. The zero value is [Unfinished], so
// that a forgotten field never ends a stream.
type FinishReason uint8

// Finish reasons; the wire code is the value minus one
// (vllm/v1/engine/__init__.py FinishReason). Any other code ends a Rust
// frontend for good.
const (
	Unfinished FinishReason = iota
	FinishStop
	FinishLength
	FinishAbort
	FinishError
	FinishRepetition
)

// FinishFromWire converts a wire code, 0 to 4.
func FinishFromWire(code int64) (FinishReason, error) {
	if code < 0 || code > 4 {
		return Unfinished, fmt.Errorf("finish_reason %d: want 0 to 4", code)
	}
	return FinishReason(code + 1), nil
}

var finishNames = [...]string{"unfinished", "stop", "length", "abort", "error", "repetition"}

func (f FinishReason) String() string {
	if int(f) < len(finishNames) {
		return finishNames[f]
	}
	return fmt.Sprintf("finish_reason(%d)", uint8(f))
}

// EngineCoreEvent types (vllm/v1/engine/__init__.py EngineCoreEventType).
const (
	EventQueued    = 1
	EventScheduled = 2
	EventPreempted = 3
)

// Event is an EngineCoreEvent. Timestamp is in seconds of the clock that
// stamps the envelopes: frontends subtract the two.
type Event struct {
	Type      int     `wire:"type"`
	Timestamp float64 `wire:"timestamp"`
}

// Output is what one request gets in one engine step.
type Output struct {
	Tokens         []uint32
	Finish         FinishReason
	StopToken      int64  // with HasStopToken: the stop_token_ids member that was hit
	HasStopToken   bool   //
	StopString     string // a worded stop reason, such as "repetition_detected"
	Logprobs       *Logprobs
	PromptLogprobs *Logprobs
	PromptScores   *Tensor // of prompt_logprob_token_ids: rows by ids; since 0.31
	Pooling        *Tensor // what a pooling request gets, and no tokens
	Events         []Event
	Prefill        *PrefillStats  // on the first output only
	KVTransfer     []byte         // raw msgpack map
	TraceHeaders   []byte         // raw msgpack map, as in the request
	Drafts         *RequestDrafts // on the last output only
	CacheMisses    []string       // hashes of images that the frontend only named, and the engine does not have: with FinishError, since 0.28
	Error          *RequestError  // with FinishError, written by lines that know the field (0.33)
}

// RequestError explains a FinishError (vllm/outputs.py, since 0.33). Code
// "validation_error" becomes HTTP 400, Retryable HTTP 503, others 500.
type RequestError struct {
	Code      string `wire:"code"`
	Message   string `wire:"message"`
	Retryable bool   `wire:"retryable"`
}

// DecodeRequestError reads the error of an output, a msgpack map. Keys that are missing
// or of another kind are empty, as in a frontend that does not look at them.
func DecodeRequestError(raw []byte) (RequestError, error) {
	v := ViewOf(raw)
	if v.Kind() != pack.Map {
		return RequestError{}, fmt.Errorf("error of an output: a map was expected, found %s", pack.Format(raw))
	}
	retryable, _ := v.Field("retryable").Bool()
	return RequestError{Code: v.Field("code").Text(), Message: v.Field("message").Text(), Retryable: retryable}, nil
}

// RequestDrafts counts the speculative decoding of one request (vllm/v1/metrics/stats.py RequestSpecDecodeMetrics, since 0.29).
type RequestDrafts struct {
	SpecTokens   int   `wire:"num_spec_tokens"` // draft length K
	Histogram    []int `wire:"histogram"`       // K+1 entries: steps in which so many drafted tokens were accepted
	DraftTokens  int   `wire:"num_draft_tokens"`
	StepAccepted []int `wire:"per_step_accepted"` // of each step, when asked for in detail
	StepDrafted  []int `wire:"per_step_drafted"`
}

// PrefillStats counts prompt tokens (vllm/v1/metrics/stats.py). Computed plus
// cached is the prompt; cached is local plus external.
type PrefillStats struct {
	Prompt         int `wire:"num_prompt_tokens"`
	Computed       int `wire:"num_computed_tokens"`
	Cached         int `wire:"num_cached_tokens"`
	LocalCached    int `wire:"num_local_cached_tokens"`
	ExternalCached int `wire:"num_external_cached_tokens"`
	CacheCreation  int `wire:"num_cache_creation_tokens"` // tokens of newly stored full blocks, since 0.26
}

// Errors of [Batch.Add] and [Batch.Finish]: what a frontend would not survive.
var (
	ErrEmptyBatch      = errors.New("an envelope with no outputs, statistics or finished requests ends a frontend")
	ErrStreamFinished  = errors.New("the request has already finished")
	ErrLogprobsMissing = errors.New("the request asked for logprobs and the output has none")
)

// Stream is the engine's side of one request: what must be remembered to
// answer it. It belongs to one goroutine.
type Stream struct {
	id             string
	head           []byte // array header and request id, encoded once
	logprobs       bool
	promptLogprobs bool
	started        bool
	finished       bool
	receiver       Receiver
}

// NewStream prepares the answers to a decoded request.
func (c *Codec) NewStream(r *Request) *Stream {
	s := &Stream{
		id:             r.ID,
		logprobs:       r.Sampling.Logprobs != NoLogprobs,
		promptLogprobs: r.Sampling.PromptLogprobs != NoLogprobs,
		receiver:       r.Receiver,
	}
	s.head = pack.AppendArrayHeader(make([]byte, 0, len(r.ID)+8), len(c.output.fields))
	s.head = pack.AppendString(s.head, r.ID)
	return s
}

// ID returns the request id.
func (s *Stream) ID() string { return s.id }

// Receiver takes the outputs of the request; nil if they are sent in messages.
func (s *Stream) Receiver() Receiver { return s.receiver }

// check refuses outputs that end or confuse a frontend. An error finish needs
// no logprobs: real engines send none with it.
func (s *Stream) check(o *Output) error {
	switch {
	case s.finished:
		return ErrStreamFinished
	case o.Pooling.check() != nil:
		return fmt.Errorf("pooling_output: %w", o.Pooling.check())
	case o.PromptScores.check() != nil:
		return fmt.Errorf("prompt_token_id_logprobs: %w", o.PromptScores.check())
	case o.Finish > FinishRepetition:
		return fmt.Errorf("%v is not a finish reason", o.Finish)
	case o.Finish == FinishError, o.Finish == FinishAbort:
		return checkLogprobs(o)
	case s.logprobs && len(o.Tokens) > 0 && o.Logprobs == nil:
		return ErrLogprobsMissing
	case s.promptLogprobs && !s.started && o.PromptLogprobs == nil:
		return fmt.Errorf("prompt_logprobs: %w", ErrLogprobsMissing)
	}
	return checkLogprobs(o)
}

// An outputField is how a field of EngineCoreOutput after the first two is written, and where it is kept when it is read.
type outputField struct {
	append func(out []byte, b *Batch, o *Output) []byte
	raw    func(o *RequestOutput) *[]byte // nil for finish_reason
}

var outputFields = map[string]*outputField{
	"new_logprobs": {func(out []byte, b *Batch, o *Output) []byte {
		return b.appendLogprobs(out, o.Logprobs, numpyTypes, b.codec.output.sampled)
	}, func(o *RequestOutput) *[]byte { return &o.Logprobs }},
	"new_prompt_logprobs_tensors": {func(out []byte, b *Batch, o *Output) []byte {
		return b.appendLogprobs(out, o.PromptLogprobs, torchTypes, b.codec.output.prompt)
	}, func(o *RequestOutput) *[]byte { return &o.PromptLogprobs }},
	"prompt_token_id_logprobs": {func(out []byte, b *Batch, o *Output) []byte {
		return b.appendFloats(out, o.PromptScores)
	}, func(o *RequestOutput) *[]byte { return &o.PromptScores }},
	"pooling_output": {func(out []byte, b *Batch, o *Output) []byte {
		return b.appendFloats(out, o.Pooling)
	}, func(o *RequestOutput) *[]byte { return &o.Pooling }},
	"finish_reason": {append: func(out []byte, _ *Batch, o *Output) []byte { return appendCountOrNil(out, int(o.Finish)-1) }},
	"stop_reason": {func(out []byte, _ *Batch, o *Output) []byte {
		if o.HasStopToken {
			return pack.AppendInt(out, o.StopToken)
		}
		return appendStringOrNil(out, o.StopString)
	}, func(o *RequestOutput) *[]byte { return &o.StopReason }},
	"events": {func(out []byte, b *Batch, o *Output) []byte {
		return b.codec.appendEvents(out, o.Events)
	}, func(o *RequestOutput) *[]byte { return &o.Events }},
	"kv_transfer_params": {func(out []byte, _ *Batch, o *Output) []byte {
		return appendRawOrNil(out, o.KVTransfer)
	}, func(o *RequestOutput) *[]byte { return &o.KVTransfer }},
	"prefill_stats": {func(out []byte, b *Batch, o *Output) []byte {
		return appendStruct(out, b.codec, b.codec.prefill, o.Prefill)
	}, func(o *RequestOutput) *[]byte { return &o.Prefill }},
	"trace_headers": {func(out []byte, _ *Batch, o *Output) []byte {
		return appendRawOrNil(out, o.TraceHeaders)
	}, func(o *RequestOutput) *[]byte { return &o.TraceHeaders }},
	"spec_decode_metrics": {func(out []byte, b *Batch, o *Output) []byte {
		return appendStruct(out, b.codec, b.codec.drafts, o.Drafts)
	}, func(o *RequestOutput) *[]byte { return &o.Drafts }},
	"mm_cache_miss_hashes": {func(out []byte, _ *Batch, o *Output) []byte {
		if o.CacheMisses == nil {
			return pack.AppendNil(out)
		}
		return appendStrings(out, o.CacheMisses)
	}, func(o *RequestOutput) *[]byte { return &o.CacheMisses }},
	"error": {func(out []byte, b *Batch, o *Output) []byte {
		return appendStruct(out, b.codec, b.codec.failure, o.Error)
	}, func(o *RequestOutput) *[]byte { return &o.Error }},
}

// outputLayout is EngineCoreOutput of a line: one op a field, and the bytes of
// the fields after new_token_ids when nothing special is in them, which is all
// but a request's first and last output.
type outputLayout struct {
	fields    []*outputField // nil for the first two, and for one that is always at its default
	consts    [][]byte       // by position: the default's bytes
	kinds     []pack.Kind    // of the defaults; Nil: the field may be absent
	plain     []byte
	quiet     bool // plain says nothing: reading it leaves a RequestOutput as it is
	finishAt  int  // offset of finish_reason in plain
	hasError  bool
	hasDrafts bool
	hasMisses bool
	sampled   arrayLayout
	prompt    arrayLayout
}

func (c *Codec) compileOutput() error {
	s, err := c.profile.needStruct("EngineCoreOutput", "array")
	if err != nil {
		return err
	}
	l := outputLayout{finishAt: -1, quiet: true}
	for i, f := range s.Fields {
		if i < 2 {
			l.fields, l.consts, l.kinds = append(l.fields, nil), append(l.consts, nil), append(l.kinds, pack.Invalid)
			continue
		}
		def, err := c.defaultOf("EngineCoreOutput", f)
		if err != nil {
			return err
		}
		if f.Name == "finish_reason" {
			l.finishAt = len(l.plain)
		}
		l.plain = append(l.plain, def...)
		field, cur := outputFields[f.Name], pack.NewCursor(def)
		l.fields, l.consts, l.kinds = append(l.fields, field), append(l.consts, def), append(l.kinds, cur.Kind())
		l.quiet = l.quiet && (field == nil || cur.Kind() == pack.Nil)
	}
	l.hasError, l.hasDrafts, l.hasMisses = s.Index("error") > 0, s.Index("spec_decode_metrics") > 0, s.Index("mm_cache_miss_hashes") > 0
	if l.finishAt < 0 || s.Index("request_id") != 0 || s.Index("new_token_ids") != 1 {
		return fmt.Errorf("wire profile %s: EngineCoreOutput does not begin with request_id, new_token_ids, or lacks finish_reason", c.profile.Line)
	}
	c.output = l
	return nil
}

// compileOutputParts compiles the structs inside an output.
func (c *Codec) compileOutputParts() (err error) {
	if c.output.sampled, err = c.compileArray("LogprobsLists", "logprob_token_ids", "logprobs", "sampled_token_ranks"); err != nil {
		return err
	}
	if c.output.prompt, err = c.compileArray("LogprobsTensors", "logprob_token_ids", "logprobs", "selected_token_ranks"); err != nil {
		return err
	}
	return err
}

// maxErrorText is how many characters of an error are sent.
const maxErrorText = 4096

// errorText makes the text of an error, which may repeat what a client sent, one that any client can read: a frontend
// that is sent a string that is not UTF-8 ends.
func errorText(text string) string {
	return safetext.Clip(strings.ToValidUTF8(text, "\ufffd"), maxErrorText)
}

// ClientMessage is one message for a client's output socket: the msgpack frame
// and its auxiliary buffers.
type ClientMessage [][]byte

// CoordinatorMessage is one message for the data-parallel coordinator. It is a
// type of its own because a wave field on a client socket ends a Rust frontend.
type CoordinatorMessage [][]byte

// EngineDead is the single frame that an engine sends to every output socket
// when it dies. It is not msgpack (vllm/v1/engine/core.py ENGINE_CORE_DEAD).
const EngineDead = "ENGINE_CORE_DEAD"

// headroom is the space kept before the outputs, whose count is known last:
// array header (3), engine index (9), outputs header (5).
const headroom = 17

// Batch collects what one engine step says to one client: one EngineCoreOutputs
// envelope. It is reused step after step and allocates nothing once warm.
type Batch struct {
	// WeightVersion is sent by lines that have the field (0.32 and later);
	// a real engine starts with "default".
	WeightVersion string

	codec    *Codec
	engine   int
	buf      []byte // headroom, then the encoded outputs
	count    int
	finished []string
	aux      [][]byte
	frames   ClientMessage
	tail     envelopeTail
}

// NewBatch returns an empty batch for the engine of the given index.
func (c *Codec) NewBatch(engineIndex int) *Batch {
	b := &Batch{codec: c, engine: engineIndex, WeightVersion: "default"}
	b.Reset()
	return b
}

// Reset empties the batch. Frames returned by Finish are no longer valid.
func (b *Batch) Reset() {
	if cap(b.buf) < headroom {
		b.buf = make([]byte, headroom, 4096)
	}
	b.buf, b.count = b.buf[:headroom], 0
	b.finished, b.aux, b.frames = b.finished[:0], b.aux[:0], b.frames[:0]
}

// Len returns the number of outputs added.
func (b *Batch) Len() int { return b.count }

// Add appends one output of a request. On error nothing was added.
func (b *Batch) Add(s *Stream, o *Output) error {
	if err := s.check(o); err != nil {
		return fmt.Errorf("request %s: %w", s.id, err)
	}
	out := append(b.buf, s.head...)
	out = pack.AppendUint32s(out, o.Tokens)
	if o.plain() {
		n := len(out)
		out = append(out, b.codec.output.plain...)
		if o.Finish != Unfinished {
			out[n+b.codec.output.finishAt] = byte(o.Finish - 1)
		}
	} else {
		out = b.appendFields(out, o)
	}
	b.buf = out
	b.count++
	s.started = true
	s.finished = o.Finish != Unfinished
	return nil
}

// ReportFinished names a request in finished_requests. A real engine leaves
// the list nil except when it refuses a request or shuts down; a frontend
// fails a request named before its finishing output, so name it in the same
// envelope.
func (b *Batch) ReportFinished(id string) { b.finished = append(b.finished, id) }

// plain reports whether every field but tokens and finish_reason is at its
// default.
func (o *Output) plain() bool {
	return o.Logprobs == nil && o.PromptLogprobs == nil && o.PromptScores == nil && o.Pooling == nil && o.Events == nil && o.Prefill == nil &&
		!o.HasStopToken && o.StopString == "" && o.KVTransfer == nil && o.TraceHeaders == nil && o.Drafts == nil && o.CacheMisses == nil && o.Error == nil
}

func (b *Batch) appendFields(out []byte, o *Output) []byte {
	l := &b.codec.output
	for i, field := range l.fields[2:] {
		if field == nil {
			out = append(out, l.consts[i+2]...)
		} else {
			out = field.append(out, b, o)
		}
	}
	return out
}

// appendEvents writes EngineCoreEvent maps: Python accepts no other form.
func (c *Codec) appendEvents(b []byte, events []Event) []byte {
	if events == nil {
		return pack.AppendNil(b)
	}
	b = pack.AppendArrayHeader(b, len(events))
	for i := range events {
		b = appendStruct(b, c, c.event, &events[i])
	}
	return b
}

func appendRawOrNil(b, raw []byte) []byte {
	if raw == nil {
		return pack.AppendNil(b)
	}
	return append(b, raw...)
}

// Finish closes the envelope. stats may be nil; timestamp is in seconds of a
// monotonic clock. The frames are valid until the batch is used again. A batch
// with nothing to say is [ErrEmptyBatch].
func (b *Batch) Finish(stats *SchedulerStats, timestamp float64) (ClientMessage, error) {
	if b.count == 0 && stats == nil && len(b.finished) == 0 {
		return nil, ErrEmptyBatch
	}
	var head [headroom]byte
	h := pack.AppendArrayHeader(head[:0], len(b.codec.envelope.fields))
	h = pack.AppendInt(h, int64(b.engine))
	h = pack.AppendArrayHeader(h, b.count)
	start, end := headroom-len(h), len(b.buf)
	copy(b.buf[start:], h)
	b.tail = envelopeTail{stats: stats, timestamp: timestamp, finished: b.finished, weightVersion: b.WeightVersion}
	frame := b.codec.appendEnvelopeTail(b.buf, &b.tail)
	b.buf = frame[:end] // without the tail: a second Finish writes its own
	b.frames = append(append(b.frames[:0], frame[start:]), b.aux...)
	return b.frames, nil
}

// appendFloats writes a torch tensor of float32 (vllm/v1/serial_utils.py
// _encode_tensor).
func (b *Batch) appendFloats(out []byte, t *Tensor) []byte {
	if t == nil {
		return pack.AppendNil(out)
	}
	return b.appendTensor(out, torchTypes.values, t.Shape, float32Bytes(t.Values))
}

// appendLogprobs writes a LogprobsLists or LogprobsTensors; the fields after
// the three tables are nil for a single request.
func (b *Batch) appendLogprobs(out []byte, l *Logprobs, types tensorTypes, layout arrayLayout) []byte {
	if l == nil {
		return pack.AppendNil(out)
	}
	out = pack.AppendArrayHeader(out, layout.fields)
	out = b.appendTensor(out, types.ids, []int{l.Rows(), l.Width}, int32Bytes(l.TokenIDs))
	out = b.appendTensor(out, types.values, []int{l.Rows(), l.Width}, float32Bytes(l.Values))
	ranks := int64Bytes(l.Ranks)
	if types.ranks == "int32" {
		ranks = int32Bytes(l.Ranks)
	}
	out = b.appendTensor(out, types.ranks, []int{l.Rows()}, ranks)
	return append(out, layout.tail...)
}

func checkLogprobs(o *Output) error {
	if o.PromptLogprobs != nil {
		if err := o.PromptLogprobs.check(); err != nil {
			return fmt.Errorf("prompt logprobs: %w", err)
		}
	}
	l := o.Logprobs
	if l == nil {
		return nil
	}
	if err := l.check(); err != nil {
		return fmt.Errorf("logprobs: %w", err)
	}
	if l.Rows() != len(o.Tokens) {
		return fmt.Errorf("logprobs: %d rows for %d tokens", l.Rows(), len(o.Tokens))
	}
	for i, token := range o.Tokens {
		if first := l.TokenIDs[i*l.Width]; first != token {
			return fmt.Errorf("logprobs: row %d begins with id %d, the token is %d", i, first, token)
		}
	}
	return nil
}

// check reports whether the shape fits the values; no tensor at all fits.
func (t *Tensor) check() error {
	if t == nil {
		return nil
	}
	n := 1
	for _, size := range t.Shape {
		n *= size
	}
	if n != len(t.Values) {
		return fmt.Errorf("%d values for the shape %v", len(t.Values), t.Shape)
	}
	return nil
}
