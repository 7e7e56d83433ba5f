// Package kvcache keeps the blocks of an engine's KV cache as vLLM does for a model
// with one group of full attention: which sequence holds which block, which blocks a new
// prompt finds, which are forgotten for new ones, and what a publisher of KV events
// says so.
//
// The tokens of a [Sequence] are cut into blocks. A full block has a hash that
// covers its tokens, the block before it, and what else decides about its content
// ([Extra]); blocks of generated tokens have one as soon as they are full. A block
// that no sequence holds stays in the free queue with its hash, and is found there, until
// its turn to be used anew comes.
//
//	pool, err := kvcache.New(kvcache.Options{Blocks: 1000, BlockSize: 16, Caching: true})
//	s := kvcache.NewSequence(prompt)
//	cached := pool.Lookup(s)
//	if pool.Allocate(s, cached, len(prompt)-cached, 0) { // the prompt is computed in this step
//		s.Tokens = append(s.Tokens, said)
//		ok := pool.Allocate(s, len(s.Tokens)-1, 1, 0) // and the token it said in the next
//	}
//	pool.Free(s)
//
// What follows which source, below vllm/v1/core:
//
//	hashes, extra keys    kv_cache_utils.py    hash_block_tokens, generate_block_hash_extra_keys, init_none_hash
//	byte forms            ../../../utils/hashing.py  sha256, sha256_cbor, xxhash, xxhash_cbor
//	free queue            kv_cache_utils.py    FreeKVCacheBlockQueue
//	eviction, events      block_pool.py        get_new_blocks, touch, cache_full_blocks, free_blocks, reset_prefix_cache
//	lookup, allocation    kv_cache_manager.py  get_computed_blocks, allocate_slots, free
//
// testdata/vectors.py asks an installed vLLM for the vectors that the tests replay.
//
// The package knows no scheduler and no time, and of the wire only the rules of lines. A Pool is not safe for
// concurrent use.
package kvcache
