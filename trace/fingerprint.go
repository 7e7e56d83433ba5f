package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
)

// ConfigHash returns the fingerprint, scheme v3, of a capture's configuration:
// lower-case hex SHA-256 over four lines, each ended by a line feed. gpu may
// be empty; vllmTag is the line's tag ("v0.27.1"), or the version the engine
// reported if no tag was given; engineConfig is the canonical flag list
// ("block_size=16;enable_prefix_caching=true;…"), or empty. Values are hashed
// as they are, neither trimmed nor escaped.
func ConfigHash(gpu, vllmTag, engineConfig string) string {
	sum := sha256.Sum256([]byte("config-fingerprint-v3\ngpu=" + gpu + "\nvllm_tag=" + vllmTag + "\nengine_config=" + engineConfig + "\n"))
	return hex.EncodeToString(sum[:])
}

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

// ReplaySubset returns the indices of the records that can be replayed, those
// with an arrival, by ascending arrival; ties keep the order of the file. A
// record's position in it is its identity in a replay ("replay-3").
func ReplaySubset(records []Record) []int {
	var subset []int
	for i := range records {
		if records[i].ArrivalMs != nil {
			subset = append(subset, i)
		}
	}
	slices.SortStableFunc(subset, func(a, b int) int {
		return cmp.Compare(*records[a].ArrivalMs, *records[b].ArrivalMs)
	})
	return subset
}

// StreamDigest pins token streams: SHA-256 over each stream's index, count and
// ids (little endian, 32 bit each) and its finish code (one byte). Streams
// must be added by ascending index for two digests to be comparable.
type StreamDigest struct {
	h   hash.Hash
	buf []byte
}

// NewStreamDigest returns a digest of no streams.
func NewStreamDigest() *StreamDigest { return &StreamDigest{h: sha256.New()} }

// Add adds one stream. index is its position in the replay subset. An absent
// finish counts as length, which is how a player ends such a stream
// ([FinishReason.Wire]).
func (d *StreamDigest) Add(index int, ids []uint32, finish FinishReason) {
	b := binary.LittleEndian.AppendUint32(d.buf[:0], uint32(index))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	d.buf = append(b, finish.Wire())
	d.h.Write(d.buf)
}

// Hex returns the digest of the streams added so far, in lower-case hex.
func (d *StreamDigest) Hex() string { return hex.EncodeToString(d.h.Sum(nil)) }

// TokensDigest returns the StreamDigest of the output of the subset's records: the
// manifest's tokens_sha256. Records without output_token_ids are left out and
// keep their index; an empty list of ids is a stream.
func TokensDigest(records []Record, subset []int) string {
	d := NewStreamDigest()
	for index, i := range subset {
		if r := &records[i]; r.OutputTokenIDs != nil {
			d.Add(index, r.OutputTokenIDs, r.ReplayEnd())
		}
	}
	return d.Hex()
}
