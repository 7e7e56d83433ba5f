package player

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

func (o Options) source() (Source, error) {
	random := Random{Seed: o.Seed, Vocab: o.Vocab}
	switch {
	case o.Source != nil:
		return o.Source, nil
	case o.Trace == nil:
		return random, nil
	}
	opt := o.Replay
	if opt.Fallback == nil {
		opt.Fallback = random
	}
	opt.BlockSize = cmp.Or(opt.BlockSize, o.KVCache.BlockSize)
	return NewReplay(o.Trace, opt)
}

// Source writes scripts. Each player that has the source calls it once for each
// request, from its one goroutine.
type Source interface {
	// Script returns the answer to a request. With an error, which may be a
	// [Refusal], the request ends with an error output, which carries the reason on
	// lines that have a field for it. The request is valid during the call only.
	Script(r *Request) (Script, error)
}

// Request is a generation request of a frontend, as a [Source] gets it
// (vllm/v1/engine/__init__.py EngineCoreRequest). A player uses one value, and the
// slices in it, for all of its requests: a source that keeps something copies it.
type Request struct {
	// ID is the frontend's and unique in the engine. ExternalID is that of the HTTP
	// request, empty if the frontend does not send it.
	ID, ExternalID string
	// PromptTokenIDs are the tokens of the prompt: one 0 for each embedding if
	// PromptIsEmbeds.
	PromptTokenIDs []uint32
	PromptIsEmbeds bool
	// LoRA is the name of the adapter, empty without one.
	LoRA string
	// Priority is the scheduling priority: a lower one runs first.
	Priority int
	// MMFeatures is the list of images and other multimodal items, as msgpack
	// (vllm/multimodal/inputs.py MultiModalFeatureSpec); nil without any.
	MMFeatures []byte
	Sampling   Sampling
}

// Sampling are the sampling parameters that decide what may be answered
// (vllm/sampling_params.py SamplingParams).
type Sampling struct {
	// MaxTokens is the most tokens of the answer, if HasMaxTokens; otherwise the
	// context length bounds it.
	MaxTokens    int
	HasMaxTokens bool
	MinTokens    int
	// StopTokenIDs end the answer, as EOSTokenID does, which is -1 when no token ends
	// it. IgnoreEOS is set if the client wants tokens beyond it.
	StopTokenIDs []uint32
	EOSTokenID   int64
	IgnoreEOS    bool
	Temperature  float64
	// Seed counts if HasSeed.
	Seed    int64
	HasSeed bool
	// StructuredOutputs is the constraint on the answer (StructuredOutputsParams) and
	// ExtraArgs are the arguments that vLLM does not know, both msgpack maps; nil
	// when absent.
	StructuredOutputs, ExtraArgs []byte
}

// Script is what one request will be answered with.
type Script struct {
	// Tokens are the ids to answer with. Positions past them are drawn by Fill.
	Tokens []uint32
	// Fill draws the id at a position past Tokens; nil ends the stream there. Where the
	// request does not let that id come (allowed_token_ids, bad words, logit_bias), another
	// one does, and the stream ends where the request's repetition_detection finds one.
	Fill func(position int) uint32
	// Chunks are the token counts of the outputs; past them, one token each.
	Chunks []int
	// Finish is why a stream ends whose tokens are all sent; the zero value is
	// FinishLength.
	Finish FinishReason
	// Error is the reason that comes with FinishError on lines that have a field for
	// it (since 0.33), nil for none.
	Error *trace.RequestError
	// Stops reports whether drawn tokens obey the request's stop ids, as sampled
	// ones do. A recording has stopped where it stopped.
	Stops bool
	// CachedTokens of the prompt count as found in the prefix cache, whatever is in
	// it, as in a recording; [LookUp] looks them up.
	CachedTokens int
	// FirstToken and Gaps are the recorded times from arrival to the first
	// output, and between outputs, past them the last one. They count at [PaceRecorded], and
	// at any pace, next to its own times, if Paced is set.
	FirstToken time.Duration
	Gaps       []time.Duration
	Paced      bool
	// Logprobs are the log-probabilities of the tokens, past them the last one; nil makes them up.
	Logprobs []float32
	// Transferred is set if the KV cache of the prompt comes from another engine: at [PaceAlone] the first output takes as long as that.
	Transferred bool
	// Later, if set, makes the script in place of this one, in which only CachedTokens
	// counts then. It runs beside the engine, while other requests go on, one after the
	// other for each player; the request is queued when it returns. ctx ends with the
	// request, or the player.
	Later func(ctx context.Context) (Script, error)
}

// LookUp as [Script].CachedTokens counts what the player's own prefix cache has.
const LookUp = -1

// FinishReason is why an answer ends. The zero value is Unfinished; its String is the
// reason as OpenAI's API names it, such as "stop".
type FinishReason = protocol.FinishReason

// The finish reasons of vLLM (vllm/v1/engine/__init__.py FinishReason).
const (
	Unfinished       = protocol.Unfinished
	FinishStop       = protocol.FinishStop
	FinishLength     = protocol.FinishLength
	FinishAbort      = protocol.FinishAbort
	FinishError      = protocol.FinishError
	FinishRepetition = protocol.FinishRepetition
)

// Random is a [Source] of seeded random tokens: the same seed, request id and
// position give the same token, whatever else runs. The id is the client's, without the
// random digits that a frontend appends.
type Random struct {
	Seed  uint64
	Vocab uint32 // ids are drawn from 0 to Vocab-1; 0 is 32000
}

// Script answers with as many tokens as the request allows.
func (s Random) Script(r *Request) (Script, error) {
	return Script{Fill: s.fill(drawID(r.ID, r.ExternalID)), Finish: FinishLength, Stops: true, CachedTokens: LookUp}, nil
}

func (s Random) fill(id string) func(int) uint32 {
	state := s.Seed ^ 0xcbf29ce484222325
	for i := range len(id) {
		state = (state ^ uint64(id[i])) * 0x100000001b3
	}
	vocab := uint64(cmp.Or(s.Vocab, defaultVocab))
	return func(position int) uint32 {
		// splitmix64: every position is drawn alone, nothing is kept.
		return uint32(scramble(state+uint64(position+1)*0x9e3779b97f4a7c15) % vocab)
	}
}

// Echo is a [Source] that repeats the prompt, from its beginning when it has
// ended, for as many tokens as the request allows. Stop ids in a prompt stop nothing:
// every prompt of a chat has some. An empty prompt, or one of embeddings, is answered
// with no token and a stop.
type Echo struct{}

// Script answers with the prompt.
func (Echo) Script(r *Request) (Script, error) {
	prompt := slices.Clone(r.PromptTokenIDs)
	if len(prompt) == 0 || r.PromptIsEmbeds {
		return Script{Finish: FinishStop, CachedTokens: LookUp}, nil
	}
	again := func(position int) uint32 { return prompt[position%len(prompt)] }
	return Script{Fill: again, Finish: FinishLength, CachedTokens: LookUp}, nil
}
