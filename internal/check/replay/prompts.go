package replay

import (
	"slices"

	"github.com/vllm-vcr/conformance/trace"
)

// PromptOf is the recorded prompt where the golden carries it, else as many
// tokens: matching by index looks at the length only.
func PromptOf(r *trace.Record) []uint32 {
	if r.PromptTokenIDs != nil {
		return r.PromptTokenIDs
	}
	prompt := make([]uint32, r.PromptTokens)
	for i := range prompt {
		prompt[i] = plainToken
	}
	return prompt
}

// plainToken fills prompts whose content does not matter.
const plainToken = 42

// prefixPrompts prepares a trace for matching by prompt. Where every record
// carries its prompt, these are sent. Otherwise the prompts are made up so that
// they share prefixes exactly where the recorded hash chains do: each recorded
// hash stands for one block of tokens, and the chains of the copy are those of
// the made-up prompts. The token streams stay the recorded ones.
func prefixPrompts(t *trace.Trace, blockSize int) *trace.Trace {
	isComplete := true
	for i := range t.Records {
		if t.Records[i].PromptTokenIDs == nil {
			return synthesize(t, blockSize)
		}
		isComplete = isComplete && t.Records[i].BlockHashes != nil
	}
	if isComplete {
		return t
	}
	return rewrite(t, func(r *trace.Record) {
		if r.BlockHashes == nil {
			r.BlockHashes = trace.BlockHashes(r.PromptTokenIDs, blockSize)
		}
	})
}

// rewrite returns a copy of a trace with other records.
func rewrite(t *trace.Trace, change func(*trace.Record)) *trace.Trace {
	rewritten := *t
	rewritten.Records = slices.Clone(t.Records)
	for i := range rewritten.Records {
		change(&rewritten.Records[i])
	}
	return &rewritten
}

func synthesize(t *trace.Trace, blockSize int) *trace.Trace {
	blocks := map[uint64]uint32{} // recorded hash to the number of its block
	number := func(hash uint64) uint32 {
		n, known := blocks[hash]
		if !known {
			n = uint32(len(blocks)) + 1
			blocks[hash] = n
		}
		return n
	}
	return rewrite(t, func(r *trace.Record) {
		prompt := make([]uint32, r.PromptTokens)
		for b, hash := range r.BlockHashes {
			if (b+1)*blockSize <= len(prompt) {
				prompt[b*blockSize] = number(hash)
			}
		}
		r.PromptTokenIDs, r.BlockHashes = prompt, trace.BlockHashes(prompt, blockSize)
	})
}
