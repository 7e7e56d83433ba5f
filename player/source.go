package player

import (
	"cmp"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func (o Options) source() (Source, error) {
	random := Random{Seed: o.Seed, Vocab: o.Vocab}
	switch {
	case o.Source != nil:
		return o.Source, nil
	case o.Trace == nil:
		return random, nil
	}
	return NewReplay(o.Trace, ReplayOptions{
		Match: o.Match, Strict: o.Strict, Once: o.Once, MinDepth: o.MinDepth, Fallback: random, BlockSize: o.BlockSize,
	})
}

// Source writes scripts. It is asked once a request, from the one goroutine of each
// player that it was given to.
type Source interface {
	// Script returns the answer to a request, or why there is none; the
	// request then ends with an error output that carries the reason on lines
	// that have a place for it. The request is valid during the call only.
	Script(r *protocol.Request) (Script, error)
}

// Random is a [Source] of seeded random tokens: the same seed, request id and
// position give the same token, whatever else runs. The id is the client's, without the
// random digits that a frontend appends.
type Random struct {
	Seed  uint64
	Vocab uint32 // ids are drawn from 0 to Vocab-1; 0 is 32000
}

// Script answers with as many tokens as the request allows.
func (s Random) Script(r *protocol.Request) (Script, error) {
	return Script{Fill: s.fill(drawID(r)), Finish: protocol.FinishLength, Stops: true, CachedTokens: LookUp}, nil
}

func (s Random) fill(id string) func(int) uint32 {
	state := s.Seed ^ 0xcbf29ce484222325
	for i := range len(id) {
		state = (state ^ uint64(id[i])) * 0x100000001b3
	}
	vocab := uint64(cmp.Or(s.Vocab, defaultVocab))
	return func(position int) uint32 {
		// splitmix64: every position is drawn alone, nothing is kept.
		z := state + uint64(position+1)*0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return uint32((z ^ z>>31) % vocab)
	}
}

// Echo is a [Source] that says the prompt again, from its beginning when it has
// ended, for as many tokens as the request allows. Stop ids in a prompt stop nothing:
// every prompt of a chat has some. An empty prompt, or one of embeddings, is answered
// with no token and a stop.
type Echo struct{}

// Script answers with the prompt.
func (Echo) Script(r *protocol.Request) (Script, error) {
	prompt := slices.Clone(r.PromptTokenIDs)
	if len(prompt) == 0 || r.PromptEmbeds != nil {
		return Script{Finish: protocol.FinishStop, CachedTokens: LookUp}, nil
	}
	again := func(position int) uint32 { return prompt[position%len(prompt)] }
	return Script{Tokens: prompt, Fill: again, Finish: protocol.FinishLength, CachedTokens: LookUp}, nil
}
