package player

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// Options configures a player. Handshake, or both addresses, are needed; the zero value of everything else
// is a default.
type Options struct {
	// Handshake is the address that the frontend listens on, tcp:// or ipc://.
	Handshake string
	// InputAddresses and OutputAddresses are where each client of a frontend listens that gives its engines these addresses
	// instead of a handshake. They are used if Handshake is empty.
	InputAddresses, OutputAddresses []string
	// HandshakeTimeout bounds the wait for the frontend; default 5 minutes, as
	// in a real engine.
	HandshakeTimeout time.Duration
	// ParallelConfigHash is sent with READY when set.
	ParallelConfigHash string
	// EngineIndex is the engine's data-parallel rank and socket identity.
	EngineIndex int
	// DataParallelSize is how many engines the frontend has, this one included; default
	// those of its [Group], else what the recorded engine registered, else 1.
	DataParallelSize int

	// InstanceID is the instance_id to register with; default one that begins with "vllm-vcr-", by which a recording of a player
	// is told from one of a released engine.
	InstanceID string
	// VLLMVersion is the release to be: "v0.33.0", a line "0.33", "nightly"; default
	// the release that the trace was recorded from, else the newest.
	VLLMVersion string
	// Codec is that of VLLMVersion, for several players that share one; default a new one.
	Codec *Codec

	// Trace is replayed by Replay, and registered as the recorded engine was; nil
	// answers with random tokens. Source answers in place of the trace.
	Trace  *trace.Trace
	Replay ReplayOptions
	Source Source
	// Seed is that of everything that is drawn: tokens, times, faults. Random tokens
	// are below Vocab, default 32000.
	Seed  uint64
	Vocab uint32

	Timing   Timing
	Decoding Decoding
	Limits   Limits
	// SchedulingPolicy orders the requests that wait; default PolicyFCFS.
	SchedulingPolicy SchedulingPolicy
	KVCache          KVCacheOptions
	LoRA             LoRAOptions
	Pooling          PoolingOptions
	Observability    ObservabilityOptions
	// Transfer is the KV connector; nil has none, and ignores kv_transfer_params.
	Transfer *Transfer
	// Faults go wrong on purpose.
	Faults []Fault
	// RequestFaults lets a request ask for faults of its own, by the member
	// vllm_vcr_fault of its extra arguments, see [ParseFaults]: any client can then end
	// the player. Without it such a request ends with an error.
	RequestFaults bool

	// Tolerant goes on after a message that an engine of the line cannot decode: the player
	// answers it, and calls with arguments of another line, with an error where it cannot make
	// sense of them either. Otherwise it does
	// what such an engine does: it reads no message any more, of any client, ends the
	// requests that it has, and says so in the log only.
	Tolerant bool

	// Linger bounds how long a shutdown waits for the frontend to take what
	// was sent; default 4 seconds, as in a real engine.
	Linger time.Duration
	// MaxUnread bounds the bytes that are kept for a client that reads slower than
	// the engine sends; default 64 MiB. Beyond half of it the client's requests get no
	// more tokens until it has read some, and the others go on. Only what is no
	// request's, such as the answers to utility calls, can fill the rest; then the
	// engine waits. The message that crosses the bound is kept whole.
	MaxUnread int
	// Clock is default the machine's, see [NewClock].
	Clock Clock
	// Log takes what the player logs; nil drops it.
	Log *slog.Logger
	// OnRefused gets the reason of each error output, and of an end of reading, with the id
	// of the request if it is known. It is called from the player's
	// goroutine.
	OnRefused func(id string, err error)
	// Requests keeps the requests; nil for none.
	Requests *RequestLog
}

// Codec is the compiled wire profile of a vLLM line. It is immutable.
type Codec = protocol.Codec

// CodecFor compiles the profile of a line ("0.33"), release ("v0.33.0") or "nightly".
func CodecFor(version string) (*Codec, error) { return protocol.CodecFor(version) }

