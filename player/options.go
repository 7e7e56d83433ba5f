package player

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// Options configures a player. The zero value needs at least Handshake.
type Options struct {
	// Handshake is the address that the frontend listens on, tcp:// or ipc://.
	Handshake string
	// VLLMVersion is the release to be: "v0.33.0", a line "0.33", "nightly",
	// or empty for the release that the trace was recorded from, else the newest.
	VLLMVersion string
	// Codec is that of VLLMVersion's line, for a caller that has it already; nil
	// compiles it.
	Codec *protocol.Codec
	// EngineIndex is the engine's data-parallel rank and socket identity.
	EngineIndex int
	// DataParallelSize is how many engines the frontend has, this one included; 0
	// takes those of its [Group], else what the recorded engine registered, else 1.
	DataParallelSize int
	// Trace is replayed by Match; nil answers with random tokens.
	Trace *trace.Trace
	Match Match
	// Strict refuses requests that no record answers.
	Strict bool
	// Once lets each record answer one request; MinDepth is how many tokens of its
	// prompt a request must share with a record. See [ReplayOptions].
	Once     bool
	MinDepth int
	// Source replaces Trace and Match.
	Source Source
	Pace   Pace
	Seed   uint64
	Vocab  uint32 // for random ids, default 32000
	// Registered values; 0 takes the recorded engine's, else a default.
	MaxModelLen, MaxNumSeqs, MaxNumBatchedTokens int
	BlockSize, NumGPUBlocks                      int
	// Latency says how long steps take, at PaceModelled. It belongs to this player.
	Latency latency.Model
	// TimeScale divides all times that are recorded or modelled: 100 plays an hour in
	// 36 seconds; default 1.
	TimeScale float64
	// TokensPerStep is how many tokens a request says in a step, unless its script
	// knows: more than 1 as a diffusion model does; default 1.
	TokensPerStep int
	// SpeculativeTokens are guessed for each request and step; Acceptance says how
	// many of them are right, without one Latency does, and without that none is.
	SpeculativeTokens int
	Acceptance        *latency.Acceptance
	// SchedulingPolicy orders the requests that wait; default PolicyFCFS.
	SchedulingPolicy SchedulingPolicy
	// LongPrefillTokenThreshold cuts longer prompts into chunks of so many tokens
	// while others are there; 0 cuts none.
	LongPrefillTokenThreshold int
	// NoPrefixCaching computes every prompt anew; otherwise the recorded engine's
	// configuration decides.
	NoPrefixCaching bool
	// MaxLoRAs is how many adapters run at once, and MaxCPULoRAs how many are loaded,
	// which a request does for its adapter; default MaxLoRAs. 0 is any number.
	MaxLoRAs, MaxCPULoRAs int
	// LoRAs are the names of the adapters that can be loaded; nil loads any. A request
	// for another one is refused, and so is add_lora.
	LoRAs []string
	// PoolingTasks are what a pooling model is asked for ("embed", "classify",
	// "token_embed", "token_classify", "plugin", "embed&token_classify"); none is a model
	// that generates. Embeddings have PoolingSize numbers, default 1024, and
	// classifications PoolingLabels, default 1.
	PoolingTasks               []string
	PoolingSize, PoolingLabels int
	// KVEvents publishes what happens in the prefix cache; nil does not. Profile and Rank
	// are the player's to set.
	KVEvents *kvevents.Options
	// HashAlgorithm and HashSeed, which is PYTHONHASHSEED, say how the blocks of the
	// prefix cache are hashed; only those who read KV events can tell.
	HashAlgorithm kvcache.Algorithm
	HashSeed      string
	// Transfer is the KV connector; nil has none, and ignores kv_transfer_params.
	Transfer *Transfer
	// Faults go wrong on purpose. A request may ask for faults of its own by the member
	// vllm_vcr_fault of its extra arguments, see [ParseFaults].
	Faults []Fault
	// ParallelConfigHash is sent with READY when set.
	ParallelConfigHash string
	// HandshakeTimeout bounds the wait for the frontend; default 5 minutes, as
	// in a real engine.
	HandshakeTimeout time.Duration
	// Linger bounds how long a shutdown waits for the frontend to take what
	// was said; default 4 seconds, as in a real engine.
	Linger time.Duration
	// MaxUnread bounds the bytes that are kept for a client that reads slower than
	// the engine says; default 64 MiB. Beyond half of it the client's requests say no
	// more until it has read some, and the others go on. Only what is no request's, such
	// as the answers to utility calls, can fill the rest; then the engine waits.
	MaxUnread int
	Clock     Clock
	Log       *slog.Logger
	// OnRefused is told why a request got an error output. It is called from
	// the player's goroutine.
	OnRefused func(id string, err error)
}

// scaled is how long something takes here that takes d in the recording, or the model.
func (o *Options) scaled(d time.Duration) time.Duration {
	if o.TimeScale == 1 {
		return d
	}
	return time.Duration(float64(d) / o.TimeScale)
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
	if o.Match == "" {
		o.Match = MatchIndex
	}
	if o.Pace == "" {
		o.Pace = PaceInstant
	}
	o.TokensPerStep = max(o.TokensPerStep, 1)
	if o.TimeScale == 0 {
		o.TimeScale = 1
	}
	if o.Vocab == 0 {
		o.Vocab = defaultVocab
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 5 * time.Minute
	}
	if o.Linger == 0 {
		o.Linger = 4 * time.Second
	}
	if o.MaxUnread == 0 {
		o.MaxUnread = 64 << 20
	}
	if o.Clock == nil {
		o.Clock = NewClock()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return o
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
		{&r.MaxModelLen, o.MaxModelLen},
		{&r.MaxNumSeqs, o.MaxNumSeqs},
		{&r.BlockSize, o.BlockSize},
		{&r.MaxNumBatchedTokens, o.MaxNumBatchedTokens},
		{&r.NumGPUBlocks, o.NumGPUBlocks},
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
	o.offerLoRAs(&r)
	r.DataParallelRank = o.EngineIndex
	r.InstanceID = strconv.FormatInt(time.Now().UnixNano(), 10)
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

// caching tells whether there is a prefix cache: as in the recorded engine.
func (o Options) caching() bool {
	if o.NoPrefixCaching {
		return false
	}
	return o.Trace == nil || !strings.Contains(trace.Or(o.Trace.Meta.EngineConfig, ""), "enable_prefix_caching=false")
}
