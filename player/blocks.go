package player

import (
	"hash/fnv"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/trace"
)

// blockPool counts the KV blocks that running requests hold. A block that was found
// in the prefix cache is held once, however many requests use it
// (vllm/v1/core/block_pool.py).
type blockPool struct {
	size   int // tokens a block
	cached bool
	held   int
	users  map[uint64]int // of each full block of a prompt that a running request has
}

// chain tells the full blocks of a prompt apart: equal numbers stand for equal
// blocks after equal blocks.
func (p *blockPool) chain(r *protocol.Request) []uint64 {
	if !p.cached {
		return nil
	}
	chain := trace.BlockHashes(r.PromptTokenIDs, p.size)
	if seed := cacheSeed(r); seed != 0 {
		for i := range chain {
			chain[i] ^= seed
		}
	}
	return chain
}

// cacheSeed keeps apart requests that share no cache although their prompts are the
// same; 0 for most.
func cacheSeed(r *protocol.Request) uint64 {
	if r.CacheSalt == "" && r.LoRA == nil {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte(r.CacheSalt))
	if r.LoRA != nil {
		h.Write([]byte("\x00" + strconv.FormatInt(r.LoRA.ID, 10)))
	}
	return h.Sum64()
}

// hold takes the blocks that so many tokens of a request need.
func (p *blockPool) hold(q *request, tokens int) {
	for tokens > q.blocks*p.size {
		if p.take(q, q.blocks) {
			p.held++
		}
		q.blocks++
	}
}

// take registers block i of a request and tells whether it is one more. What two
// requests compute at the same time they both hold: the second is nobody's to find.
func (p *blockPool) take(q *request, i int) bool {
	if i >= len(q.chain) {
		return true
	}
	users := p.users[q.chain[i]]
	switch {
	case users > 0 && i < q.cached/p.size:
		p.users[q.chain[i]]++
		return false
	case users > 0:
		q.chain[i] = 0
	default:
		p.users[q.chain[i]] = 1
	}
	return true
}

// release gives back all blocks of a request.
func (p *blockPool) release(q *request) {
	for i := range q.blocks {
		if i < len(q.chain) && q.chain[i] != 0 {
			if p.users[q.chain[i]]--; p.users[q.chain[i]] > 0 {
				continue
			}
			delete(p.users, q.chain[i])
		}
		p.held--
	}
	q.blocks = 0
}
