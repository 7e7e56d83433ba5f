package protocol

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// samplingLayout says which keys the line's Rust frontend sends that others do
// not have.
type samplingLayout struct {
	watermarking  bool // since 0.30
	routedExperts bool // sent since 0.29
}

func (c *Codec) compileSampling() error {
	s, err := c.profile.needStruct("SamplingParams", "map")
	if err != nil {
		return err
	}
	c.sampling = samplingLayout{
		watermarking:  s.Index("watermarking") >= 0,
		routedExperts: s.Index("trace_decode_token_ids") >= 0,
	}
	return c.needKeys("SamplingParams", "max_tokens", "min_tokens", "temperature", "stop_token_ids")
}

// AppendRequest writes the payload of an ADD message as the line's frontend
// would: every field of the line, sampling parameters with the keys a Rust
// frontend always sends.
func (c *Codec) AppendRequest(b []byte, r *Request) []byte {
	b = pack.AppendArrayHeader(b, len(c.request.fields))
	for i, field := range c.request.fields {
		if field == nil {
			b = append(b, c.request.defaults[i]...)
		} else {
			b = field.append(b, c, r)
		}
	}
	return b
}

func appendCountOrNil(b []byte, n int) []byte {
	if n < 0 {
		return pack.AppendNil(b)
	}
	return pack.AppendInt(b, int64(n))
}

// AppendLoRA writes a LoRARequest of the line, or nil.
func (c *Codec) AppendLoRA(b []byte, l *LoRA) []byte {
	switch {
	case l == nil:
		return pack.AppendNil(b)
	case l.Raw != nil:
		return append(b, l.Raw...)
	}
	b = pack.AppendArrayHeader(b, c.lora.fields)
	b = pack.AppendInt(pack.AppendString(b, l.Name), l.ID)
	b = pack.AppendString(b, l.Path)
	tail := slices.Clone(c.lora.tail)
	if at := c.profile.Structs["LoRARequest"].Index("load_inplace"); l.InPlace && at >= 0 {
		cur := pack.NewCursor(tail)
		for range at - len(loraFields) {
			_ = cur.Skip() // they are defaults of ours
		}
		copy(tail[cur.Offset():], pack.AppendBool(nil, true)) // in the place of false
	}
	return append(b, tail...)
}

// SamplingParams returns the map of the sampling parameters as the frontend sent it, or as [Codec.AppendRequest] writes it.
func (c *Codec) SamplingParams(r *Request) []byte {
	if r.Sampling.Raw != nil {
		return r.Sampling.Raw
	}
	return c.appendSampling(nil, r)
}

func (c *Codec) appendSampling(b []byte, r *Request) []byte {
	if !r.HasSampling {
		return pack.AppendNil(b)
	}
	s := &r.Sampling
	n, hasLogprobs := 11, s.Logprobs != NoLogprobs && len(s.LogprobTokenIDs) == 0 // the ids say how many
	for _, extra := range []bool{
		c.sampling.watermarking, c.sampling.routedExperts, s.HasSeed, s.EOSTokenID >= 0,
		hasLogprobs, s.PromptLogprobs != NoLogprobs, s.ExtraArgs != nil,
		s.StructuredOutputs != nil, len(s.LogprobTokenIDs) > 0, s.PromptScores != nil, s.PromptScoreStart > 0,
		s.HasSkipReading, s.HasThinkingBudget, len(s.LogitBias) > 0, len(s.AllowedTokenIDs) > 0, len(s.BadWords) > 0, s.Repetition.MaxSize > 0,
	} {
		if extra {
			n++
		}
	}
	b = pack.AppendMapHeader(b, n)
	b = pack.AppendFloat32(pack.AppendString(b, "temperature"), float32(s.Temperature))
	if c.sampling.watermarking {
		b = pack.AppendBool(pack.AppendString(b, "watermarking"), !s.NoWatermark)
	}
	b = pack.AppendFloat32(pack.AppendString(b, "top_p"), float32(cmp.Or(s.TopP, 1)))
	b = pack.AppendInt(pack.AppendString(b, "top_k"), int64(s.TopK))
	if s.HasSeed {
		b = pack.AppendInt(pack.AppendString(b, "seed"), s.Seed)
	}
	b = appendMaxTokens(b, s)
	b = pack.AppendInt(pack.AppendString(b, "min_tokens"), int64(s.MinTokens))
	if hasLogprobs {
		b = appendLogprobsCount(b, "logprobs", s.Logprobs)
	}
	b = appendLogprobsCount(b, "prompt_logprobs", s.PromptLogprobs)
	b = appendLogprobIDs(b, s)
	b = pack.AppendFloat32(pack.AppendString(b, "min_p"), float32(s.MinP))
	b = pack.AppendFloat32(pack.AppendString(b, "frequency_penalty"), float32(s.FrequencyPenalty))
	b = pack.AppendFloat32(pack.AppendString(b, "presence_penalty"), float32(s.PresencePenalty))
	b = pack.AppendFloat32(pack.AppendString(b, "repetition_penalty"), float32(cmp.Or(s.RepetitionPenalty, 1)))
	return c.appendSamplingStops(b, s)
}

