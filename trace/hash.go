package trace

// FNV-1a, 64 bit.
const (
	fnvOffset uint64 = 0xcbf29ce484222325
	fnvPrime  uint64 = 0x100000001b3
)

// BlockHashes returns the chain of a prompt's full blocks of blockSize tokens:
// one hash per block, each over the previous hash and the block's ids, so that
// equal hashes at depth k mean equal first k blocks. Tokens behind the last
// full block do not count. It is nil if there is no full block or blockSize is
// not positive.
//
// Each hash is FNV-1a over the previous hash (little endian, 64 bit; the FNV
// offset basis before the first block) and the ids (little endian, 32 bit).
// LoRA, cache salt and multimodal hashes do not enter.
func BlockHashes(tokens []uint32, blockSize int) []uint64 {
	if blockSize <= 0 || len(tokens) < blockSize {
		return nil
	}
	return AppendBlockHashes(make([]uint64, 0, len(tokens)/blockSize), tokens, blockSize)
}

// AppendBlockHashes appends the chain to dst.
func AppendBlockHashes(dst []uint64, tokens []uint32, blockSize int) []uint64 {
	if blockSize <= 0 {
		return dst
	}
	prev := fnvOffset
	for len(tokens) >= blockSize {
		prev = blockHash(prev, tokens[:blockSize])
		dst = append(dst, prev)
		tokens = tokens[blockSize:]
	}
	return dst
}

func blockHash(prev uint64, block []uint32) uint64 {
	h := fnvOffset
	for i := 0; i < 64; i += 8 {
		h = (h ^ (prev >> i & 0xff)) * fnvPrime
	}
	for _, t := range block {
		h = (h ^ uint64(t&0xff)) * fnvPrime
		h = (h ^ uint64(t>>8&0xff)) * fnvPrime
		h = (h ^ uint64(t>>16&0xff)) * fnvPrime
		h = (h ^ uint64(t>>24)) * fnvPrime
	}
	return h
}
