package protocol

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
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

var readyValues = mapValues[ReadyResponse]{
	"max_model_len":                  intValue(func(r *ReadyResponse) int { return r.MaxModelLen }),
	"num_gpu_blocks":                 intValue(func(r *ReadyResponse) int { return r.NumGPUBlocks }),
	"block_size":                     intValue(func(r *ReadyResponse) int { return r.BlockSize }),
	"dp_stats_address":               optionalValue(func(r *ReadyResponse) *string { return r.DPStatsAddress }),
	"dtype":                          stringValue(func(r *ReadyResponse) string { return r.DType }),
	"vllm_version":                   stringValue(func(r *ReadyResponse) string { return r.VLLMVersion }),
	"world_size":                     intValue(func(r *ReadyResponse) int { return r.WorldSize }),
	"data_parallel_size":             intValue(func(r *ReadyResponse) int { return r.DataParallelSize }),
	"tensor_parallel_size":           intValue(func(r *ReadyResponse) int { return r.TensorParallelSize }),
	"pipeline_parallel_size":         intValue(func(r *ReadyResponse) int { return r.PipelineParallelSize }),
	"decode_context_parallel_size":   intValue(func(r *ReadyResponse) int { return r.DecodeContextParallelSize }),
	"data_parallel_rank":             intValue(func(r *ReadyResponse) int { return r.DataParallelRank }),
	"max_num_seqs":                   intValue(func(r *ReadyResponse) int { return r.MaxNumSeqs }),
	"max_num_batched_tokens":         intValue(func(r *ReadyResponse) int { return r.MaxNumBatchedTokens }),
	"instance_id":                    stringValue(func(r *ReadyResponse) string { return r.InstanceID }),
	"supports_lora":                  boolValue(func(r *ReadyResponse) bool { return r.SupportsLoRA }),
	"max_loras":                      intValue(func(r *ReadyResponse) int { return r.MaxLoRAs }),
	"kv_cache_size_tokens":           intValue(func(r *ReadyResponse) int { return r.NumGPUBlocks * r.BlockSize }),
	"kv_cache_max_concurrency":       floatValue((*ReadyResponse).concurrency),
	"kv_events_config":               readyKVEvents,
	"weight_transfer_backend":        optionalValue(func(r *ReadyResponse) *string { return r.WeightTransferBackend }),
	"enable_sleep_mode":              boolValue(func(r *ReadyResponse) bool { return r.EnableSleepMode }),
	"supports_draft_weight_updates":  boolValue(func(r *ReadyResponse) bool { return r.SupportsDraftWeightUpdates }),
	"effective_attention_block_size": intValue(func(r *ReadyResponse) int { return r.BlockSize }),
	"coordinator_input_address":      optionalValue(func(r *ReadyResponse) *string { return r.CoordinatorInputAddress }),
	"coordinator_output_address":     optionalValue(func(r *ReadyResponse) *string { return r.CoordinatorOutputAddress }),
}

func appendOptional(b []byte, s *string) []byte {
	if s == nil {
		return pack.AppendNil(b)
	}
	return pack.AppendString(b, *s)
}

// concurrency is how many requests of the greatest length the KV cache holds.
func (r *ReadyResponse) concurrency() float64 {
	return float64(r.NumGPUBlocks*r.BlockSize) / float64(max(r.MaxModelLen, 1))
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

func (c *Codec) compileReady() (err error) {
	c.ready, err = compileMap(c, "EngineCoreReadyResponse", readyValues)
	return err
}

// AppendReady writes the registration payload of the line.
func (c *Codec) AppendReady(b []byte, r *ReadyResponse) []byte { return appendMap(b, c.ready, r) }

// PlayerInstance begins the instance_id with which the player of this project registers, so that a recording of it is never taken for
// one of a released engine, whose instance_id is a number.
const PlayerInstance = "vllm-vcr-"

// AppendPlayerReady writes the registration of the player. Lines before 0.27 have no instance_id; it is added all the same, as
// their frontends skip keys that they do not know.
func (c *Codec) AppendPlayerReady(b []byte, r *ReadyResponse) []byte {
	declared := c.Profile().Structs["EngineCoreReadyResponse"]
	if declared.Index("instance_id") >= 0 {
		return c.AppendReady(b, r)
	}
	cur := pack.NewCursor(c.AppendReady(nil, r))
	n, _ := cur.MapLen() // of what was just written
	b = append(pack.AppendMapHeader(b, n+1), cur.Rest()...)
	return pack.AppendString(pack.AppendString(b, "instance_id"), r.InstanceID)
}

// IsPlayer reports whether a registration is that of the player of this project.
func IsPlayer(payload []byte) bool {
	r, err := DecodeReady(payload)
	return err == nil && strings.HasPrefix(r.InstanceID, PlayerInstance)
}

// DecodeReady reads a registration payload of any line. Keys it does not know
// are skipped, keys that are absent keep the zero value: use the raw bytes to
// judge which were there.
func DecodeReady(payload []byte) (ReadyResponse, error) {
	var r ReadyResponse
	targets := r.targets()
	err := eachKey(payload, func(key string, cur *pack.Cursor) error {
		if cur.Nil() {
			return nil
		}
		return targets.decode(key, cur)
	})
	if err != nil {
		return r, fmt.Errorf("ready response: %w", err)
	}
	return r, nil
}

// readyTargets says where the values of a registration go, by key.
type readyTargets struct {
	ints     map[string]*int
	strs     map[string]*string
	bools    map[string]*bool
	optional map[string]**string
}

func (r *ReadyResponse) targets() readyTargets {
	return readyTargets{
		ints: map[string]*int{
			"max_model_len": &r.MaxModelLen, "num_gpu_blocks": &r.NumGPUBlocks, "block_size": &r.BlockSize,
			"world_size": &r.WorldSize, "data_parallel_size": &r.DataParallelSize,
			"tensor_parallel_size": &r.TensorParallelSize, "pipeline_parallel_size": &r.PipelineParallelSize,
			"decode_context_parallel_size": &r.DecodeContextParallelSize, "data_parallel_rank": &r.DataParallelRank,
			"max_num_seqs": &r.MaxNumSeqs, "max_num_batched_tokens": &r.MaxNumBatchedTokens, "max_loras": &r.MaxLoRAs,
		},
		strs: map[string]*string{"dtype": &r.DType, "vllm_version": &r.VLLMVersion, "instance_id": &r.InstanceID},
		bools: map[string]*bool{
			"supports_lora": &r.SupportsLoRA, "enable_sleep_mode": &r.EnableSleepMode,
			"supports_draft_weight_updates": &r.SupportsDraftWeightUpdates,
		},
		optional: map[string]**string{
			"dp_stats_address": &r.DPStatsAddress, "weight_transfer_backend": &r.WeightTransferBackend,
			"coordinator_input_address":  &r.CoordinatorInputAddress,
			"coordinator_output_address": &r.CoordinatorOutputAddress,
		},
	}
}

func (t *readyTargets) decode(key string, cur *pack.Cursor) (err error) {
	switch {
	case t.ints[key] != nil:
		*t.ints[key], err = smallInt(cur)
	case t.strs[key] != nil:
		*t.strs[key], err = cur.StrString()
	case t.bools[key] != nil:
		*t.bools[key], err = cur.Bool()
	case t.optional[key] != nil:
		*t.optional[key], err = decodeOptional(cur)
	default:
		err = cur.Skip()
	}
	return err
}