func (c *Codec) appendSamplingStops(b []byte, s *Sampling) []byte {
	b = pack.AppendUint32s(pack.AppendString(b, "stop_token_ids"), s.StopTokenIDs)
	if s.EOSTokenID >= 0 {
		b = pack.AppendInt(pack.AppendString(b, "_eos_token_id"), s.EOSTokenID)
	}
	b = appendAllStops(pack.AppendString(b, "_all_stop_token_ids"), s)
	b = appendFilters(b, s)
	if s.StructuredOutputs != nil {
		b = append(pack.AppendString(b, "structured_outputs"), s.StructuredOutputs...)
	}
	if s.ExtraArgs != nil {
		b = append(pack.AppendString(b, "extra_args"), s.ExtraArgs...)
	}
	if s.HasSkipReading {
		b = pack.AppendBool(pack.AppendString(b, "skip_reading_prefix_cache"), s.SkipReading)
	}
	if s.HasThinkingBudget {
		b = pack.AppendInt(pack.AppendString(b, "thinking_token_budget"), s.ThinkingBudget)
	}
	if c.sampling.routedExperts {
		b = pack.AppendInt(pack.AppendString(b, "routed_experts_prompt_start"), 0)
	}
	return b
}

// appendFilters writes which ids may be sampled, and when they repeat themselves.
func appendFilters(b []byte, s *Sampling) []byte {
	if len(s.LogitBias) > 0 {
		b = pack.AppendMapHeader(pack.AppendString(b, "logit_bias"), len(s.LogitBias))
		for _, bias := range s.LogitBias {
			b = pack.AppendFloat64(pack.AppendUint(b, uint64(bias.Token)), bias.Logit)
		}
	}
	if len(s.AllowedTokenIDs) > 0 {
		b = pack.AppendUint32s(pack.AppendString(b, "allowed_token_ids"), s.AllowedTokenIDs)
	}
	if len(s.BadWords) > 0 {
		b = pack.AppendArrayHeader(pack.AppendString(b, "_bad_words_token_ids"), len(s.BadWords))
		for _, word := range s.BadWords {
			b = pack.AppendUint32s(b, word)
		}
	}
	if s.Repetition.MaxSize > 0 {
		b = appendStruct(pack.AppendString(b, "repetition_detection"), nil, repetitionLayout(), &s.Repetition)
	}
	return b
}

var repetitionLayout = sync.OnceValue(func() *structLayout { return allKeys(reflect.TypeFor[Repetition]()) })

// appendLogprobIDs writes which ids a request wants to know the log-probabilities of.
func appendLogprobIDs(b []byte, s *Sampling) []byte {
	if len(s.LogprobTokenIDs) > 0 {
		b = pack.AppendUint32s(pack.AppendString(b, "logprob_token_ids"), s.LogprobTokenIDs)
	}
	if s.PromptScores != nil {
		b = append(pack.AppendString(b, "prompt_logprob_token_ids"), s.PromptScores...)
	}
	if s.PromptScoreStart > 0 {
		b = pack.AppendInt(pack.AppendString(b, "prompt_logprob_start"), int64(s.PromptScoreStart))
	}
	return b
}

// appendAllStops writes what an engine masks until min_tokens are out: by default the stop
// token ids and the end of sequence.
func appendAllStops(b []byte, s *Sampling) []byte {
	switch {
	case len(s.AllStops) > 0:
		return pack.AppendUint32s(b, s.AllStops)
	case s.EOSTokenID < 0 || s.EOSTokenID > math.MaxUint32 || slices.Contains(s.StopTokenIDs, uint32(s.EOSTokenID)):
		return pack.AppendUint32s(b, s.StopTokenIDs)
	}
	b = pack.AppendArrayHeader(b, len(s.StopTokenIDs)+1)
	for _, id := range s.StopTokenIDs {
		b = pack.AppendUint(b, uint64(id))
	}
	return pack.AppendInt(b, s.EOSTokenID)
}

func appendMaxTokens(b []byte, s *Sampling) []byte {
	b = pack.AppendString(b, "max_tokens")
	if !s.HasMaxTokens {
		return pack.AppendNil(b)
	}
	return pack.AppendInt(b, int64(s.MaxTokens))
}

func appendLogprobsCount(b []byte, key string, n int) []byte {
	switch n {
	case NoLogprobs:
		return b
	case AllLogprobs:
		n = -1
	}
	return pack.AppendInt(pack.AppendString(b, key), int64(n))
}
