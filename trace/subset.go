package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
)

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
