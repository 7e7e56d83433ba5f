package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
	"github.com/vllm-vcr/conformance/player"
)

// playOptions are the flags of play.
type playOptions struct {
	engine coreOptions
	source sourceOptions
	timing timingOptions
	peers  peerOptions
	json   bool // the summary, on stdout
}

func newPlayCommand(env *environment) *cobra.Command {
	var opts playOptions
	cmd := &cobra.Command{
		Use:   "play",
		Short: "Run a fake vLLM engine behind a real frontend",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withinGrace(cmd.Context(), env.grace, func() error { return runPlay(cmd.Context(), env, cmd.Flags(), opts) })
		},
	}
	opts.add(cmd.Flags())
	cmd.Flags().StringSliceVar(&opts.engine.opt.InputAddresses, "input-address", nil, "instead of a handshake, `ADDRESS` where the frontend waits for its engines and sends requests; one for each of its processes (vllm-rs frontend --input-address)")
	cmd.Flags().StringSliceVar(&opts.engine.opt.OutputAddresses, "output-address", nil, "`ADDRESS` where the frontend receives outputs, for --input-address (vllm-rs frontend --output-address)")
	needs(cmd.Flags(), "input-address", "output-address")
	needs(cmd.Flags(), "output-address", "input-address")
	exclusive(cmd.Flags(), "input-address", "frontend-handshake")
	grouped(cmd.Flags(), "Frontend without a handshake")
	common(cmd.Flags(), "frontend-handshake", "vllm-version", "handshake-timeout", "engine-count", "max-model-len", "max-num-seqs",
		"trace", "replay-steps", "replay-match", "strict", "dataset", "tokenizer", "mode", "seed",
		"latency-trace", "time-to-first-token", "inter-token-latency", "time-scale")
	addJSONFlag(cmd.Flags(), &opts.json)
	return cmd
}

// add adds the flags of play that serve has too.
func (opts *playOptions) add(flags *pflag.FlagSet) {
	opts.engine.add(flags)
	opts.source.add(flags)
	opts.timing.add(flags)
	opts.peers.add(flags)
}

// played is what play runs. found knows how requests found their answers, and
// closePeers closes the sockets that are not the engines' own.
type played struct {
	group      *player.Group
	found      found // nil where there is nothing to find
	closePeers func()
}

// prepare makes the engines.
func (opts *playOptions) prepare(ctx context.Context, env *environment, flags *pflag.FlagSet) (*played, error) {
	c, err := opts.prepareShared(ctx, env, flags)
	if err != nil {
		return nil, err
	}
	return c.engines(env, opts)
}

// sharedParts are what the engines of several frontends share: a source of answers, and what was learned of times.
type sharedParts struct {
	opt   player.Options
	found found
	model func() (latency.Model, error)
}

func (opts *playOptions) prepareShared(ctx context.Context, env *environment, flags *pflag.FlagSet) (*sharedParts, error) {
	fitted := len(opts.timing.traces) > 0
	opt, err := opts.engine.options(flags, fitted)
	if err != nil {
		return nil, err
	}
	if err := opts.source.check(); err != nil {
		return nil, err
	}
	opt.Log = env.log
	c := &sharedParts{}
	if c.found, err = opts.source.source(ctx, env, &opt); err != nil {
		return nil, err
	}
	if opts.source.plans != nil {
		opt.Source = opts.source.plans.Before(opt.Source)
	}
	if opts.source.chosen != nil {
		opt.Source = opts.source.chosen.Before(opt.Source)
	}
	if opt.Limits.MaxModelLen == 0 && (opt.Trace == nil || opt.Trace.Meta.ReadyResponseHex == nil) {
		opt.Limits.MaxModelLen = opts.engine.modelLen
	}
	if opts.timing.auto = player.PaceInstant; opts.source.steps != "" {
		opts.timing.auto = player.PaceRecorded
	}
	c.model, err = opts.timing.model(env, &opt, opts.source.configHash)
	c.opt = opt
	return c, err
}

