package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/pack"
)

// ReadyResponse is EngineCoreReadyResponse: what an engine registers with on
// each input socket (vllm/v1/engine/__init__.py). A line's codec writes the
// fields of that line and no others.
type ReadyResponse struct {
	MaxModelLen                int
	NumGPUBlocks               int
	BlockSize                  int // tokens per KV block
	DPStatsAddress             *string
	DType                      string // float32, float16 or bfloat16
	VLLMVersion                string
	WorldSize                  int
	DataParallelSize           int
	TensorParallelSize         int
	PipelineParallelSize       int
	DecodeContextParallelSize  int
	DataParallelRank           int
	MaxNumSeqs                 int
	MaxNumBatchedTokens        int
	InstanceID                 string
	SupportsLoRA               bool
	MaxLoRAs                   int
	KVEvents                   *KVEventsConfig
	WeightTransferBackend      *string
	EnableSleepMode            bool
	SupportsDraftWeightUpdates bool
	CoordinatorInputAddress    *string
	CoordinatorOutputAddress   *string
}

// KVEventsConfig says where an engine publishes KV-cache events
// (vllm/config/kv_events.py). A Rust frontend wants all eight keys.
type KVEventsConfig struct {
	Enable         bool
	Publisher      string
	Endpoint       string
	ReplayEndpoint *string
	BufferSteps    int
	HWM            int
	MaxQueueSize   int
	Topic          string
}

// DefaultReady returns what a single engine of the given release registers
// with when no recording says otherwise.
func DefaultReady(version string) ReadyResponse {
	return ReadyResponse{
		MaxModelLen: 1 << 20, NumGPUBlocks: 8192, BlockSize: 16, DType: "float32", VLLMVersion: version,
		WorldSize: 1, DataParallelSize: 1, TensorParallelSize: 1, PipelineParallelSize: 1,
		DecodeContextParallelSize: 1, MaxNumSeqs: 128, MaxNumBatchedTokens: 2048,
	}
}

type readyField struct {
	key   []byte
	value func([]byte, *ReadyResponse) []byte
}

var readyValues = map[string]func([]byte, *ReadyResponse) []byte{
	"max_model_len":                  readyInt(func(r *ReadyResponse) int { return r.MaxModelLen }),
	"num_gpu_blocks":                 readyInt(func(r *ReadyResponse) int { return r.NumGPUBlocks }),
	"block_size":                     readyInt(func(r *ReadyResponse) int { return r.BlockSize }),
	"dp_stats_address":               readyOptional(func(r *ReadyResponse) *string { return r.DPStatsAddress }),
	"dtype":                          readyString(func(r *ReadyResponse) string { return r.DType }),
	"vllm_version":                   readyString(func(r *ReadyResponse) string { return r.VLLMVersion }),
	"world_size":                     readyInt(func(r *ReadyResponse) int { return r.WorldSize }),
	"data_parallel_size":             readyInt(func(r *ReadyResponse) int { return r.DataParallelSize }),
	"tensor_parallel_size":           readyInt(func(r *ReadyResponse) int { return r.TensorParallelSize }),
	"pipeline_parallel_size":         readyInt(func(r *ReadyResponse) int { return r.PipelineParallelSize }),
	"decode_context_parallel_size":   readyInt(func(r *ReadyResponse) int { return r.DecodeContextParallelSize }),
	"data_parallel_rank":             readyInt(func(r *ReadyResponse) int { return r.DataParallelRank }),
	"max_num_seqs":                   readyInt(func(r *ReadyResponse) int { return r.MaxNumSeqs }),
	"max_num_batched_tokens":         readyInt(func(r *ReadyResponse) int { return r.MaxNumBatchedTokens }),
	"instance_id":                    readyString(func(r *ReadyResponse) string { return r.InstanceID }),
	"supports_lora":                  readyBool(func(r *ReadyResponse) bool { return r.SupportsLoRA }),
	"max_loras":                      readyInt(func(r *ReadyResponse) int { return r.MaxLoRAs }),
	"kv_cache_size_tokens":           readyInt(func(r *ReadyResponse) int { return r.NumGPUBlocks * r.BlockSize }),
	"kv_cache_max_concurrency":       readyConcurrency,
	"kv_events_config":               readyKVEvents,
	"weight_transfer_backend":        readyOptional(func(r *ReadyResponse) *string { return r.WeightTransferBackend }),
	"enable_sleep_mode":              readyBool(func(r *ReadyResponse) bool { return r.EnableSleepMode }),
	"supports_draft_weight_updates":  readyBool(func(r *ReadyResponse) bool { return r.SupportsDraftWeightUpdates }),
	"effective_attention_block_size": readyInt(func(r *ReadyResponse) int { return r.BlockSize }),
	"coordinator_input_address":      readyOptional(func(r *ReadyResponse) *string { return r.CoordinatorInputAddress }),
	"coordinator_output_address":     readyOptional(func(r *ReadyResponse) *string { return r.CoordinatorOutputAddress }),
}

