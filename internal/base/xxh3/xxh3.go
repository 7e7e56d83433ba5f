// Package xxh3 computes XXH3 hashes of 128 bits, without seed and secret, as specified in
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
//
// It is written out here because modules for it look for the processor's vector units at every start of a process, which
// takes longer than the hashes of a whole session: what is hashed are blocks of some hundred bytes.
package xxh3

import (
	"encoding/binary"
	"math/bits"
)

const (
	prime32x1 = 0x9E3779B1
	prime32x2 = 0x85EBCA77
	prime32x3 = 0xC2B2AE3D

	prime64x1 = 0x9E3779B185EBCA87
	prime64x2 = 0xC2B2AE3D27D4EB4F
	prime64x3 = 0x165667B19E3779F9
	prime64x4 = 0x85EBCA77C2B2AE63
	prime64x5 = 0x27D4EB2F165667C5

	primeMix1 = 0x165667919E3779F9
	primeMix2 = 0x9FB21C651E98DF25
)

// secret is the default one of the specification.
var secret = [192]byte{
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
	0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
	0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
	0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
	0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
	0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
	0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
	0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
	0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
	0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
	0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
	0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
}

// Sum128 returns the hash of b in canonical form, most significant byte first.
func Sum128(b []byte) (sum [16]byte) {
	var low, high uint64
	n := uint64(len(b))
	switch {
	case n == 0:
		low, high = mix64(key(64)^key(72)), mix64(key(80)^key(88))
	case n <= 3:
		word := uint32(b[0])<<16 | uint32(b[n>>1])<<24 | uint32(b[n-1]) | uint32(n)<<8
		swapped := bits.RotateLeft32(bits.ReverseBytes32(word), 13)
		low = mix64(uint64(word) ^ (key(0)^key(4))&(1<<32-1))
		high = mix64(uint64(swapped) ^ (key(8)^key(12))&(1<<32-1))
	case n <= 8:
		word := uint64(binary.LittleEndian.Uint32(b)) + uint64(binary.LittleEndian.Uint32(b[n-4:]))<<32
		high, low = bits.Mul64(word^(key(16)^key(24)), prime64x1+n<<2)
		high += low << 1
		low ^= high >> 3
		low = (low ^ low>>35) * primeMix2
		low ^= low >> 28
		high = avalanche(high)
	case n <= 16:
		first, last := read(b), read(b[n-8:])
		high, low = bits.Mul64(first^last^key(32)^key(40), prime64x1)
		low += (n - 1) << 54
		last ^= key(48) ^ key(56)
		high += last + (last&(1<<32-1))*(prime32x2-1)
		low ^= bits.ReverseBytes64(high)
		carry, product := bits.Mul64(low, prime64x2)
		low, high = avalanche(product), avalanche(carry+high*prime64x2)
	case n <= 240:
		low, high = medium(b)
	default:
		low, high = long(b)
	}
	binary.BigEndian.PutUint64(sum[:], high)
	binary.BigEndian.PutUint64(sum[8:], low)
	return sum
}

// medium hashes 17 to 240 bytes.
func medium(b []byte) (low, high uint64) {
	n := len(b)
	low = uint64(n) * prime64x1
	if n <= 128 {
		for i := (n - 1) / 32; i >= 0; i-- {
			low, high = mix(low, high, b[16*i:], b[n-16*i-16:], secret[32*i:])
		}
	} else {
		for i := 0; i < 128; i += 32 {
			low, high = mix(low, high, b[i:], b[i+16:], secret[i:])
		}
		low, high = avalanche(low), avalanche(high)
		for i := 128; i+32 <= n; i += 32 {
			low, high = mix(low, high, b[i:], b[i+16:], secret[i-128+3:])
		}
		low, high = mix(low, high, b[n-16:], b[n-32:], secret[136-17-16:])
	}
	sum := low + high
	high = low*prime64x1 + high*prime64x4 + uint64(n)*prime64x2
	return avalanche(sum), -avalanche(high)
}

// mix adds 16 bytes of each end to the sums.
func mix(low, high uint64, one, two, secret []byte) (uint64, uint64) {
	one, two, secret = one[:16:16], two[:16:16], secret[:32:32]
	a, b := read(one), read(one[8:])
	c, d := read(two), read(two[8:])
	low += fold(a^read(secret), b^read(secret[8:]))
	high += fold(c^read(secret[16:]), d^read(secret[24:]))
	return low ^ (c + d), high ^ (a + b)
}

const (
	stripe          = 64
	stripesPerBlock = (len(secret) - stripe) / 8
	block           = stripesPerBlock * stripe
)

// long hashes more than 240 bytes.
func long(b []byte) (low, high uint64) {
	acc := [8]uint64{prime32x3, prime64x1, prime64x2, prime64x3, prime64x4, prime32x2, prime64x5, prime32x1}
	add := func(b []byte, at int) {
		b, secret := b[:stripe], secret[at:at+stripe]
		for i := range acc {
			value := read(b[8*i:])
			keyed := value ^ read(secret[8*i:])
			acc[i^1] += value
			acc[i] += (keyed & (1<<32 - 1)) * (keyed >> 32)
		}
	}
	rest := b
	for len(rest) > block {
		for i := range stripesPerBlock {
			add(rest[stripe*i:], 8*i)
		}
		rest = rest[block:]
		for i := range acc {
			acc[i] = (acc[i] ^ acc[i]>>47 ^ key(len(secret)-stripe+8*i)) * prime32x1
		}
	}
	for i := range (len(rest) - 1) / stripe {
		add(rest[stripe*i:], 8*i)
	}
	add(b[len(b)-stripe:], len(secret)-stripe-7)

	merge := func(at int, sum uint64) uint64 {
		for i := 0; i < len(acc); i += 2 {
			sum += fold(acc[i]^key(at+8*i), acc[i+1]^key(at+8*i+8))
		}
		return avalanche(sum)
	}
	n := uint64(len(b))
	return merge(11, n*prime64x1), merge(len(secret)-stripe-11, ^(n * prime64x2))
}

func read(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func key(at int) uint64 { return binary.LittleEndian.Uint64(secret[at:]) }

// fold is the product of a and b, its halves combined.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func avalanche(h uint64) uint64 {
	h = (h ^ h>>37) * primeMix1
	return h ^ h>>32
}

// mix64 is the avalanche of XXH64.
func mix64(h uint64) uint64 {
	h = (h ^ h>>33) * prime64x2
	h = (h ^ h>>29) * prime64x3
	return h ^ h>>32
}