// engines makes those of one frontend.
func (c *sharedParts) engines(env *environment, opts *playOptions) (p *played, err error) {
	p = &played{found: c.found}
	opt := c.opt
	if opt.Handshake, opt.Log = opts.engine.opt.Handshake, env.log; len(opt.InputAddresses) > 0 {
		opt.Handshake = ""
	}
	if p.closePeers, err = opts.peers.configure(env, &opt, opts.engine.count); err != nil {
		return nil, err
	}
	if p.group, err = ranks(opt, opts.engine.count, c.model); err != nil {
		p.closePeers()
		return nil, err
	}
	return p, nil
}

// ranks makes a group of engines, each with a timing model of its own.
func ranks(opt player.Options, count int, model func() (latency.Model, error)) (*player.Group, error) {
	all, err := player.Ranks(opt, count)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Timing.Latency, err = model(); err != nil {
			return nil, err
		}
	}
	return player.NewGroup(all)
}

func runPlay(ctx context.Context, env *environment, flags *pflag.FlagSet, opts playOptions) error {
	p, err := opts.prepare(ctx, env, flags)
	if err != nil {
		return err
	}
	defer p.closePeers()
	warnOtherRelease(env, opts.engine.opt.VLLMVersion)
	behind := cmp.Or(strings.Join(opts.engine.opt.InputAddresses, ","), opts.engine.opt.Handshake)
	ended := logFrontend(ctx, env, p.group, behind, opts.engine.opt.HandshakeTimeout)
	if p.found != nil {
		defer rewindOnHangUp(env, p.found)()
	}
	err = p.group.Run(ctx)
	ended()
	if opts.json {
		result := playedJSON{Schema: schemaOf("play"), Line: p.group.Line(), Ready: wasReady(p.group), Error: errorText(err)}
		if p.found != nil {
			p.found.Result(&result)
		}
		if err := jsonout.Write(env.stdout, result); err != nil {
			return infra(err)
		}
	} else if p.found != nil && p.found.Text() != "" {
		fmt.Fprintf(env.stderr, "vllm-vcr: %s\n", p.found.Text())
	}
	reportUnmatchedOf(env, p.group)
	switch gone := errors.Is(err, player.ErrFrontendGone); {
	case err == nil:
		return nil
	case gone && wasReady(p.group):
		env.log.Warn("the frontend closed its connections: the player ends", "error", err)
		return nil
	case gone:
		err = fmt.Errorf("%w before all %d engines were connected: does the frontend expect %[2]d engines?", err, opts.engine.count)
	}
	return infra(err)
}

// reportUnmatchedOf reports the faults of a group that has ended.
func reportUnmatchedOf(env *environment, group *player.Group) {
	if wasReady(group) {
		unmatched, requests := group.UnmatchedFaults()
		reportUnmatched(env, unmatched, requests, "engine request", "the request ids")
	}
}

// reportUnmatched reports the faults that concerned no request, because a test with such a fault tests nothing.
func reportUnmatched[F any](env *environment, unmatched []F, requests int, kind, patterns string) {
	for _, f := range unmatched {
		fmt.Fprintf(env.stderr, "vllm-vcr: --faults: %q concerned none of %s: compare its pattern with %s\n", fmt.Sprint(f), safetext.Count(requests, kind), patterns)
	}
}

// warnOtherRelease logs the release of the line that the player was made from, if another one is wanted.
func warnOtherRelease(env *environment, wanted string) {
	v, err := compat.ParseVersion(wanted)
	if err != nil {
		return // a line, nightly or auto
	}
	if p, err := protocol.LoadProfile(wanted); err == nil && p.Version != v.String() {
		env.log.Warn("the messages are those of release "+p.Version+", which stands for line "+p.Line+": another release of the line may differ", "vllm_version", wanted)
	}
}

// playGrace is how long play may take to end after a signal: more than its frontend gets to read the last outputs.
const playGrace = 15 * time.Second

// withinGrace calls run, which ends with ctx, and waits for it at most for grace after the end of ctx: whatever a
// player is asked for, a signal ends it.
func withinGrace(ctx context.Context, grace time.Duration, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
		return exitError{conformance.ExitInfra, fmt.Errorf("the player did not end within %s after the signal and is stopped now, "+
			"without a message to its frontend; please report this", grace)}
	}
}

