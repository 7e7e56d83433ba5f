package kvcache

import "slices"

// Key is one extra key of a block: what is in its hash beside its tokens.
type Key struct {
	Kind KeyKind
	// Text is the name of the adapter, the salt, or the id of the feature.
	Text string
	// Offset is that of the feature in the block: negative if it began before it.
	Offset int
}

// KeyKind says what a [Key] is of.
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
