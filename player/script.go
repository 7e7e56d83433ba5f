package player

import (
	"time"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// Script is what one request will be answered with.
type Script struct {
	// Tokens are the ids to say. Positions past them are drawn by Fill.
	Tokens []uint32
	// Fill draws the id at a position past Tokens; nil ends the stream there.
	Fill func(position int) uint32
	// Chunks are the token counts of the outputs; past them, one token each.
	Chunks []int
	// Finish ends a stream whose tokens are all said; the zero value ends it
	// by length.
	Finish protocol.FinishReason
	// Stops tells that drawn tokens obey the request's stop ids, as sampled
	// ones do. A recording has stopped where it stopped.
	Stops bool
	// CachedTokens of the prompt were not computed but found in a cache.
	CachedTokens int
	// FirstToken and Gaps are the recorded times from arrival to the first
	// output, and between outputs. They count at [PaceRecorded].
	FirstToken time.Duration
	Gaps       []time.Duration
}

// Source writes scripts. It is asked once a request, from one goroutine.
type Source interface {
	// Script returns the answer to a request, or why there is none; the
	// request then ends with an error output that carries the reason on lines
	// that have a place for it. The request is valid during the call only.
	Script(r *protocol.Request) (Script, error)
}

// chunk returns the size of the output with number k, when left tokens remain.
func (s *Script) chunk(k, left int) int {
	n := 1
	if k < len(s.Chunks) {
		n = s.Chunks[k]
	}
	return min(max(n, 1), left)
}

func (s *Script) gap(k int) time.Duration {
	if k < len(s.Gaps) {
		return max(s.Gaps[k], 0)
	}
	return 0
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
