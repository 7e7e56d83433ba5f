// Package blake3 computes BLAKE3, the hash by which vLLM names images. See https://github.com/BLAKE3-team/BLAKE3-specs.
package blake3

import (
	"encoding/binary"
	"math/bits"
)

const (
	chunkLen = 1024
	blockLen = 64
)

// Flags of a block.
const (
	chunkStart = 1 << iota
	chunkEnd
	parent
	root
)

var iv = [8]uint32{0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19}

// order is which word of the block is where in the next round.
var order = [16]int{2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8}

// Sum256 is the hash of data.
func Sum256(data []byte) (sum [32]byte) {
	for i, word := range node(data, 0, root) {
		binary.LittleEndian.PutUint32(sum[4*i:], word)
	}
	return sum
}

// node is the chaining value of a part of the data that begins with a numbered chunk. flag is root for the whole.
func node(data []byte, chunk uint64, flag uint32) [8]uint32 {
	if len(data) <= chunkLen {
		return leaf(data, chunk, flag)
	}
	// The left part is the largest power of two of chunks that leaves something for the right one.
	left := chunkLen << (bits.Len(uint((len(data)-1)/chunkLen)) - 1)
	l, r := node(data[:left], chunk, 0), node(data[left:], chunk+uint64(left/chunkLen), 0)
	var block [16]uint32
	copy(block[:8], l[:])
	copy(block[8:], r[:])
	return compress(iv, block, 0, blockLen, parent|flag)
}

func leaf(data []byte, chunk uint64, flag uint32) [8]uint32 {
	value := iv
	flags := uint32(chunkStart)
	for {
		var padded [blockLen]byte
		n := copy(padded[:], data)
		var block [16]uint32
		for i := range block {
			block[i] = binary.LittleEndian.Uint32(padded[4*i:])
		}
		if data = data[n:]; len(data) == 0 {
			return compress(value, block, chunk, uint32(n), flags|chunkEnd|flag)
		}
		value = compress(value, block, chunk, blockLen, flags)
		flags = 0
	}
}

func compress(value [8]uint32, m [16]uint32, counter uint64, length, flags uint32) (out [8]uint32) {
	v := [16]uint32{
		value[0], value[1], value[2], value[3], value[4], value[5], value[6], value[7],
		iv[0], iv[1], iv[2], iv[3], uint32(counter), uint32(counter >> 32), length, flags,
	}
	for round := range 7 {
		if round > 0 {
			var next [16]uint32
			for i, from := range order {
				next[i] = m[from]
			}
			m = next
		}
		mix(&v, 0, 4, 8, 12, m[0], m[1])
		mix(&v, 1, 5, 9, 13, m[2], m[3])
		mix(&v, 2, 6, 10, 14, m[4], m[5])
		mix(&v, 3, 7, 11, 15, m[6], m[7])
		mix(&v, 0, 5, 10, 15, m[8], m[9])
		mix(&v, 1, 6, 11, 12, m[10], m[11])
		mix(&v, 2, 7, 8, 13, m[12], m[13])
		mix(&v, 3, 4, 9, 14, m[14], m[15])
	}
	for i := range out {
		out[i] = v[i] ^ v[i+8]
	}
	return out
}

func mix(v *[16]uint32, a, b, c, d int, x, y uint32) {
	v[a] += v[b] + x
	v[d] = bits.RotateLeft32(v[d]^v[a], -16)
	v[c] += v[d]
	v[b] = bits.RotateLeft32(v[b]^v[c], -12)
	v[a] += v[b] + y
	v[d] = bits.RotateLeft32(v[d]^v[a], -8)
	v[c] += v[d]
	v[b] = bits.RotateLeft32(v[b]^v[c], -7)
}