// Timing is when outputs are sent.
type Timing struct {
	// Pace is default PaceInstant.
	Pace Pace
	// Latency is how long steps take, at PaceModelled and PaceAlone. It belongs to one player.
	Latency LatencyModel
	// Scale divides all times that are recorded or modelled: 100 plays an hour in
	// 36 seconds; default 1.
	Scale float64
}

// Pace is when outputs are sent.
type Pace string

const (
	// PaceInstant makes one step after the other.
	PaceInstant Pace = "instant"
	// PaceRecorded sends each output when the recorded engine did, counted from
	// the request's arrival. Requests are paced alone: a step is what is due.
	PaceRecorded Pace = "recorded"
	// PaceModelled lets each step take as long as by [Timing].Latency. A step
	// begins when the one before it ends, so that delays do not add up.
	PaceModelled Pace = "modelled"
	// PaceAlone lets each request take the times by [Timing].Latency of steps with this request alone, from when it begins to
	// run: no request waits for the steps of others, as in simulators that have no steps.
	PaceAlone Pace = "alone"
)

// A LatencyModel is how long the steps of an engine take. [LatencyTimes] is one, and
// [LearnLatency] makes one of traces; what a model of one's own gets are
// [LatencyStep], [LatencyDecode], [LatencyChunk] and [LatencyRequest].
type (
	LatencyModel   = latency.Model
	LatencyTimes   = latency.Knobs
	LatencyStep    = latency.Step
	LatencyDecode  = latency.Decode
	LatencyChunk   = latency.Chunk
	LatencyRequest = latency.Request
)

// LearnLatency learns a model from traces of engines with so many
// max_num_batched_tokens; 0 is 8192.
func LearnLatency(maxNumBatchedTokens int, traces ...*trace.Trace) (LatencyModel, error) {
	return latency.NewFit(latency.FitOptions{Budget: maxNumBatchedTokens}, traces...)
}

// Decoding is how many tokens a request gets in a step.
type Decoding struct {
	// TokensPerStep is how many they are, unless the script has chunks: more than 1 as
	// of a diffusion model; default 1.
	TokensPerStep int
	// SpeculativeTokens are drafted for each request and step; Acceptance is how
	// many of them are accepted. Without one the latency model does, and without that
	// none is.
	SpeculativeTokens int
	Acceptance        *Acceptance
}

// Acceptance is how many drafted tokens of a request are accepted.
type Acceptance = latency.Acceptance

// NewAcceptance takes for each draft position the probability that it and all
// before it are accepted, as vLLM's synthetic_acceptance_rates.
func NewAcceptance(rates ...float64) (*Acceptance, error) { return latency.NewAcceptance(rates...) }

// Limits are an engine's; the default of each but the last is what the recorded engine
// registered, else that of vLLM.
type Limits struct {
	MaxModelLen, MaxNumSeqs, MaxNumBatchedTokens int
	// LongPrefillTokenThreshold cuts longer prompts into chunks of so many tokens
	// while other requests are there; 0 cuts none.
	LongPrefillTokenThreshold int
}

// KVCacheOptions describe the prefix cache.
type KVCacheOptions struct {
	// BlockSize is in tokens. Both are default what the recorded engine registered,
	// else that of vLLM.
	BlockSize, NumGPUBlocks int
	// NoPrefixCaching computes every prompt anew; otherwise the recorded engine's
	// configuration decides.
	NoPrefixCaching bool
	// HashAlgorithm and HashSeed, which is PYTHONHASHSEED, are for the hashes of blocks;
	// only subscribers to KV events see the hashes. The algorithm is default sha256.
	HashAlgorithm HashAlgorithm
	HashSeed      string
	// Events publishes what happens in the prefix cache; nil does not. The player sets
	// the rank.
	Events *KVEvents
}