// rewindOnHangUp makes all answers unused at each SIGHUP, until stop is called.
func rewindOnHangUp(env *environment, f found) (stop func()) {
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, syscall.SIGHUP)
	var rewinding sync.WaitGroup
	rewinding.Go(func() {
		for range hangUps {
			f.Rewind()
			env.log.Info("rewound")
		}
	})
	return func() {
		signal.Stop(hangUps)
		close(hangUps)
		rewinding.Wait()
	}
}

func wasReady(group *player.Group) bool {
	select {
	case <-group.Ready():
		return true
	default:
		return false
	}
}

// slowStart is after how long a missing frontend is reported, unless that is more than half of the wait.
const slowStart = 10 * time.Second

// logFrontend prints that the engines are ready, and after a long wait that they are not yet. ended ends it.
func logFrontend(ctx context.Context, env *environment, group *player.Group, frontend string, limit time.Duration) (ended func()) {
	ctx, cancel := context.WithCancel(ctx)
	wait := slowStart
	if limit > 0 {
		wait = min(wait, limit/2)
	}
	var logging sync.WaitGroup
	logging.Go(func() {
		long := time.NewTimer(wait)
		defer long.Stop()
		for {
			select {
			case <-group.Ready():
				fmt.Fprintf(env.stderr, "vllm-vcr: playing line %s behind %s\n", group.Line(), frontend)
				return
			case <-long.C:
				fmt.Fprintf(env.stderr, "vllm-vcr: still waiting for a frontend at %s; a frontend accepts no engine after its start-up\n", frontend)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		logging.Wait()
	}
}

// peerOptions are the peers of the player other than its frontend, and injected faults.
type peerOptions struct {
	kvEvents      string
	hash          string
	hashSeed      string // in the place of PYTHONHASHSEED
	firstBatch    uint64 // the number of the first batch of KV events
	eventArrays   bool   // KV events are arrays
	kvTransfer    string
	kvPeers       []string
	nixl          string
	faults        string
	requestFaults bool
	replica       *replica // of a fleet; nil without one
	rank          int      // of the first engine among frontends that have engines of their own: it is added to the ports
}

func (opts *peerOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&opts.kvEvents, "kv-events-config", "", "publish KV events as vLLM does with this `JSON`, whose keys are enable_kv_cache_events, publisher, endpoint, "+
		"replay_endpoint, buffer_steps, hwm, max_queue_size and topic; the variable VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is read too (default no events)")
	flags.StringVar(&opts.hash, "prefix-caching-hash-algo", "", "`ALGORITHM` of the hashes of KV blocks, which KV events show: sha256, sha256_cbor, xxhash or xxhash_cbor; "+
		"the variable PYTHONHASHSEED is read too (default sha256)")
	choices(flags, "prefix-caching-hash-algo", kvcache.SHA256, kvcache.SHA256CBOR, kvcache.XXHash, kvcache.XXHashCBOR)
	flags.StringVar(&opts.kvTransfer, "kv-transfer-config", "", "send and receive KV caches (without content) as vLLM's NixlConnector does with this `JSON`; "+
		"the variables VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT are read too (default no transfer)")
	flags.StringSliceVar(&opts.kvPeers, "kv-transfer-peers", nil, "addresses that KV caches are requested from and sent to, such as 10.1.2.3 or 10.1.0.0/16 (default loopback, and the private networks that this machine has an address in)")
	needs(flags, "kv-transfer-peers", "kv-transfer-config")
	flags.StringVar(&opts.nixl, "kv-transfer-nixl", "", "move KV caches by NIXL, as prefill or decode for real engines, with this `JSON`: model (a folder), dtype, kv_cache_dtype, "+
		"attention_backend, kv_cache_layout, release, disable_hybrid_kv_cache_manager, layer_name, python, and fault, which is one of "+strings.Join(nixl.Faults, ", ")+
		" (default: to other players only, over HTTP)")
	needs(flags, "kv-transfer-nixl", "kv-transfer-config")
	grouped(flags, "KV events and KV transfer")
	flags.StringVar(&opts.faults, "faults", "", "faults to inject: a list of `KIND[:VALUE][@PROBABILITY][~ID-PATTERN]`. Kinds: refuse, fail:N, "+
		"delay:DURATION[:AFTER], stall[:AFTER], drop[:AFTER], error[:AFTER], wrong-token[:AFTER], kill[:AFTER], kv-forget, kv-slow:DURATION, kv-lose; AFTER counts output tokens (default none)")
	flags.BoolVar(&opts.requestFaults, "allow-request-faults", false, "let a request name its own fault as vllm_vcr_fault in vllm_xargs; any client can then end the player")
	grouped(flags, "Faults")
}

// configure puts the flags into the options of count engines. closeAll closes the sockets.
func (opts *peerOptions) configure(env *environment, opt *player.Options, count int) (closeAll func(), err error) {
	if opt.Faults, err = player.ParseFaults(opts.faults); err != nil {
		return nil, fmt.Errorf("--faults: %w", err)
	}
	opt.RequestFaults = opts.requestFaults
	if err := opts.configureKVEvents(env, opt); err != nil {
		return nil, err
	}
	if opts.kvTransfer == "" {
		return func() {}, nil
	}
	t, err := player.ParseTransfer(opts.kvTransfer, env.getenv)
	if err != nil {
		return nil, fmt.Errorf("--kv-transfer-config: %w", err)
	}
	if t == nil {
		return func() {}, nil
	}
	if t.Peers, err = kvtransfer.ParsePeers(opts.kvPeers); err != nil {
		return nil, fmt.Errorf("--kv-transfer-peers: %w", err)
	}
	if opts.rank > 0 {
		t.Port = cmp.Or(t.Port, kvtransfer.DefaultPort) + opts.rank
		if t.EngineID != "" {
			t.EngineID += "_dp" + strconv.Itoa(opts.rank) // as vLLM names ranks
		}
	}
	if opts.nixl != "" {
		if t.Open, err = opts.openNIXL(env); err != nil {
			return nil, fmt.Errorf("--kv-transfer-nixl: %w", err)
		}
		opt.Transfer = t
		return func() {}, nil
	}
	side, err := t.Listen(opt.EngineIndex, count)
	if network := (*net.OpError)(nil); errors.As(err, &network) {
		return nil, infra(err)
	}
	if err != nil {
		return nil, err
	}
	opt.Transfer = t
	return side.Close, nil
}

// openNIXL returns a function that opens the data plane of an engine, with an agent of its own.
func (opts *peerOptions) openNIXL(env *environment) (func(*kvtransfer.Config, kvtransfer.Form) (kvtransfer.DataPlane, error), error) {
	o, err := nixl.ParseOptions(opts.nixl)
	if err != nil {
		return nil, err
	}
	if o.Python == "" {
		found, err := local.FindNIXL("")
		if err != nil {
			return nil, err
		}
		o.Python = found.Python
	}
	return func(engine *kvtransfer.Config, form kvtransfer.Form) (kvtransfer.DataPlane, error) {
		plane, err := nixl.Open(engine, form, o, func(length int64) (agent.Agent, error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return agent.Start(ctx, agent.Options{Python: o.Python, Length: length, Log: env.log})
		}, env.log)
		if network := (*net.OpError)(nil); errors.As(err, &network) {
			return nil, exitError{conformance.ExitInfra, err}
		}
		return plane, err
	}, nil
}

func (opts *peerOptions) configureKVEvents(env *environment, opt *player.Options) (err error) {
	opt.KVCache.HashSeed, opt.KVCache.HashAlgorithm = cmp.Or(opts.hashSeed, env.getenv("PYTHONHASHSEED")), kvcache.Algorithm(opts.hash)
	if opts.kvEvents == "" {
		return nil
	}
	if opt.KVCache.Events, err = kvevents.ParseConfig(opts.kvEvents); err != nil {
		return fmt.Errorf("--kv-events-config: %w", err)
	}
	if opt.KVCache.Events == nil {
		return nil
	}
	opt.KVCache.Events.First, opt.KVCache.Events.AtOnce, opt.KVCache.Events.Arrays = opts.firstBatch, opts.firstBatch > 0, opts.eventArrays
	if opts.replica != nil {
		opt.KVCache.Events.Topic, opt.KVCache.Events.Host = cmp.Or(opt.KVCache.Events.Topic, opts.replica.topic), opts.replica.host
	}
	for _, endpoint := range []*string{&opt.KVCache.Events.Endpoint, &opt.KVCache.Events.ReplayEndpoint} {
		if *endpoint == "" && endpoint == &opt.KVCache.Events.ReplayEndpoint {
			continue // there is none
		}
		rank := opts.rank
		if opts.replica != nil && (opts.replica.host != "" || *endpoint != "" && !kvevents.Binds(*endpoint)) {
			rank = 0 // the port is free at its own address, or it is that of one router
		}
		if *endpoint, err = protocol.KVEventsOfRank(cmp.Or(*endpoint, kvevents.DefaultEndpoint), rank); err != nil {
			return fmt.Errorf("--kv-events-config: %w", err)
		}
	}
	if opt.KVCache.NoPrefixCaching {
		return errors.New("--kv-events-config and --no-enable-prefix-caching: KV events need prefix caching")
	}
	opt.KVCache.Events.Digests, err = kvevents.ParseIntHashes(env.getenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"))
	return err
}

// coreOptions are the flags of the engine that the player is. Their names are those of vLLM.
type coreOptions struct {
	opt         player.Options
	count       int
	kvMetrics   bool
	speculative string
	alone       bool // the engine is in no group, whatever its index is
	modelLen    int  // the context length of the model, if that is known
}

func (opts *coreOptions) add(flags *pflag.FlagSet) {
	o := &opts.opt
	flags.StringVar(&o.Handshake, "frontend-handshake", "tcp://127.0.0.1:29550", "handshake `ADDRESS` of the frontend, tcp://HOST:PORT or ipc://PATH")
	flags.DurationVar(&o.HandshakeTimeout, "handshake-timeout", 0, "maximum time to complete the handshake with the frontend (default 5m)")
	flags.StringVar(&o.VLLMVersion, "vllm-version", "auto", "vLLM `VERSION` or line that the engine imitates, such as 0.33 or v0.33.0, or nightly, or auto (that of the trace, else the newest)")
	flags.IntVar(&opts.count, "engine-count", 1, "number of engines to run in this process, with consecutive indexes: one for each data-parallel rank")
	flags.StringVar(&o.InstanceID, "instance-id", "", "instance_id to register with (default one by which recordings of the player are known)")
	flags.Lookup("instance-id").Hidden = true // for the tests in which a player replaces a released engine
	flags.IntVar(&o.EngineIndex, "engine-index", 0, "index of the first engine of this process in its data-parallel group (default 0)")
	flags.IntVar(&o.DataParallelSize, "data-parallel-size", 0, "number of engines of the frontend, with those of other processes (default that of the trace, else --engine-count)")
	flags.StringVar(&o.ParallelConfigHash, "parallel-config-hash", "", "`HASH` that the engine sends in READY; the Python frontend of a MoE model checks it")
	above0(flags, "engine-count", "data-parallel-size", "handshake-timeout")
	grouped(flags, "Connection")
	flags.IntVar(&o.Limits.MaxModelLen, "max-model-len", 0, "maximum context length in tokens (default that of the trace, else 1048576)")
	flags.IntVar(&o.Limits.MaxNumSeqs, "max-num-seqs", 0, "maximum number of requests that run at the same time (default that of the trace, else 128)")
	flags.IntVar(&o.Limits.MaxNumBatchedTokens, "max-num-batched-tokens", 0, "maximum number of tokens that one step computes (default that of the trace, else 2048)")
	flags.IntVar(&o.Limits.LongPrefillTokenThreshold, "long-prefill-token-threshold", 0, "compute a longer prompt in chunks of this many tokens (default 0: no limit)")
	oneOf(flags, (*string)(&o.SchedulingPolicy), "scheduling-policy", player.PolicyFCFS, "order of waiting requests: fcfs (first come, first served) or priority (lowest number first)",
		player.PolicyFCFS, player.PolicyPriority)
	flags.IntVar(&o.KVCache.BlockSize, "block-size", 0, "tokens in a KV cache block (default that of the trace, else 16)")
	flags.IntVar(&o.KVCache.NumGPUBlocks, "num-gpu-blocks-override", 0, "number of KV cache blocks (default that of the trace, else 8192)")
	flags.BoolVar(&o.KVCache.NoPrefixCaching, "no-enable-prefix-caching", false, "turn off prefix caching: compute every prompt completely")
	above0(flags, "max-model-len", "max-num-seqs", "max-num-batched-tokens", "block-size", "num-gpu-blocks-override")
	least0(flags, "long-prefill-token-threshold")
	grouped(flags, "Scheduler and KV cache")
	flags.IntVar(&o.LoRA.MaxLoRAs, "max-loras", 0, "maximum number of LoRA adapters in one step (default 0: no limit)")
	flags.IntVar(&o.LoRA.MaxCPULoRAs, "max-cpu-loras", 0, "maximum number of loaded LoRA adapters (default --max-loras)")
	flags.StringSliceVar(&o.LoRA.Names, "lora-adapters", nil, "names of the LoRA adapters that can be loaded (default any name)")
	flags.StringVar(&opts.speculative, "speculative-config", "", "speculative decoding as `JSON`: num_speculative_tokens, and synthetic_acceptance_rates (one for each position) or "+
		"synthetic_acceptance_length (mean number of tokens in a step) (default none)")
	flags.IntVar(&o.Decoding.TokensPerStep, "output-token-chunk-size", 1, "number of output tokens of a request in each step, as in a diffusion model")
	flags.StringSliceVar(&o.Pooling.Tasks, "pooling-tasks", nil, "run as a pooling model with these tasks: embed, classify, token_embed, token_classify; with generate too it also generates (default none)")
	flags.IntVar(&o.Pooling.Size, "pooling-size", 0, "length of an embedding (default 1024)")
	flags.IntVar(&o.Pooling.Labels, "pooling-labels", 0, "number of classes in a classification (default 1)")
	least0(flags, "max-loras", "max-cpu-loras")
	above0(flags, "output-token-chunk-size", "pooling-size", "pooling-labels")
	needs(flags, "pooling-size", "pooling-tasks")
	needs(flags, "pooling-labels", "pooling-tasks")
	exclusive(flags, "speculative-config", "output-token-chunk-size")
	grouped(flags, "Model")
	flags.BoolVar(&o.Observability.IterationDetails, "enable-logging-iteration-details", false, "report what each step computes, which the frontend logs")
	flags.BoolVar(&opts.kvMetrics, "kv-cache-metrics", false, "report how long KV blocks keep their content, which the frontend shows as metrics")
	flags.Float64Var(&o.Observability.KVCacheMetricsSample, "kv-cache-metrics-sample", 0.01, "part of the KV blocks that --kv-cache-metrics follows, more than 0 and at most 1")
	oneOf(flags, (*string)(&o.Observability.RequestDrafts), "per-request-spec-decode-metrics", player.DraftsNone, "report the speculative decoding of each request: none, summary, or detailed (each step too)",
		player.DraftsNone, player.DraftsSummary, player.DraftsDetailed)
	grouped(flags, "Observability")
}

// options are the player's, as far as these flags set them. learned is set if times, and
// the tokens of a step, are learned from a recording.
func (opts *coreOptions) options(flags *pflag.FlagSet, fitted bool) (opt player.Options, err error) {
	if err := opts.check(flags); err != nil {
		return opt, err
	}
	opt = opts.opt
	if opts.alone {
		opt.DataParallelSize = 0
	}
	if opt.VLLMVersion = tagOf(opt.VLLMVersion); opt.VLLMVersion == "auto" {
		opt.VLLMVersion = ""
	}
	if share := opt.Observability.KVCacheMetricsSample; share <= 0 || share > 1 {
		return opt, fmt.Errorf("--kv-cache-metrics-sample %v: want more than 0 and at most 1", share)
	}
	if !opts.kvMetrics {
		opt.Observability.KVCacheMetricsSample = 0
	}
	if opts.speculative == "" {
		return opt, nil
	}
	opt.Decoding.SpeculativeTokens, opt.Decoding.Acceptance, err = speculation(opts.speculative)
	if err == nil && opt.Decoding.Acceptance == nil && !fitted {
		err = errors.New("--speculative-config: give synthetic_acceptance_rates or synthetic_acceptance_length, or a --latency-trace to learn them from")
	}
	return opt, err
}

// check refuses numbers that no engine starts with.
func (opts *coreOptions) check(flags *pflag.FlagSet) error {
	o := &opts.opt
	for _, n := range []struct {
		flag       string
		value, max int
	}{
		{"engine-count", opts.count, maxEngines},
		{"data-parallel-size", o.DataParallelSize, math.MaxUint16 + 1},
		{"max-model-len", o.Limits.MaxModelLen, math.MaxInt32},
		{"max-num-seqs", o.Limits.MaxNumSeqs, math.MaxInt32},
		{"max-num-batched-tokens", o.Limits.MaxNumBatchedTokens, math.MaxInt32},
		{"block-size", o.KVCache.BlockSize, math.MaxInt32},
		{"num-gpu-blocks-override", o.KVCache.NumGPUBlocks, kvcache.MaxBlocks},
		{"output-token-chunk-size", o.Decoding.TokensPerStep, maxDrafts + 1},
		{"pooling-size", o.Pooling.Size, maxNumbers},
		{"pooling-labels", o.Pooling.Labels, maxNumbers},
	} {
		if n.value > n.max {
			return fmt.Errorf("--%s %d: want at most %d", n.flag, n.value, n.max)
		}
	}
	switch last := o.EngineIndex + opts.count - 1; {
	case o.EngineIndex < 0 || last > math.MaxUint16:
		return fmt.Errorf("--engine-index %d: want 0 to %d, as an engine identity has two bytes", o.EngineIndex, math.MaxUint16-opts.count+1)
	case flags.Changed("num-gpu-blocks-override") && o.KVCache.NumGPUBlocks < 2:
		return fmt.Errorf("--num-gpu-blocks-override %d: want at least 2, as one block is never used", o.KVCache.NumGPUBlocks)
	case !strings.HasPrefix(o.Handshake, "tcp://") && !strings.HasPrefix(o.Handshake, "ipc://"):
		return fmt.Errorf("--frontend-handshake %q: want tcp://HOST:PORT or ipc://PATH", o.Handshake)
	}
	if err := zmq.CheckEndpoint(o.Handshake); err != nil {
		return fmt.Errorf("--frontend-handshake: %w", err)
	}
	for _, address := range slices.Concat(o.InputAddresses, o.OutputAddresses) {
		if !strings.HasPrefix(address, "tcp://") && !strings.HasPrefix(address, "ipc://") {
			return fmt.Errorf("--input-address and --output-address: %q: want tcp://HOST:PORT or ipc://PATH", address)
		}
	}
	return nil
}

// Bounds of what a process can be, with room to spare.
const (
	maxEngines = 1024
	maxDrafts  = 1023    // guesses of a step
	maxNumbers = 1 << 20 // of an embedding or a classification
)

// speculativeConfig is the part of vLLM's speculative_config that decides about the output.
type speculativeConfig struct {
	Drafts int       `json:"num_speculative_tokens"`
	Rates  []float64 `json:"synthetic_acceptance_rates"`
	Length *float64  `json:"synthetic_acceptance_length"`
	// What chooses between these two in vLLM, and which drafts: neither matters here.
	Method    string `json:"method"`
	Rejection string `json:"rejection_sample_method"`
	Model     string `json:"model"`
}

// speculation reads --speculative-config.
func speculation(text string) (drafts int, acceptance *latency.Acceptance, err error) {
	var config speculativeConfig
	if err := jsonout.ReadObject(text, &config); err != nil {
		return 0, nil, fmt.Errorf(`--speculative-config: %w: want a JSON object such as {"num_speculative_tokens":2,"synthetic_acceptance_length":1.8}`, err)
	}
	switch n := config.Drafts; {
	case n < 1 || n > maxDrafts:
		return 0, nil, fmt.Errorf("--speculative-config: num_speculative_tokens is %d: want 1 to %d", n, maxDrafts)
	case config.Rates != nil && config.Length != nil:
		return 0, nil, errors.New("--speculative-config: give synthetic_acceptance_rates or synthetic_acceptance_length")
	case config.Rates != nil && len(config.Rates) != n:
		return 0, nil, fmt.Errorf("--speculative-config: %d synthetic_acceptance_rates for %d tokens: give one for each", len(config.Rates), n)
	case config.Rates != nil:
		acceptance, err = latency.NewAcceptance(config.Rates...)
	case config.Length != nil:
		acceptance, err = latency.AcceptanceOfLength(*config.Length, n)
	}
	if err != nil {
		err = fmt.Errorf("--speculative-config: %w", err)
	}
	return config.Drafts, acceptance, err
}
