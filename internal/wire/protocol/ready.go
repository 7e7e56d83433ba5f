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
	MaxModelLen                int             `wire:"max_model_len"`
	NumGPUBlocks               int             `wire:"num_gpu_blocks"`
	BlockSize                  int             `wire:"block_size"` // tokens per KV block
	DPStatsAddress             *string         `wire:"dp_stats_address"`
	DType                      string          `wire:"dtype"` // float32, float16 or bfloat16
	VLLMVersion                string          `wire:"vllm_version"`
	WorldSize                  int             `wire:"world_size"`
	DataParallelSize           int             `wire:"data_parallel_size"`
	TensorParallelSize         int             `wire:"tensor_parallel_size"`
	PipelineParallelSize       int             `wire:"pipeline_parallel_size"`
	DecodeContextParallelSize  int             `wire:"decode_context_parallel_size"`
	DataParallelRank           int             `wire:"data_parallel_rank"`
	MaxNumSeqs                 int             `wire:"max_num_seqs"`
	MaxNumBatchedTokens        int             `wire:"max_num_batched_tokens"`
	InstanceID                 string          `wire:"instance_id"`
	SupportsLoRA               bool            `wire:"supports_lora"`
	MaxLoRAs                   int             `wire:"max_loras"`
	KVEvents                   *KVEventsConfig `wire:"kv_events_config,writeonly"`
	WeightTransferBackend      *string         `wire:"weight_transfer_backend"`
	EnableSleepMode            bool            `wire:"enable_sleep_mode"`
	SupportsDraftWeightUpdates bool            `wire:"supports_draft_weight_updates"`
	CoordinatorInputAddress    *string         `wire:"coordinator_input_address"`
	CoordinatorOutputAddress   *string         `wire:"coordinator_output_address"`
}

// KVEventsConfig says where an engine publishes KV-cache events
// (vllm/config/kv_events.py). A Rust frontend wants all eight keys.
type KVEventsConfig struct {
	Enable         bool    `wire:"enable_kv_cache_events"`
	Publisher      string  `wire:"publisher"`
	Endpoint       string  `wire:"endpoint"`
	ReplayEndpoint *string `wire:"replay_endpoint"`
	BufferSteps    int     `wire:"buffer_steps"`
	HWM            int     `wire:"hwm"`
	MaxQueueSize   int     `wire:"max_queue_size"`
	Topic          string  `wire:"topic"`
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

func appendOptional(b []byte, s *string) []byte {
	if s == nil {
		return pack.AppendNil(b)
	}
	return pack.AppendString(b, *s)
}

// AppendReady writes the registration payload of the line.
func (c *Codec) AppendReady(b []byte, r *ReadyResponse) []byte { return appendStruct(b, c, c.ready, r) }

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
	err := readWhole(payload, &r)
	if err != nil {
		return r, fmt.Errorf("ready response: %w", err)
	}
	return r, nil
}
