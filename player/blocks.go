package player

import (
	"hash/fnv"
	"math/bits"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/protocol"
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
// blocks after equal blocks. They mean nothing outside this player, and are made of
// whole tokens: the hashes of a cassette, made byte by byte, take several times as long.
func (p *blockPool) chain(r *protocol.Request) []uint64 {
	blocks := len(r.PromptTokenIDs) / p.size
	if !p.cached || blocks == 0 {
		return nil
	}
	const odd = 0x9e3779b97f4a7c15 // multiplying by it loses nothing
	chain, h := make([]uint64, 0, blocks), cacheSeed(r)
	for block := range slices.Chunk(r.PromptTokenIDs[:blocks*p.size], p.size) {
		for _, token := range block {
			h = bits.RotateLeft64(((h^uint64(token))+1)*odd, 31)
		}
		chain = append(chain, h)
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