// HashAlgorithm is vLLM's --prefix-caching-hash-algo: sha256, sha256_cbor, xxhash or
// xxhash_cbor.
type HashAlgorithm = kvcache.Algorithm

// KVEvents is vLLM's KVEventsConfig.
type KVEvents = kvevents.Options

// LoRAOptions describe the LoRA adapters.
type LoRAOptions struct {
	// MaxLoRAs is how many adapters run at once, and MaxCPULoRAs how many are loaded,
	// which a request does for its adapter; default MaxLoRAs. 0 is any number.
	MaxLoRAs, MaxCPULoRAs int
	// Names are those of the adapters that can be loaded; nil loads any. A request
	// for another one is refused, and so is add_lora.
	Names []string
}

// PoolingOptions describe a pooling model.
type PoolingOptions struct {
	// Tasks are what the model supports ("embed", "classify", "token_embed",
	// "token_classify", "plugin", "embed&token_classify"); none is a model that
	// generates. With "generate" among them the player does both, as no engine of vLLM.
	Tasks []string
	// Size is how many numbers an embedding has, default 1024, and Labels how many a
	// classification has, default 1.
	Size, Labels int
}

// ObservabilityOptions add to what the player reports, as those of the same names in vLLM do. A line whose messages
// have no place for something does not get it.
type ObservabilityOptions struct {
	// IterationDetails reports what each step computed (enable_logging_iteration_details).
	IterationDetails bool
	// KVCacheMetricsSample is the part of the KV blocks whose lives are reported, from 0 to 1
	// (kv_cache_metrics_sample).
	KVCacheMetricsSample float64
	// RequestDrafts reports the speculative decoding of each request with its last output
	// (per_request_spec_decode_metrics); default DraftsNone.
	RequestDrafts RequestDrafts
}

// RequestDrafts is how much is reported of the speculative decoding of a request.
type RequestDrafts string

const (
	DraftsNone     RequestDrafts = "none"
	DraftsSummary  RequestDrafts = "summary"
	DraftsDetailed RequestDrafts = "detailed" // each step too
)

// scaled is how long something takes here that takes d in the recording, or the model.
func (o *Options) scaled(d time.Duration) time.Duration {
	if o.Timing.Scale == 1 {
		return d
	}
	return time.Duration(float64(d) / o.Timing.Scale)
}

// SchedulingPolicy orders the requests that wait.
type SchedulingPolicy string

const (
	// PolicyFCFS goes by arrival.
	PolicyFCFS SchedulingPolicy = "fcfs"
	// PolicyPriority goes by priority, and among equals by arrival.
	PolicyPriority SchedulingPolicy = "priority"
)

func (o Options) withDefaults() Options {
	if o.VLLMVersion == "" {
		o.VLLMVersion = protocol.Newest()
		if o.Trace != nil && trace.Or(o.Trace.Meta.VLLMVersion, "") != "" {
			o.VLLMVersion = *o.Trace.Meta.VLLMVersion
		}
	}
	o.Decoding.TokensPerStep = max(o.Decoding.TokensPerStep, 1)
	o.Timing.Scale = cmp.Or(o.Timing.Scale, 1)
	o.Vocab = cmp.Or(o.Vocab, defaultVocab)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 5*time.Minute)
	o.Linger = cmp.Or(o.Linger, 4*time.Second)
	o.MaxUnread = cmp.Or(o.MaxUnread, 64<<20)
	if o.Clock == nil {
		o.Clock = NewClock()
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.NewTextHandler(io.Discard, nil)))
	return o
}

