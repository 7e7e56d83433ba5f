package player

import (
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
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
	// CachedTokens of the prompt count as found in the prefix cache, whatever is in
	// it, as in a recording; [LookUp] looks them up.
	CachedTokens int
	// FirstToken and Gaps are the recorded times from arrival to the first
	// output, and between outputs. They count at [PaceRecorded].
	FirstToken time.Duration
	Gaps       []time.Duration
}

// LookUp as [Script].CachedTokens counts what the player's own prefix cache has.
const LookUp = -1

func (s *Script) gap(k int) time.Duration {
	if k < len(s.Gaps) {
		return max(s.Gaps[k], 0)
	}
	return 0
}
