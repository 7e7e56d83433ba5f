package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
	"strings"
)

// HashScheme is a way of computing meta.config_hash.
type HashScheme int

const (
	// HashUnknown is an override by the user, or inputs the meta does not have.
	HashUnknown HashScheme = 0
	// HashV1 and HashV2 are of older recorders and only recognised.
	HashV1 HashScheme = 1
	HashV2 HashScheme = 2
	// HashV3 is what ConfigHash computes.
	HashV3 HashScheme = 3
)

// ConfigHash returns the fingerprint, scheme v3, of a capture's configuration:
// lower-case hex SHA-256 over four lines, each ended by a line feed. gpu may
// be empty; vllmTag is the line's tag ("v0.27.1"), or the version the engine
// reported if no tag was given; engineConfig is the canonical flag list
// ("block_size=16;enable_prefix_caching=true;…"), or empty. Values are hashed
// as they are, neither trimmed nor escaped.
func ConfigHash(gpu, vllmTag, engineConfig string) string {
	return fingerprint("config-fingerprint-v3",
		"gpu", gpu, "vllm_tag", vllmTag, "engine_config", engineConfig)
}

// LegacyConfig is the input of the older schemes.
type LegacyConfig struct {
	Model, GPU string
	// TP is the tensor-parallel size, BlockSize in tokens, MaxNumSeqs the
	// scheduler's batch cap.
	TP, BlockSize, MaxNumSeqs uint64
	VLLMTag                   string
	// EnablePrefixCaching and Speculative ("none", "ngram-k3") enter v2 only.
	EnablePrefixCaching bool
	Speculative         string
}

// HashV1 returns the fingerprint by scheme v1.
func (c LegacyConfig) HashV1() string { return fingerprint("config-fingerprint-v1", c.v1()...) }

// HashV2 returns the fingerprint by scheme v2.
func (c LegacyConfig) HashV2() string {
	return fingerprint("config-fingerprint-v2", append(c.v1(),
		"enable_prefix_caching", strconv.FormatBool(c.EnablePrefixCaching),
		"speculative", c.Speculative)...)
}

func (c LegacyConfig) v1() []string {
	return []string{
		"model", c.Model,
		"gpu", c.GPU,
		"tp", strconv.FormatUint(c.TP, 10),
		"block_size", strconv.FormatUint(c.BlockSize, 10),
		"max_num_seqs", strconv.FormatUint(c.MaxNumSeqs, 10),
		"vllm_tag", c.VLLMTag,
	}
}

// fingerprint hashes the scheme's name and its keys and values, a line each.
func fingerprint(scheme string, pairs ...string) string {
	var b strings.Builder
	b.WriteString(scheme + "\n")
	for i := 0; i < len(pairs); i += 2 {
		b.WriteString(pairs[i] + "=" + pairs[i+1] + "\n")
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

// ConfigScheme finds the scheme by which m.ConfigHash follows from the rest of
// the meta. Old traces lack the tag, so the reported version is tried in its
// place, with and without "v"; a v2 hash of a speculative capture is not found,
// because the meta does not hold its descriptor.
func (m *Meta) ConfigScheme() HashScheme {
	if m.ConfigHash == nil {
		return HashUnknown
	}
	tags := []string{Or(m.VLLMTag, ""), Or(m.VLLMVersion, ""), "v" + Or(m.VLLMVersion, "")}
	for _, tag := range tags {
		if s := m.schemeWithTag(tag); s != HashUnknown {
			return s
		}
	}
	return HashUnknown
}

func (m *Meta) schemeWithTag(tag string) HashScheme {
	c := LegacyConfig{
		Model: Or(m.Model, ""), GPU: Or(m.GPU, ""), VLLMTag: tag, Speculative: "none",
		TP: uint64(Or(m.TP, 0)), BlockSize: uint64(Or(m.BlockSize, 0)), MaxNumSeqs: Or(m.MaxNumSeqs, 0),
	}
	cached := c
	cached.EnablePrefixCaching = true
	switch *m.ConfigHash {
	case ConfigHash(c.GPU, tag, Or(m.EngineConfig, "")):
		return HashV3
	case c.HashV2(), cached.HashV2():
		return HashV2
	case c.HashV1():
		return HashV1
	}
	return HashUnknown
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

// TokensDigest returns the StreamDigest of what the subset's records said: the
// manifest's tokens_sha256. Records without output_token_ids are left out and
// keep their index; an empty list of ids is a stream.
func TokensDigest(records []Record, subset []int) string {
	d := NewStreamDigest()
	for index, i := range subset {
		if r := &records[i]; r.OutputTokenIDs != nil {
			d.Add(index, r.OutputTokenIDs, r.FinishReason)
		}
	}
	return d.Hex()
}
