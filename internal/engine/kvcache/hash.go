package kvcache

import (
	"crypto/sha256"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/base/xxh3"
)

// Algorithm names how blocks are hashed, as --prefix-caching-hash-algo does.
type Algorithm string

const (
	SHA256     Algorithm = "sha256"      // of the pickled block
	SHA256CBOR Algorithm = "sha256_cbor" // of the block in canonical CBOR
	XXHash     Algorithm = "xxhash"      // XXH3, 128 bits, of the pickled block
	XXHashCBOR Algorithm = "xxhash_cbor"
)

// maxPickledBlock keeps what is pickled of a block within one frame of 64 KiB.
const maxPickledBlock = 8192

// digest is a hash; the shorter ones end in zeros.
type digest [sha256.Size]byte

// hasher hashes blocks in one way.
type hasher struct {
	encoder encoder
	sum     func([]byte) digest
	size    int  // bytes of the digest that mean something
	plain   bool // extra keys without their kinds
	none    digest
}

func newHasher(o *Options) (*hasher, error) {
	h := &hasher{plain: o.Rules.PlainKeys, sum: sumXXH3, size: 16}
	algorithm := o.Algorithm
	if algorithm == "" && o.Events {
		algorithm = SHA256
	}
	switch algorithm {
	case SHA256, XXHash:
		h.encoder = &pickle{}
		if o.BlockSize > maxPickledBlock {
			return nil, fmt.Errorf("block size %d: %s hashes at most %d tokens a block, choose %s or %s",
				o.BlockSize, algorithm, maxPickledBlock, SHA256CBOR, XXHashCBOR)
		}
	case SHA256CBOR, XXHashCBOR:
		h.encoder = &cbor{}
	case "":
		h.encoder = &plain{}
	default:
		return nil, fmt.Errorf("hash algorithm %q: want %s, %s, %s or %s",
			algorithm, SHA256, SHA256CBOR, XXHash, XXHashCBOR)
	}
	if algorithm == SHA256 || algorithm == SHA256CBOR {
		h.sum, h.size = func(b []byte) digest { return sha256.Sum256(b) }, sha256.Size
	}
	seed := o.Seed
	if seed == "" {
		seed = DefaultSeed
	}
	h.encoder.begin()
	h.encoder.text(seed)
	h.none = h.sum(h.encoder.end())
	return h, nil
}

func sumXXH3(b []byte) (d digest) {
	sum := xxh3.Sum128(b)
	copy(d[:], sum[:])
	return d
}

// bytes returns the part of a digest that means something.
func (h *hasher) bytes(d digest) []byte { return d[:h.size:h.size] }

// block hashes (parent, tokens, keys): the keys are nothing or a tuple. Each is a
// tuple with its kind and all it has, or plainly what it is.
func (h *hasher) block(parent *digest, tokens []uint32, keys []Key, path string) digest {
	e := h.encoder
	e.begin()
	e.open(3)
	e.bytes(parent[:h.size])
	e.open(len(tokens))
	e.tokens(tokens)
	e.close(len(tokens))
	if len(keys) == 0 {
		e.none()
	} else {
		e.open(len(keys))
		for i := range keys {
			h.key(&keys[i], path)
		}
		e.close(len(keys))
	}
	e.close(3)
	return h.sum(e.end())
}

func (h *hasher) key(k *Key, path string) {
	e := h.encoder
	switch {
	case k.Kind == KeyFeature && h.plain:
		e.open(2)
		e.text(k.Text)
		e.number(k.Offset)
		e.close(2)
	case h.plain:
		e.text(k.Text)
	case k.Kind == KeyFeature:
		e.open(3)
		e.name("mm")
		e.text(k.Text)
		e.number(k.Offset)
		e.close(3)
	case k.Kind == KeyLoRA:
		e.open(3)
		e.name("lora")
		e.text(k.Text)
		e.text(path)
		e.close(3)
	default:
		e.open(2)
		e.name("cache_salt")
		e.text(k.Text)
		e.close(2)
	}
}
