package inspect

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/trace"
)

// Engine is what decides which steps an engine makes.
type Engine struct {
	// MaxNumSeqs is how many requests run at once, MaxNumBatchedTokens how many tokens
	// a step computes.
	MaxNumSeqs, MaxNumBatchedTokens int
	// MaxModelLen is how many tokens a request may have, 0 for no limit.
	MaxModelLen int
	// BlockSize is the tokens of a block of the KV cache, Blocks their number; 0 is as
	// many as the workload could need.
	BlockSize, Blocks int
	// Caching lets prompts find the blocks of those before them.
	Caching bool
}

// Override is what is set of an engine in place of what a recording says; fields of 0 and nil are what it says.
type Override struct {
	MaxNumSeqs, MaxNumBatchedTokens, BlockSize, Blocks int
	Caching                                            *bool
}

// vLLM's defaults.
const (
	defaultSeqs   = 128
	defaultTokens = 8192
	defaultBlock  = 16
)

// EngineOf is the engine of a trace: its engine_config and max_num_seqs, for what these lack the values of otherwise, and for
// the rest vLLM's defaults.
func EngineOf(t *trace.Trace, otherwise Override) (Engine, error) {
	e := Engine{
		MaxNumSeqs: defaultSeqs, MaxNumBatchedTokens: defaultTokens, BlockSize: defaultBlock, Caching: true,
	}
	otherwise.apply(&e)
	if n := trace.Or(t.Meta.MaxNumSeqs, 0); n > 0 {
		e.MaxNumSeqs = int(min(n, 1<<20))
	}
	for pair := range strings.SplitSeq(trace.Or(t.Meta.EngineConfig, ""), ";") {
		key, value, _ := strings.Cut(pair, "=")
		if err := e.set(key, value); err != nil {
			return e, fmt.Errorf("%s: meta.engine_config: %w", t.Name, err)
		}
	}
	return e, nil
}

// set takes over a key of engine_config, if it decides about steps.
func (e *Engine) set(key, value string) (err error) {
	at := map[string]*int{
		keySeqs: &e.MaxNumSeqs, keyBudget: &e.MaxNumBatchedTokens, "max_model_len": &e.MaxModelLen, keyBlock: &e.BlockSize, keyBlocks: &e.Blocks,
	}[key]
	switch {
	case at != nil:
		*at, err = countOf(key, value)
	case key == keyCaching:
		e.Caching, err = switchOf(key, value)
	}
	return err
}

func countOf(key, value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return n, fmt.Errorf("%s is %q: want a number above 0", key, value)
	}
	return n, nil
}

func switchOf(key, value string) (bool, error) {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return on, fmt.Errorf("%s is %q: want true or false", key, value)
	}
	return on, nil
}
