package trace

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

// PromptDigest identifies what a record asks, whenever it asked: SHA-256 over "t" and the prompt's ids (little endian, 32 bit
// each), or where these are not recorded over "b", the prompt's length in tokens (32 bit) and its block hashes (64 bit each);
// then over the hash of each multimodal item and a line feed.
func (r *Record) PromptDigest() [sha256.Size]byte {
	var b []byte
	if r.PromptTokenIDs != nil {
		b = appendIDs([]byte("t"), r.PromptTokenIDs)
	} else {
		b = binary.LittleEndian.AppendUint32([]byte("b"), uint32(r.PromptTokens))
		for _, hash := range r.BlockHashes {
			b = binary.LittleEndian.AppendUint64(b, hash)
		}
	}
	for _, hash := range r.MMHashes {
		b = append(append(b, hash...), '\n')
	}
	return sha256.Sum256(b)
}

func appendIDs(b []byte, ids []uint32) []byte {
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return b
}

// AnswersDigest pins which tokens were answered to which prompts: SHA-256 over the answers in the order of their bytes, each
// being the [Record.PromptDigest] of its request, its count of ids and the ids (little endian, 32 bit each) and its finish code
// (one byte). When the requests arrived does not matter, so another capture of the same requests has the same digest if it got
// the same answers. The zero value has no answers.
type AnswersDigest struct{ answers [][]byte }

// Add adds the answer to the request of a record. An absent finish counts as length, which is how a player ends such a stream
// ([FinishReason.Wire]).
func (d *AnswersDigest) Add(asked *Record, ids []uint32, finish FinishReason) {
	prompt := asked.PromptDigest()
	b := binary.LittleEndian.AppendUint32(prompt[:], uint32(len(ids)))
	d.answers = append(d.answers, append(appendIDs(b, ids), finish.Wire()))
}

// Hex returns the digest of the answers added so far, in lower-case hex.
func (d *AnswersDigest) Hex() string {
	slices.SortFunc(d.answers, bytes.Compare)
	h := sha256.New()
	for _, answer := range d.answers {
		h.Write(answer)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TokensDigest returns the AnswersDigest of the output of the subset's records: the manifest's tokens_sha256. Records without
// output_token_ids are left out; an empty list of ids is an answer.
func TokensDigest(records []Record, subset []int) string {
	var d AnswersDigest
	for _, i := range subset {
		if r := &records[i]; r.OutputTokenIDs != nil {
			d.Add(r, r.OutputTokenIDs, r.ReplayEnd())
		}
	}
	return d.Hex()
}

// ArrivalDigest returns what tokens_sha256 was before it was [TokensDigest], and still is in older manifests: SHA-256 over each
// stream's position in the subset, its count of ids and the ids (little endian, 32 bit each) and its finish code (one byte).
func ArrivalDigest(records []Record, subset []int) string {
	h := sha256.New()
	for index, i := range subset {
		if r := &records[i]; r.OutputTokenIDs != nil {
			b := binary.LittleEndian.AppendUint32(nil, uint32(index))
			b = binary.LittleEndian.AppendUint32(b, uint32(len(r.OutputTokenIDs)))
			h.Write(append(appendIDs(b, r.OutputTokenIDs), r.ReplayEnd().Wire()))
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
