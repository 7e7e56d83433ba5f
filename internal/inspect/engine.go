package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/trace"
)

// Engine is what decides which steps an engine makes.
type Engine struct {
	// MaxNumSeqs is how many requests run at once, MaxNumBatchedTokens how many tokens
	// a step computes.
	MaxNumSeqs          int `json:"max_num_seqs"`
	MaxNumBatchedTokens int `json:"max_num_batched_tokens"`
	// MaxModelLen is how many tokens a request may have, 0 for no limit.
	MaxModelLen int `json:"max_model_len"`
	// BlockSize is the tokens of a block of the KV cache, Blocks their number; 0 is as
	// many as the workload could need.
	BlockSize int `json:"block_size"`
	Blocks    int `json:"num_gpu_blocks"`
	// Caching lets prompts find the blocks of those before them.
	Caching bool `json:"enable_prefix_caching"`
	// Async schedules a step while the one before is computed (async_scheduling): a request that comes waits for one step more.
	Async bool `json:"async_scheduling"`
	// FrontMs is how long a request takes to the engine.
	FrontMs float64 `json:"front_ms"`
}

func (e *Engine) String() string {
	blocks := "as many blocks as needed"
	if e.Blocks > 0 {
		blocks = fmt.Sprintf("%d blocks", e.Blocks)
	}
	return fmt.Sprintf("max_num_seqs %d, max_num_batched_tokens %d, %s of %d tokens, enable_prefix_caching %v, async_scheduling %v",
		e.MaxNumSeqs, e.MaxNumBatchedTokens, blocks, e.BlockSize, e.Caching, e.Async)
}

// Override is what is set of an engine in place of what a recording says; fields of 0 and nil are what it says.
type Override struct {
	MaxNumSeqs, MaxNumBatchedTokens, BlockSize, Blocks int
	Caching, Async                                     *bool
}

// Read takes over what a JSON document has of an engine's arguments, at any depth, such as the arguments of vLLM or what its configuration
// has become. What is set already stays.
func (o *Override) Read(data []byte) error {
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		return err
	}
	var e Engine
	var found Override
	var walk func(value any) error
	walk = func(value any) (err error) {
		object, _ := value.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(object)) {
			name := key
			if key == "num_gpu_blocks" {
				name = keyBlocks
			}
			switch v := object[key].(type) {
			case map[string]any:
				err = walk(v)
			case float64:
				if v > 0 {
					err = e.set(name, strconv.FormatFloat(v, 'f', -1, 64))
				}
			case bool:
				if name == keyCaching || name == keyAsync {
					err = e.set(name, strconv.FormatBool(v))
					if flag := map[string]**bool{keyCaching: &found.Caching, keyAsync: &found.Async}[name]; *flag == nil {
						*flag = &v
					}
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(document); err != nil {
		return err
	}
	found.MaxNumSeqs, found.MaxNumBatchedTokens, found.BlockSize, found.Blocks = e.MaxNumSeqs, e.MaxNumBatchedTokens, e.BlockSize, e.Blocks
	if found == (Override{}) {
		return fmt.Errorf("it has none of %s, %s, %s, num_gpu_blocks, %s and %s", keySeqs, keyBudget, keyBlock, keyCaching, keyAsync)
	}
	*o = Override{
		cmp.Or(o.MaxNumSeqs, found.MaxNumSeqs), cmp.Or(o.MaxNumBatchedTokens, found.MaxNumBatchedTokens), cmp.Or(o.BlockSize, found.BlockSize),
		cmp.Or(o.Blocks, found.Blocks), cmp.Or(o.Caching, found.Caching), cmp.Or(o.Async, found.Async),
	}
	return nil
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
	case key == keyAsync:
		e.Async, err = switchOf(key, value)
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