// check refuses what no engine starts with.
func (o *Options) check() error {
	if len(o.InputAddresses) != len(o.OutputAddresses) {
		return fmt.Errorf("%d input and %d output addresses: want one of each for each client of the frontend", len(o.InputAddresses), len(o.OutputAddresses))
	}
	for _, task := range o.Pooling.Tasks {
		if !slices.Contains(poolingTasks, task) {
			return fmt.Errorf("pooling task %q: want one of %s", task, strings.Join(poolingTasks, ", "))
		}
	}
	if l := o.LoRA; l.MaxCPULoRAs > 0 && l.MaxCPULoRAs < l.MaxLoRAs {
		return fmt.Errorf("max_cpu_loras is %d and max_loras is %d: want max_cpu_loras to be at least max_loras", l.MaxCPULoRAs, l.MaxLoRAs)
	}
	return nil
}

// readyResponse is what the recorded engine registered with, as far as the
// trace knows, under the player's own name.
func (o Options) readyResponse(codec *protocol.Codec) (protocol.ReadyResponse, error) {
	r := protocol.DefaultReady(o.version(codec))
	if o.Trace != nil && o.Trace.Meta.ReadyResponseHex != nil {
		raw, err := hex.DecodeString(*o.Trace.Meta.ReadyResponseHex)
		if err == nil {
			r, err = protocol.DecodeReady(raw)
		}
		if err != nil {
			return r, fmt.Errorf("%s: meta.ready_response_hex: %w", o.Trace.Name, err)
		}
		r.VLLMVersion, r.KVEvents, r.DPStatsAddress = o.version(codec), nil, nil
		r.CoordinatorInputAddress, r.CoordinatorOutputAddress = nil, nil
	}
	for _, set := range []struct {
		field *int
		value int
	}{
		{&r.MaxModelLen, o.Limits.MaxModelLen},
		{&r.MaxNumSeqs, o.Limits.MaxNumSeqs},
		{&r.BlockSize, o.KVCache.BlockSize},
		{&r.MaxNumBatchedTokens, o.Limits.MaxNumBatchedTokens},
		{&r.NumGPUBlocks, o.KVCache.NumGPUBlocks},
		{&r.DataParallelSize, o.DataParallelSize},
	} {
		if set.value != 0 {
			*set.field = set.value
		}
	}
	// Lines before 0.27 do not register these; a recording of theirs has none.
	usual := protocol.DefaultReady("")
	r.MaxNumSeqs = cmp.Or(max(r.MaxNumSeqs, 0), usual.MaxNumSeqs)
	r.MaxNumBatchedTokens = cmp.Or(max(r.MaxNumBatchedTokens, 0), usual.MaxNumBatchedTokens)
	r.TensorParallelSize = cmp.Or(r.TensorParallelSize, usual.TensorParallelSize)
	r.PipelineParallelSize = cmp.Or(r.PipelineParallelSize, usual.PipelineParallelSize)
	r.DecodeContextParallelSize = cmp.Or(r.DecodeContextParallelSize, usual.DecodeContextParallelSize)
	if o.LoRA.MaxLoRAs != 0 || o.LoRA.Names != nil {
		r.SupportsLoRA = true
		r.MaxLoRAs = cmp.Or(o.LoRA.MaxLoRAs, r.MaxLoRAs, len(o.LoRA.Names), 1)
	}
	r.DataParallelRank = o.EngineIndex
	const digits = 10 // as long as that of a real engine
	r.InstanceID = cmp.Or(o.InstanceID, fmt.Sprintf("%s%0*d", protocol.PlayerInstance, digits, time.Now().UnixNano()%1e10))
	return r, nil
}

// version is the release to register as, without the tag's "v".
func (o Options) version(codec *protocol.Codec) string {
	v := strings.TrimPrefix(o.VLLMVersion, "v")
	if strings.Count(v, ".") < 2 {
		return codec.Profile().Version
	}
	return v
}

// caching reports whether there is a prefix cache: as in the recorded engine.
func (o Options) caching() bool {
	if o.KVCache.NoPrefixCaching {
		return false
	}
	return o.Trace == nil || !strings.Contains(trace.Or(o.Trace.Meta.EngineConfig, ""), "enable_prefix_caching=false")
}
