package protocol

import (
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Outputs is a decoded EngineCoreOutputs envelope. Decoding into the same
// value again reuses its slices; every byte slice points into the frame.
type Outputs struct {
	EngineIndex      int
	Outputs          []RequestOutput
	SchedulerStats   []byte // raw msgpack, nil when absent
	Timestamp        float64
	Utility          *UtilityOutput
	FinishedRequests [][]byte
	WaveComplete     int // -1 when absent
	StartWave        int // -1 when absent
	WeightVersion    string
	Fields           int

	tokens  []uint32 // backs the Tokens of all outputs
	version string   // the last WeightVersion, which every step repeats
	cur     pack.Cursor
}

// RequestOutput is a decoded EngineCoreOutput. The raw members are msgpack
// values, nil when absent.
type RequestOutput struct {
	ID             []byte
	Tokens         []uint32
	Finish         FinishReason
	StopReason     []byte
	Logprobs       []byte
	PromptLogprobs []byte
	PromptScores   []byte
	Pooling        []byte
	Events         []byte
	KVTransfer     []byte
	TraceHeaders   []byte
	CacheMisses    []byte
	Drafts         []byte
	Prefill        []byte
	Error          []byte
	Fields         int
	// Plain reports whether every field of the line but the first two, id and tokens, has its default, as nearly always.
	Plain bool
}

// UtilityOutput is a decoded answer to a utility call.
type UtilityOutput struct {
	CallID  uint64
	Failure string
	Failed  bool
	Result  []byte // raw msgpack value, nil when the engine sent none
}

// A LengthError reports an array-encoded struct that is longer than the line's
// frontends know: a Rust frontend dies of it (EngineCoreOutputs in every line,
// EngineCoreOutput up to 0.30).
type LengthError struct {
	Struct    string
	Line      string
	Got, Want int
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("%s has %d fields, line %s knows %d", e.Struct, e.Got, e.Line, e.Want)
}

// ErrEngineDead is returned by DecodeOutputs for the frame [EngineDead].
var ErrEngineDead = errors.New("the engine reports that it is dead (ENGINE_CORE_DEAD)")

// DecodeOutputs reads an engine's message as a frontend of the line would:
// arrays may be shorter than the line's, not longer.
func (c *Codec) DecodeOutputs(frame []byte, o *Outputs) error {
	if string(frame) == EngineDead {
		return ErrEngineDead
	}
	o.reset()
	o.cur = pack.NewCursor(frame) // in o, as it would be allocated else
	cur := &o.cur
	n, err := cur.ArrayLen()
	if err != nil {
		return fmt.Errorf("EngineCoreOutputs: %w", err)
	}
	if o.Fields = n; n > len(c.envelope.fields) {
		return &LengthError{"EngineCoreOutputs", c.profile.Line, n, len(c.envelope.fields)}
	}
	for i := range n {
		if err := c.decodeEnvelopeField(cur, i, o); err != nil {
			name := c.profile.Structs["EngineCoreOutputs"].Fields[i].Name
			return fmt.Errorf("EngineCoreOutputs.%s%w", name, err)
		}
	}
	if !cur.Done() {
		return fmt.Errorf("EngineCoreOutputs: %d bytes after the message", len(frame)-cur.Offset())
	}
	return nil
}

func (o *Outputs) reset() {
	*o = Outputs{
		Outputs: o.Outputs[:0], FinishedRequests: o.FinishedRequests[:0], tokens: o.tokens[:0],
		WaveComplete: -1, StartWave: -1, version: o.version,
	}
}

// decodeEnvelopeField reads field i. Its errors continue the path of the field:
// "[2].finish_reason: …" or ": …".
func (c *Codec) decodeEnvelopeField(cur *pack.Cursor, i int, o *Outputs) error {
	if i == 1 {
		return c.decodeOutputList(cur, o)
	}
	if err := c.decodeEnvelopeValue(cur, i, o); err != nil {
		return fmt.Errorf(": %w", err)
	}
	return nil
}

func (c *Codec) decodeEnvelopeValue(cur *pack.Cursor, i int, o *Outputs) (err error) {
	if i == 0 {
		o.EngineIndex, err = smallInt(cur)
		return err
	}
	field := c.envelope.fields[i]
	switch {
	case (field == nil || !field.needed) && cur.Nil():
		return nil
	case field == nil:
		return cur.Skip()
	}
	return field.decode(cur, o)
}

func decodeIDs(cur *pack.Cursor, ids [][]byte) ([][]byte, error) {
	n, err := cur.ArrayLen()
	if err != nil {
		return ids, err
	}
	for range n {
		id, err := cur.Str()
		if err != nil {
			return ids, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (c *Codec) decodeOutputList(cur *pack.Cursor, o *Outputs) error {
	n, err := cur.ArrayLen()
	if err != nil {
		return fmt.Errorf(": %w", err)
	}
	for i := range n {
		o.Outputs = append(o.Outputs, RequestOutput{})
		if err := c.decodeOutput(cur, o, &o.Outputs[i]); err != nil {
			return fmt.Errorf("[%d]%w", i, err)
		}
	}
	return nil
}

func (c *Codec) decodeOutput(cur *pack.Cursor, o *Outputs, out *RequestOutput) error {
	n, err := cur.ArrayLen()
	if err != nil {
		return fmt.Errorf(": %w", err)
	}
	if out.Fields = n; n > len(c.output.fields) {
		return fmt.Errorf(": %w", &LengthError{"EngineCoreOutput", c.profile.Line, n, len(c.output.fields)})
	}
	if n < 2 {
		return fmt.Errorf(": EngineCoreOutput has %d fields, at least request_id and new_token_ids are required", n)
	}
	if out.ID, err = cur.Str(); err != nil {
		return fmt.Errorf(".request_id: %w", err)
	}
	if err := o.decodeTokens(cur, out); err != nil {
		return fmt.Errorf(".new_token_ids: %w", err)
	}
	if n == len(c.output.fields) && c.output.quiet && cur.Same(c.output.plain) {
		out.Plain = true
		return nil
	}
	for i := 2; i < n; i++ {
		if c.output.kinds[i] == pack.Nil && cur.Nil() {
			continue
		}
		if err := c.decodeOutputField(cur, i, out); err != nil {
			return fmt.Errorf(".%s: %w", c.profile.Structs["EngineCoreOutput"].Fields[i].Name, err)
		}
	}
	return nil
}

// decodeTokens appends to the envelope's arena, so that a step of many streams
// costs no allocation. Outputs decoded before a growth keep the old array,
// which stays correct.
func (o *Outputs) decodeTokens(cur *pack.Cursor, out *RequestOutput) error {
	n := len(o.tokens)
	tokens, err := cur.Uint32s(o.tokens[n:])
	if err != nil {
		return err
	}
	if len(tokens) > cap(o.tokens)-n {
		o.tokens = append(make([]uint32, 0, 2*(n+len(tokens))), o.tokens...)
		o.tokens = append(o.tokens, tokens...)
	} else {
		o.tokens = o.tokens[:n+len(tokens)]
	}
	out.Tokens = tokens[:len(tokens):len(tokens)]
	return nil
}

func (c *Codec) decodeOutputField(cur *pack.Cursor, i int, out *RequestOutput) (err error) {
	field := c.output.fields[i]
	switch {
	case field == nil:
		if want := c.output.kinds[i]; want != pack.Nil && cur.Kind() != want {
			return fmt.Errorf("expected %s, found %s", want, cur.Kind())
		}
		return cur.Skip()
	case field.raw != nil:
		*field.raw(out), err = cur.Raw()
		return err
	}
	code, err := cur.Int()
	if err == nil {
		out.Finish, err = FinishFromWire(code)
	}
	return err
}

func decodeUtilityOutput(cur *pack.Cursor) (*UtilityOutput, error) {
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, errors.New("UtilityOutput has no fields, at least call_id is required")
	}
	u := new(UtilityOutput)
	if u.CallID, err = callID(cur); err != nil {
		return nil, fmt.Errorf("call_id: %w", err)
	}
	if n > 1 && !cur.Nil() {
		u.Failed = true
		if u.Failure, err = cur.StrString(); err != nil {
			return nil, fmt.Errorf("failure_message: %w", err)
		}
	}
	if n > 2 && !cur.Nil() {
		if u.Result, err = decodeUtilityResult(cur); err != nil {
			return nil, fmt.Errorf("result: %w", err)
		}
	}
	for i := 3; i < n; i++ {
		if err := cur.Skip(); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// decodeUtilityResult reads [type_info, value]; type_info must be nil, Python
// refuses anything else.
func decodeUtilityResult(cur *pack.Cursor) ([]byte, error) {
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, err
	}
	if n != 2 {
		return nil, fmt.Errorf("%d values, want [type_info, value]", n)
	}
	if !cur.Nil() {
		return nil, errors.New("type_info is not nil")
	}
	return cur.Raw()
}

// Decode reads what a frontend looks at of an output. aux are the frames after the message, which hold tensors.
func (o *RequestOutput) Decode(aux [][]byte) (out Output, err error) {
	out = Output{Tokens: o.Tokens, Finish: o.Finish, KVTransfer: o.KVTransfer}
	read := func(name string, raw []byte, read func(cur *pack.Cursor) error) {
		cur := pack.NewCursor(raw)
		if raw == nil || err != nil {
			return
		}
		if err = read(&cur); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}
	read("stop_reason", o.StopReason, func(cur *pack.Cursor) (err error) {
		if out.HasStopToken = cur.Kind() == pack.Int; out.HasStopToken {
			out.StopToken, err = cur.Int()
		} else {
			out.StopString, err = cur.StrString()
		}
		return err
	})
	read("new_logprobs", o.Logprobs, func(cur *pack.Cursor) (err error) {
		out.Logprobs, err = decodeLogprobs(cur, aux)
		return err
	})
	read("new_prompt_logprobs_tensors", o.PromptLogprobs, func(cur *pack.Cursor) (err error) {
		out.PromptLogprobs, err = decodeLogprobs(cur, aux)
		return err
	})
	read("pooling_output", o.Pooling, func(cur *pack.Cursor) error {
		t, err := ReadTensor(cur, aux)
		out.Pooling = &Tensor{Shape: t.Shape, Values: float32s(t)}
		return err
	})
	read("prefill_stats", o.Prefill, func(cur *pack.Cursor) error {
		out.Prefill = new(PrefillStats)
		return readStruct(cur, out.Prefill)
	})
	read("error", o.Error, func(*pack.Cursor) error {
		reason, err := DecodeRequestError(o.Error)
		out.Error = &reason
		return err
	})
	read("events", o.Events, func(cur *pack.Cursor) (err error) {
		out.Events, err = readList(cur, func(cur *pack.Cursor) (e Event, err error) {
			err = readStruct(cur, &e)
			return e, err
		})
		return err
	})
	return out, err
}

// decodeLogprobs reads LogprobsLists or LogprobsTensors: ids, values, and the rank of the first id of each row.
func decodeLogprobs(cur *pack.Cursor, aux [][]byte) (*Logprobs, error) {
	if n, err := cur.ArrayLen(); err != nil || n < 3 {
		return nil, fmt.Errorf("an array of %d values, want ids, logprobs and ranks: %v", n, err)
	}
	var parts [3]Array
	for i := range parts {
		var err error
		if parts[i], err = ReadTensor(cur, aux); err != nil {
			return nil, err
		}
	}
	if len(parts[0].Shape) != 2 {
		return nil, fmt.Errorf("ids have shape %v, want rows and columns", parts[0].Shape)
	}
	l := &Logprobs{Width: parts[0].Shape[1], Values: float32s(parts[1]), Ranks: parts[2].Integers()}
	for _, id := range parts[0].Integers() {
		l.TokenIDs = append(l.TokenIDs, uint32(id))
	}
	return l, l.check()
}

func float32s(t Array) (values []float32) {
	for _, v := range t.Floats() {
		values = append(values, float32(v))
	}
	return values
}
