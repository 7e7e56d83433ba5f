package kvcache

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
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
	seed = cmp.Or(seed, DefaultSeed)
	h.encoder.begin()
	h.encoder.text(seed)
	h.none = h.sum(h.encoder.end())
	return h, nil
}

func sumXXH3(b []byte) (d digest) {
	sum := xxh3.Hash128(b).Bytes()
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

// Key is one extra key of a block: a part of its hash that is not its tokens.
type Key struct {
	Kind KeyKind
	// Text is the name of the adapter, the salt, or the id of the feature.
	Text string
	// Offset is that of the feature in the block: negative if it began before it.
	Offset int
}

// KeyKind is the kind of a [Key].
type KeyKind uint8

const (
	KeyLoRA    KeyKind = iota + 1 // an adapter
	KeyFeature                    // a multimodal feature
	KeySalt                       // a cache salt
)

// keys appends the extra keys of the block of tokens from start to end, in the order
// of vLLM: adapter, features, salt. feature is the first feature that the block can
// have; the one of the next block is returned.
func (e *Extra) keys(keys []Key, start, end, feature int) ([]Key, int) {
	if e.LoRA.Name != "" {
		keys = append(keys, Key{Kind: KeyLoRA, Text: e.LoRA.Name})
	}
	keys, feature = e.featureKeys(keys, start, end, feature)
	if start == 0 && e.Salt != "" {
		keys = append(keys, Key{Kind: KeySalt, Text: e.Salt})
	}
	return keys, feature
}

// featureKeys appends the features that reach into the block (_gen_mm_extra_hash_keys).
func (e *Extra) featureKeys(keys []Key, start, end, feature int) ([]Key, int) {
	for ; feature < len(e.Features); feature++ {
		f := &e.Features[feature]
		if f.Offset >= end {
			break
		}
		if f.Offset+f.Length <= start {
			continue
		}
		keys = append(keys, Key{Kind: KeyFeature, Text: f.ID, Offset: f.Offset - start})
		if f.Offset+f.Length > end {
			break
		}
	}
	return keys, feature
}

// hash returns the hash of block i of s, which is full.
func (p *Pool) hash(s *Sequence, i int) digest {
	if len(s.hashes) <= i {
		s.hashes = slices.Grow(s.hashes, len(s.Tokens)/p.blockSize-len(s.hashes))
	}
	for len(s.hashes) <= i {
		start := len(s.hashes) * p.blockSize
		end := start + p.blockSize
		if p.rules.LastFeature && start > 0 && end > s.prompt {
			s.feature = max(s.feature, len(s.Extra.Features)-1)
		}
		p.keys, s.feature = s.Extra.keys(p.keys[:0], start, end, s.feature)
		parent := &p.hasher.none
		if start > 0 {
			parent = &s.hashes[len(s.hashes)-1]
		}
		s.hashes = append(s.hashes, p.hasher.block(parent, s.Tokens[start:end], p.keys, s.Extra.LoRA.Path))
	}
	return s.hashes[i]
}