func readyInt(get func(*ReadyResponse) int) func([]byte, *ReadyResponse) []byte {
	return func(b []byte, r *ReadyResponse) []byte { return pack.AppendInt(b, int64(get(r))) }
}

func readyString(get func(*ReadyResponse) string) func([]byte, *ReadyResponse) []byte {
	return func(b []byte, r *ReadyResponse) []byte { return pack.AppendString(b, get(r)) }
}

func readyBool(get func(*ReadyResponse) bool) func([]byte, *ReadyResponse) []byte {
	return func(b []byte, r *ReadyResponse) []byte { return pack.AppendBool(b, get(r)) }
}

func readyOptional(get func(*ReadyResponse) *string) func([]byte, *ReadyResponse) []byte {
	return func(b []byte, r *ReadyResponse) []byte { return appendOptional(b, get(r)) }
}

func appendOptional(b []byte, s *string) []byte {
	if s == nil {
		return pack.AppendNil(b)
	}
	return pack.AppendString(b, *s)
}

func readyConcurrency(b []byte, r *ReadyResponse) []byte {
	return pack.AppendFloat64(b, float64(r.NumGPUBlocks*r.BlockSize)/float64(max(r.MaxModelLen, 1)))
}

func readyKVEvents(b []byte, r *ReadyResponse) []byte {
	e := r.KVEvents
	if e == nil {
		return pack.AppendNil(b)
	}
	b = pack.AppendMapHeader(b, 8)
	b = pack.AppendBool(pack.AppendString(b, "enable_kv_cache_events"), e.Enable)
	b = pack.AppendString(pack.AppendString(b, "publisher"), e.Publisher)
	b = pack.AppendString(pack.AppendString(b, "endpoint"), e.Endpoint)
	b = appendOptional(pack.AppendString(b, "replay_endpoint"), e.ReplayEndpoint)
	b = pack.AppendInt(pack.AppendString(b, "buffer_steps"), int64(e.BufferSteps))
	b = pack.AppendInt(pack.AppendString(b, "hwm"), int64(e.HWM))
	b = pack.AppendInt(pack.AppendString(b, "max_queue_size"), int64(e.MaxQueueSize))
	return pack.AppendString(pack.AppendString(b, "topic"), e.Topic)
}

func (c *Codec) compileReady() error {
	s, err := c.profile.needStruct("EngineCoreReadyResponse", "map")
	if err != nil {
		return err
	}
	for _, f := range s.Fields {
		value, known := readyValues[f.Name]
		if !known {
			if f.Required {
				return c.unknownRequired("EngineCoreReadyResponse", f.Name)
			}
			def, err := defaultBytes(f)
			if err != nil {
				return fmt.Errorf("wire profile %s: EngineCoreReadyResponse.%s: %w", c.profile.Line, f.Name, err)
			}
			value = func(b []byte, _ *ReadyResponse) []byte { return append(b, def...) }
		}
		c.ready = append(c.ready, readyField{key: pack.AppendString(nil, f.Name), value: value})
	}
	return nil
}

// AppendReady writes the registration payload of the line.
func (c *Codec) AppendReady(b []byte, r *ReadyResponse) []byte {
	b = pack.AppendMapHeader(b, len(c.ready))
	for _, f := range c.ready {
		b = f.value(append(b, f.key...), r)
	}
	return b
}
