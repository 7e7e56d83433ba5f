package protocol

import "github.com/vllm-vcr/conformance/internal/pack"

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
	return nil
}

// AppendRequest writes the payload of an ADD message as the line's frontend
// would: every field of the line, sampling parameters with the keys a Rust
// frontend always sends.
func (c *Codec) AppendRequest(b []byte, r *Request) []byte {
	b = pack.AppendArrayHeader(b, len(c.request))
	for i, field := range c.request {
		switch field {
		case reqID:
			b = pack.AppendString(b, r.ID)
		case reqPrompt:
			b = pack.AppendUint32s(b, r.PromptTokenIDs)
		case reqMM:
			b = appendRawOrNil(b, r.MMFeatures)
		case reqSampling:
			b = c.appendSampling(b, r)
		case reqPooling:
			b = appendRawOrNil(b, r.Pooling)
		case reqArrival:
			b = pack.AppendFloat64(b, r.ArrivalTime)
		case reqLoRA:
			b = appendLoRA(b, r.LoRA)
		case reqIgnored:
			b = c.appendRequestDefault(b, i)
		default:
			b = appendRequestScalar(b, field, r)
		}
	}
	return b
}

func appendRequestScalar(b []byte, field requestField, r *Request) []byte {
	switch field {
	case reqSalt:
		return appendStringOrNil(b, r.CacheSalt)
	case reqRank:
		if r.DataParallelRank < 0 {
			return pack.AppendNil(b)
		}
		return pack.AppendInt(b, int64(r.DataParallelRank))
	case reqEmbeds:
		return appendRawOrNil(b, r.PromptEmbeds)
	case reqClient:
		return pack.AppendInt(b, int64(r.ClientIndex))
	case reqWave:
		return pack.AppendInt(b, int64(r.CurrentWave))
	case reqPriority:
		return pack.AppendInt(b, int64(r.Priority))
	case reqResumable:
		return pack.AppendBool(b, r.Resumable)
	case reqExternalID:
		return appendStringOrNil(b, r.ExternalID)
	case reqAbortNow:
		return pack.AppendBool(b, r.AbortImmediately)
	}
	return pack.AppendNil(b)
}

// appendRequestDefault writes a field that requests of this package never set;
// all of them default to None.
func (c *Codec) appendRequestDefault(b []byte, i int) []byte {
	if def, err := defaultBytes(c.profile.Structs["EngineCoreRequest"].Fields[i]); err == nil {
		return append(b, def...)
	}
	return pack.AppendNil(b)
}

func appendLoRA(b []byte, l *LoRA) []byte {
	if l == nil {
		return pack.AppendNil(b)
	}
	return append(b, l.Raw...)
}

func (c *Codec) appendSampling(b []byte, r *Request) []byte {
	if !r.HasSampling {
		return pack.AppendNil(b)
	}
	s := &r.Sampling
	n := 11
	for _, extra := range []bool{
		c.sampling.watermarking, c.sampling.routedExperts, s.HasSeed, s.EOSTokenID >= 0,
		s.Logprobs != NoLogprobs, s.PromptLogprobs != NoLogprobs, s.ExtraArgs != nil,
	} {
		if extra {
			n++
		}
	}
	b = pack.AppendMapHeader(b, n)
	b = pack.AppendFloat32(pack.AppendString(b, "temperature"), float32(s.Temperature))
	if c.sampling.watermarking {
		b = pack.AppendBool(pack.AppendString(b, "watermarking"), true)
	}
	b = pack.AppendFloat32(pack.AppendString(b, "top_p"), 1)
	b = pack.AppendInt(pack.AppendString(b, "top_k"), 0)
	if s.HasSeed {
		b = pack.AppendInt(pack.AppendString(b, "seed"), s.Seed)
	}
	b = appendMaxTokens(b, s)
	b = pack.AppendInt(pack.AppendString(b, "min_tokens"), int64(s.MinTokens))
	b = appendLogprobsCount(b, "logprobs", s.Logprobs)
	b = appendLogprobsCount(b, "prompt_logprobs", s.PromptLogprobs)
	for _, key := range []string{"min_p", "frequency_penalty", "presence_penalty"} {
		b = pack.AppendFloat32(pack.AppendString(b, key), 0)
	}
	b = pack.AppendFloat32(pack.AppendString(b, "repetition_penalty"), 1)
	return c.appendSamplingStops(b, s)
}

func (c *Codec) appendSamplingStops(b []byte, s *Sampling) []byte {
	b = pack.AppendUint32s(pack.AppendString(b, "stop_token_ids"), s.StopTokenIDs)
	if s.EOSTokenID >= 0 {
		b = pack.AppendInt(pack.AppendString(b, "_eos_token_id"), s.EOSTokenID)
	}
	b = pack.AppendUint32s(pack.AppendString(b, "_all_stop_token_ids"), s.StopTokenIDs)
	if s.ExtraArgs != nil {
		b = append(pack.AppendString(b, "extra_args"), s.ExtraArgs...)
	}
	if c.sampling.routedExperts {
		b = pack.AppendInt(pack.AppendString(b, "routed_experts_prompt_start"), 0)
	}
	return b
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
