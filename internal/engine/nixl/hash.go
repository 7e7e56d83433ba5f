package nixl

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A Config is what the compatibility hash is computed from (vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py
// compute_nixl_compatibility_hash). Two engines move KV caches only if all of it is the same, the release included.
type Config struct {
	Release      string // of vLLM, as vllm.__version__; default that of the line
	Model        string // as --model has it
	DType        string // "torch.bfloat16"
	KVHeads      int    // of the model, before it is split
	HeadSize     int
	Layers       int
	AttnBackend  string // "CPU_ATTN", "FLASH_ATTN"
	CacheDType   string // --kv-cache-dtype; default "auto"
	NoHMA        bool   // --disable-hybrid-kv-cache-manager
	CrossLayers  bool   // before 0.29
	TransferMode string // since 0.28; default "pull"
	// Speculative is what the line takes of a speculator that reads hidden states, such as EAGLE; nil without one.
	Speculative map[string]any
}

// CompatibilityHash is the hash of an engine of the line.
func (l *Line) CompatibilityHash(c Config) (string, error) {
	or := func(value, other string) string {
		if value == "" {
			return other
		}
		return value
	}
	known := map[string]any{
		"vllm_version": or(c.Release, l.Release), "nixl_connector_version": l.Version, "model": c.Model, "dtype": c.DType,
		"num_kv_heads": c.KVHeads, "head_size": c.HeadSize, "num_hidden_layers": c.Layers, "attn_backend_name": c.AttnBackend,
		"cache_dtype": or(c.CacheDType, "auto"), "cross_layers_blocks": c.CrossLayers, "is_hma_enabled": !c.NoHMA,
		"speculative_config": c.Speculative, "transfer_mode": or(c.TransferMode, "pull"),
	}
	const formula = `"hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()"`
	if got := string(l.Constants["hash formula"].Value); got != formula {
		return "", fmt.Errorf("vLLM %s computes its compatibility hash as %s, which this program does not", l.Name, got)
	}
	factors := map[string]any{}
	for name := range l.Constants {
		factor, is := strings.CutPrefix(name, "hash of ")
		if !is {
			continue
		}
		value, has := known[factor]
		if !has {
			return "", fmt.Errorf("vLLM %s has %s in its compatibility hash, which this program does not know", l.Name, factor)
		}
		factors[factor] = value
	}
	text, err := json.Marshal(factors)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(asPython(text))
	return hex.EncodeToString(sum[:]), nil
}

// asPython writes JSON as json.dumps does: in ASCII, with a space behind each comma and colon.
func asPython(text []byte) (b []byte) {
	quoted := false
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r >= 0x10000:
			high, low := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		case r >= utf8.RuneSelf:
			b = fmt.Appendf(b, `\u%04x`, r)
		case quoted && r == '\\':
			n = 2
			b = append(b, text[i:i+2]...)
		default:
			b = append(b, byte(r))
			if r == '"' {
				quoted = !quoted
			} else if !quoted && (r == ',' || r == ':') {
				b = append(b, ' ')
			}
		}
		i += n
	}
	return b
}
