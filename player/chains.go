package player

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/trace"
)

// chains finds records by prompt. Each record is listed under every hash of its
// block chain; the deepest hash that a prompt shares with any record decides,
// and a record serves one request before it serves another.
type chains struct {
	blockSize int
	byHash    map[uint64][]int
	records   []*trace.Record
	used      []bool
	hashes    []uint64 // of the prompt at hand
}

func newChains(t *trace.Trace, records []*trace.Record, blockSize int) (*chains, error) {
	c := &chains{
		blockSize: trace.Or(t.Meta.BlockSize, blockSize),
		byHash:    map[uint64][]int{}, records: records, used: make([]bool, len(records)),
	}
	if c.blockSize < 1 {
		return nil, fmt.Errorf("%s: meta.block_size is %d; prefix matching needs the tokens per block", t.Name, c.blockSize)
	}
	for i, rec := range records {
		if len(rec.OutputTokenIDs) == 0 && rec.OutputTokens > 0 {
			continue
		}
		for _, h := range rec.BlockHashes {
			c.byHash[h] = append(c.byHash[h], i)
		}
	}
	if len(c.byHash) == 0 {
		return nil, fmt.Errorf("%s: no record has block_hashes; prefix matching needs them", t.Name)
	}
	return c, nil
}

// take returns the record that answers a prompt and marks it used.
func (c *chains) take(r *protocol.Request) (*trace.Record, error) {
	c.hashes = trace.AppendBlockHashes(c.hashes[:0], r.PromptTokenIDs, c.blockSize)
	for depth := len(c.hashes); depth > 0; depth-- {
		if candidates := c.byHash[c.hashes[depth-1]]; len(candidates) > 0 {
			i := c.choose(candidates, r.PromptTokenIDs)
			c.used[i] = true
			return c.records[i], nil
		}
	}
	return nil, fmt.Errorf("%w: no record shares the first %d tokens of its prompt (%d tokens)",
		errNoRecord, c.blockSize, len(r.PromptTokenIDs))
}

// choose ranks the candidates: the same prompt, then the same number of blocks
// and of tokens, then the same number of blocks; among those an unused record
// before a used one, so that a retry is served its own record again and not a
// longer one; the earliest arrival decides among equals.
func (c *chains) choose(candidates []int, prompt []uint32) int {
	best, bestRank := candidates[0], -1
	for _, i := range candidates {
		if rank := c.rank(i, prompt); rank > bestRank {
			best, bestRank = i, rank
		}
	}
	return best
}

func (c *chains) rank(i int, prompt []uint32) int {
	rec, rank := c.records[i], 0
	switch {
	case len(rec.BlockHashes) != len(c.hashes):
	case rec.PromptTokens != len(prompt):
		rank = 2
	case rec.PromptTokenIDs == nil || !slices.Equal(rec.PromptTokenIDs, prompt):
		rank = 4
	default:
		rank = 6
	}
	if !c.used[i] {
		rank++
	}
	return rank
}
