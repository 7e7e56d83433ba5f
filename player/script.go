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
