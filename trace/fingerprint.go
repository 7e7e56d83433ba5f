package trace

import (
	"crypto/sha256"
	"encoding/hex"
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
