package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

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
	// StructuredOutputs is the raw msgpack map of what constrains the output, nil when
	// absent.
	StructuredOutputs []byte
	Temperature       float64
	Seed              int64
	HasSeed           bool
	ExtraArgs         []byte // raw msgpack map, nil when absent
	Raw               []byte // the whole map
}

// SkipsCache tells whether the prompt is computed anew, whatever of it the prefix cache
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

// defaultSampling is SamplingParams without a key. stops is the buffer for the
// stop token ids.
func defaultSampling(stops []uint32) Sampling {
	return Sampling{
		MaxTokens: defaultMaxTokens, HasMaxTokens: true, EOSTokenID: -1,
		Logprobs: NoLogprobs, PromptLogprobs: NoLogprobs, Temperature: 1,
		StopTokenIDs: stops,
	}
}

func decodeSampling(cur *pack.Cursor, s *Sampling) error {
	start := *cur
	n, err := cur.MapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := cur.Str()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		if err := decodeSamplingValue(cur, string(key), s); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if s.Logprobs == NoLogprobs && len(s.LogprobTokenIDs) > 0 {
		s.Logprobs = len(s.LogprobTokenIDs) // vllm/sampling_params.py num_logprobs
	}
	size := cur.Offset() - start.Offset()
	s.Raw = start.Rest()[:size:size]
	return nil
}

func decodeSamplingValue(cur *pack.Cursor, key string, s *Sampling) (err error) {
	if cur.Nil() {
		if key == "max_tokens" {
			s.MaxTokens, s.HasMaxTokens = 0, false
		}
		return nil
	}
	switch key {
	case "max_tokens":
		s.MaxTokens, err = smallInt(cur)
	case "min_tokens":
		s.MinTokens, err = smallInt(cur)
	case "stop_token_ids":
		s.StopTokenIDs, err = cur.Uint32s(s.StopTokenIDs[:0])
	case "_eos_token_id":
		s.EOSTokenID, err = cur.Int()
	case "ignore_eos":
		s.IgnoreEOS, err = cur.Bool()
	case "logprobs":
		s.Logprobs, err = logprobsCount(cur)
	case "prompt_logprobs":
		s.PromptLogprobs, err = logprobsCount(cur)
	case "temperature":
		s.Temperature, err = cur.Float()
	case "seed":
		s.HasSeed = true
		s.Seed, err = cur.Int()
	case "extra_args":
		s.ExtraArgs, err = cur.Raw()
	case "structured_outputs":
		s.StructuredOutputs, err = cur.Raw()
	default:
		return decodeLogprobIDs(cur, key, s)
	}
	return err
}

// decodeLogprobIDs reads which ids a request wants to know the log-probabilities of,
// and what follows from such a wish.
func decodeLogprobIDs(cur *pack.Cursor, key string, s *Sampling) (err error) {
	switch key {
	case "logprob_token_ids":
		s.LogprobTokenIDs, err = cur.Uint32s(nil)
	case "prompt_logprob_token_ids":
		s.PromptScores, err = cur.Raw()
	case "prompt_logprob_start":
		s.PromptScoreStart, err = smallInt(cur)
	case "skip_reading_prefix_cache":
		s.HasSkipReading = true
		s.SkipReading, err = cur.Bool()
	default:
		err = cur.Skip()
	}
	return err
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
