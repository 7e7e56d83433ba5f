package player

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

func (o Options) source() (Source, error) {
	random := Random{Seed: o.Seed, Vocab: o.Vocab}
	switch {
	case o.Source != nil:
		return o.Source, nil
	case o.Trace == nil:
		return random, nil
	case o.Match != MatchIndex && o.Match != MatchPrefix:
		return nil, fmt.Errorf("match %q: want %s or %s", o.Match, MatchIndex, MatchPrefix)
	}
	return NewReplay(o.Trace, ReplayOptions{Match: o.Match, Strict: o.Strict, Fallback: random, BlockSize: o.BlockSize})
}

// Source writes scripts. It is asked once a request, from one goroutine.
type Source interface {
	// Script returns the answer to a request, or why there is none; the
	// request then ends with an error output that carries the reason on lines
	// that have a place for it. The request is valid during the call only.
	Script(r *protocol.Request) (Script, error)
}

// Random is a [Source] of seeded random tokens: the same seed, request id and
// position give the same token, whatever else runs.
type Random struct {
	Seed  uint64
	Vocab uint32 // ids are drawn from 0 to Vocab-1
}

// Script answers with as many tokens as the request allows.
func (s Random) Script(r *protocol.Request) (Script, error) {
	return Script{Fill: s.fill(r.ID), Finish: protocol.FinishLength, Stops: true}, nil
}

func (s Random) fill(id string) func(int) uint32 {
	state := s.Seed ^ 0xcbf29ce484222325
	for i := range len(id) {
		state = (state ^ uint64(id[i])) * 0x100000001b3
	}
	vocab := uint64(max(s.Vocab, 1))
	return func(position int) uint32 {
		// splitmix64: every position is drawn alone, nothing is kept.
		z := state + uint64(position+1)*0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return uint32((z ^ z>>31) % vocab)
	}
}
