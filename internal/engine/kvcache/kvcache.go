package kvcache

import (
	"cmp"
	"fmt"
	"math"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Options describe a pool.
type Options struct {
	// Blocks is the number of blocks of the cache, as vLLM counts them
	// (num_gpu_blocks): one of them is never given out. At least 2.
	Blocks int
	// BlockSize is the number of tokens a block holds. At least 1.
	BlockSize int
	// Caching lets new sequences find the blocks of others: vLLM's
	// enable_prefix_caching.
	Caching bool
	// Algorithm hashes the blocks. Without one it is SHA256, as in vLLM, if there
	// are events to show the hashes, else a fast hash of this package's own.
	Algorithm Algorithm
	// Seed is PYTHONHASHSEED, of which the hash before a first block is made. Empty
	// stands for [DefaultSeed]; engines whose default is a random one can differ
	// from each other only in the values of their hashes.
	Seed string
	// Events makes the pool write down what [Pool.TakeEvents] returns.
	Events bool
	// MaxModelLen caps the tokens of a sequence that get slots; 0 means no cap. Only
	// lookahead can exceed it.
	MaxModelLen int
	// Rules are those in which released engines differ.
	Rules Rules
	// Lives follows the blocks that it samples; nil follows none.
	Lives *Lives
}

// Rules are those in which the pools of released engines differ; each is a rule of
// [protocol.LineRule].
type Rules struct {
	PlainKeys   bool // protocol.PlainBlockKeys
	LastFeature bool // protocol.LastFeatureHashed
	FreedLast   bool // protocol.FreedBlocksLast
}

// RulesOf returns the rules of a line's engines, such as "0.33".
func RulesOf(line string) Rules {
	return Rules{
		PlainKeys:   protocol.PlainBlockKeys.Holds(line),
		LastFeature: protocol.LastFeatureHashed.Holds(line),
		FreedLast:   protocol.FreedBlocksLast.Holds(line),
	}
}

// DefaultSeed is what vLLM 0.33 makes the hash before a first block of
// (DEFAULT_NONE_HASH_SEED).
const DefaultSeed = "vllm-none-hash"

// Pool is the KV cache of one engine. Block 0 is never given out, as vLLM's null
// block does; here it joins the ends of the free queue.
type Pool struct {
	blockSize, maxTokens int
	caching, events      bool
	rules                Rules
	hasher               *hasher

	blocks []block
	free   int              // blocks in the free queue
	cached map[digest]int32 // the first of the blocks with a hash
	queue  []Event
	hits   []int32 // scratch: what the sequence at hand found
	keys   []Key   // scratch
	lives  *Lives
}

// block is one block of the cache. A free one is between two others in the free
// queue, a hashed one in the ring of those with the same hash, oldest first.
type block struct {
	prev, next         int32
	prevTwin, nextTwin int32
	refs               int32
	hashed             bool
	hash               digest
}

// MaxBlocks is how many blocks a pool has at most; it keeps some 60 bytes of each.
const MaxBlocks = 1 << 24

// New returns a pool whose blocks are all free.
func New(o Options) (*Pool, error) {
	switch {
	case o.BlockSize < 1:
		return nil, fmt.Errorf("block size %d: give a block at least one token", o.BlockSize)
	case o.Blocks < 2:
		return nil, fmt.Errorf("%d blocks: one is never given out, so have at least 2", o.Blocks)
	case o.Blocks > MaxBlocks:
		return nil, fmt.Errorf("%d blocks: have at most %d", o.Blocks, MaxBlocks)
	case o.MaxModelLen < 0:
		return nil, fmt.Errorf("max model length %d: it cannot be negative", o.MaxModelLen)
	}
	h, err := newHasher(&o)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		blockSize: o.BlockSize, maxTokens: o.MaxModelLen, caching: o.Caching, events: o.Events, rules: o.Rules,
		lives: o.Lives, hasher: h, blocks: make([]block, o.Blocks), free: o.Blocks - 1, cached: map[digest]int32{},
	}
	p.maxTokens = cmp.Or(p.maxTokens, math.MaxInt)
	last := int32(o.Blocks - 1)
	for i := range p.blocks {
		p.blocks[i].prev, p.blocks[i].next = int32(i)-1, int32(i)+1
	}
	p.blocks[0].prev, p.blocks[last].next = last, 0
	return p, nil
}

// BlockSize is the number of tokens a block holds.
func (p *Pool) BlockSize() int { return p.blockSize }

// FreeBlocks is the number of blocks that no sequence holds.
func (p *Pool) FreeBlocks() int { return p.free }

// Usage is the part of the blocks that is held, from 0 to 1.
func (p *Pool) Usage() float64 { return 1 - float64(p.free)/float64(len(p.blocks)-1) }

// Fits reports whether so many tokens have room in the pool when no other sequence is in
// it. Allocate returns false for ever for a sequence that does not fit.
func (p *Pool) Fits(tokens int) bool { return p.blocksFor(tokens) <= len(p.blocks)-1 }

// blocksFor is the number of blocks that so many tokens need.
func (p *Pool) blocksFor(tokens int) int {
	tokens = min(tokens, p.maxTokens)
	if tokens <= 0 {
		return 0
	}
	return (tokens-1)/p.blockSize + 1
}

// Cached returns the hashes of all blocks that a new sequence could find, each once and in no order.
func (p *Pool) Cached() [][]byte {
	var hashes [][]byte
	for hash := range p.cached {
		hashes = append(hashes, p.hasher.bytes(hash))
	}
	return hashes
}

// Reset forgets what is cached, unless a block is held: then it changes nothing and
// returns false.
func (p *Pool) Reset() bool {
	if p.free != len(p.blocks)-1 {
		return false
	}
	clear(p.cached)
	if p.lives != nil {
		clear(p.lives.blocks)
		p.lives.ended = nil
	}
	for i := range p.blocks {
		p.blocks[i].hashed = false
	}
	if p.events {
		p.queue = append(p.queue, AllBlocksCleared{})
	}
	return true
}
