package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/player"
)

// playOptions are the flags of play.
type playOptions struct {
	engine coreOptions
	source sourceOptions
	timing timingOptions
	peers  peerOptions
}

func newPlayCommand(env *environment) *cobra.Command {
	var opts playOptions
	cmd := &cobra.Command{
		Use:   "play",
		Short: "Be the engine core of a vLLM line behind a frontend",
		Long: "Dial a vLLM frontend's handshake address, register as an engine of the chosen line, and answer its\n" +
			"requests: with what a recording or a dataset has, with the prompt again, or with random tokens. It\n" +
			"schedules as vLLM does, and takes no time for it, or the time a recorded or described engine takes.\n" +
			"Start the frontend with --data-parallel-size-local 0, so that it waits for an engine instead of\n" +
			"starting one.\n\n" +
			"Ends on SIGINT or SIGTERM, 15 seconds later at the latest, or when the frontend goes away. SIGHUP rewinds the recording or dataset: what has\n" +
			"answered a request can answer another.",
		Example: "  vllm-rs serve MODEL --data-parallel-size 1 --data-parallel-size-local 0 \\\n" +
			"      --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 --port 8000 &\n" +
			"  vllm-vcr play --handshake-address tcp://127.0.0.1:29550 --replay-tokens trace.jsonl.gz\n" +
			"  vllm-vcr play --time-to-first-token 120ms --inter-token-latency 15ms --max-num-seqs 64\n" +
			"  vllm-vcr play --latency-trace trace.jsonl.gz --engine-count 4",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withinGrace(cmd.Context(), env.grace, func() error { return runPlay(cmd.Context(), env, cmd.Flags(), opts) })
		},
	}
	opts.engine.add(cmd.Flags())
	opts.source.add(cmd.Flags())
	opts.timing.add(cmd.Flags())
	opts.peers.add(cmd.Flags())
	return cmd
}

// played is what play runs. found knows how requests found their answers, and
// closePeers ends what listens beside the engines.
type played struct {
	group      *player.Group
	found      found // nil where there is nothing to find
	closePeers func()
}

// prepare makes the engines.
func (opts *playOptions) prepare(ctx context.Context, env *environment, flags *pflag.FlagSet) (*played, error) {
	fitted := len(opts.timing.traces) > 0
	opt, err := opts.engine.options(flags, fitted)
	if err != nil {
		return nil, err
	}
	if err := opts.source.check(flags, fitted); err != nil {
		return nil, err
	}
	opt.Log = env.log
	p := &played{}
	if p.found, err = opts.source.source(ctx, env, &opt); err != nil {
		return nil, err
	}
	model, err := opts.timing.model(&opt, opts.source.configHash)
	if err != nil {
		return nil, err
	}
	if p.closePeers, err = opts.peers.configure(env, &opt, opts.engine.count); err != nil {
		return nil, err
	}
	if p.group, err = ranks(opt, opts.engine.count, model); err != nil {
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
	ended := logFrontend(ctx, env, p.group, &opts.engine.opt)
	if p.found != nil {
		defer rewindOnHangUp(env, p.found)()
	}
	err = p.group.Run(ctx)
	ended()
	if p.found != nil && p.found.Text() != "" {
		fmt.Fprintf(env.stderr, "vllm-vcr: %s\n", p.found.Text())
	}
	switch gone := errors.Is(err, player.ErrFrontendGone); {
	case err == nil:
		return nil
	case gone && wasReady(p.group):
		env.log.Warn("the frontend went away, so the player ends", "error", err)
		return nil
	case gone:
		err = fmt.Errorf("%w, before it had all %d engines: does it expect as many?", err, opts.engine.count)
	}
	return exitError{conformance.ExitInfra, err}
}

// playGrace is how long play may take to end once it is told to: more than its frontend gets to read what was said last.
const playGrace = 15 * time.Second

// withinGrace runs what heeds ctx, and does not wait for it for longer than so long after the end of ctx: whatever a
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
		return exitError{conformance.ExitInfra, fmt.Errorf("the player has not ended %s after it was told to, and is ended now: "+
			"its frontend was not told of it; please report what it was doing", grace)}
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

// slowStart is after how long it is said that no frontend has answered, unless that is more than half of the wait.
const slowStart = 10 * time.Second

// logFrontend says when the engines are ready, and that they are not yet after a long wait. ended ends it.
func logFrontend(ctx context.Context, env *environment, group *player.Group, opt *player.Options) (ended func()) {
	ctx, cancel := context.WithCancel(ctx)
	wait := slowStart
	if opt.HandshakeTimeout > 0 {
		wait = min(wait, opt.HandshakeTimeout/2)
	}
	var logging sync.WaitGroup
	logging.Go(func() {
		long := time.NewTimer(wait)
		defer long.Stop()
		for {
			select {
			case <-group.Ready():
				fmt.Fprintf(env.stderr, "vllm-vcr: playing line %s behind %s\n", group.Line(), opt.Handshake)
				return
			case <-long.C:
				fmt.Fprintf(env.stderr, "vllm-vcr: still waiting for a frontend at %s to start up with this engine; one that is up takes no more\n", opt.Handshake)
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

// peerOptions say whom the player talks to beside its frontend, and what goes wrong.
type peerOptions struct {
	kvEvents      string
	hash          string
	kvTransfer    string
	kvPeers       []string
	faults        string
	requestFaults bool
}

func (opts *peerOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&opts.kvEvents, "kv-events-config", "", "publish KV events, as vLLM with this JSON: enable_kv_cache_events, publisher, endpoint, replay_endpoint,\n"+
		"buffer_steps, hwm, max_queue_size, topic; VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES counts")
	flags.StringVar(&opts.hash, "prefix-caching-hash-algo", "", "how blocks are hashed: sha256, sha256_cbor, xxhash or xxhash_cbor, as KV events tell; PYTHONHASHSEED counts")
	flags.StringVar(&opts.kvTransfer, "kv-transfer-config", "", "be asked for KV caches, and ask for them, as vLLM's NixlConnector with this JSON;\n"+
		"VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT count")
	flags.StringSliceVar(&opts.kvPeers, "kv-transfer-peers", nil, "addresses that are asked for KV caches, and answered, such as 10.1.2.3 or 10.1.0.0/16 (default loopback, and the private ranges that this machine has an address in)")
	flags.StringVar(&opts.faults, "faults", "", "what goes wrong, for whom: KIND[:VALUE][@PROBABILITY][~ID-PATTERN],… of the kinds refuse, fail:N,\n"+
		"delay:TIME[:AFTER], stall[:AFTER], drop[:AFTER], wrong-token[:AFTER], kill[:AFTER]")
	flags.BoolVar(&opts.requestFaults, "allow-request-faults", false, "let requests ask for faults of their own, by vllm_vcr_fault in vllm_xargs: every client can then end the player")
}

// configure puts what the flags say into the options of count engines. close ends what listens.
func (opts *peerOptions) configure(env *environment, opt *player.Options, count int) (closeAll func(), err error) {
	if opt.Faults, err = player.ParseFaults(opts.faults); err != nil {
		return nil, fmt.Errorf("--faults: %w", err)
	}
	opt.RequestFaults = opts.requestFaults
	if err := opts.configureKVEvents(env, opt); err != nil {
		return nil, err
	}
	if opts.kvTransfer == "" {
		if len(opts.kvPeers) > 0 {
			return nil, errors.New("--kv-transfer-peers is for --kv-transfer-config, which is not given")
		}
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
	side, err := t.Listen(opt.EngineIndex, count)
	if network := (*net.OpError)(nil); errors.As(err, &network) {
		return nil, exitError{conformance.ExitInfra, err}
	}
	if err != nil {
		return nil, err
	}
	opt.Transfer = t
	return side.Close, nil
}

func (opts *peerOptions) configureKVEvents(env *environment, opt *player.Options) (err error) {
	opt.KVCache.HashSeed, opt.KVCache.HashAlgorithm = env.getenv("PYTHONHASHSEED"), kvcache.Algorithm(opts.hash)
	if opts.hash != "" {
		if _, err := chooseOne("--prefix-caching-hash-algo", opt.KVCache.HashAlgorithm, kvcache.SHA256, kvcache.SHA256CBOR, kvcache.XXHash, kvcache.XXHashCBOR); err != nil {
			return err
		}
	}
	if opts.kvEvents == "" {
		return nil
	}
	if opt.KVCache.Events, err = kvevents.ParseConfig(opts.kvEvents); err != nil {
		return fmt.Errorf("--kv-events-config: %w", err)
	}
	if opt.KVCache.Events == nil {
		return nil
	}
	if opt.KVCache.NoPrefixCaching {
		return errors.New("--kv-events-config: without prefix caching there is nothing to tell")
	}
	opt.KVCache.Events.Digests, err = kvevents.ParseIntHashes(env.getenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"))
	return err
}

// coreOptions say what engine the player is. Their names are those of vLLM.
type coreOptions struct {
	opt         player.Options
	count       int
	policy      string
	noCaching   bool
	speculative string
}

func (opts *coreOptions) add(flags *pflag.FlagSet) {
	o := &opts.opt
	flags.StringVar(&o.Handshake, "handshake-address", "tcp://127.0.0.1:29550", "where the frontend listens for engines")
	flags.StringVar(&o.VLLMVersion, "vllm-version", "auto", "release or line to be, nightly, or auto: the recording's, else the newest")
	flags.IntVar(&o.EngineIndex, "engine-index", 0, "index of the engine, or the first of several, in its group")
	flags.IntVar(&opts.count, "engine-count", 1, "engines to be, with consecutive indexes: data-parallel ranks in one process")
	flags.IntVar(&o.DataParallelSize, "data-parallel-size", 0, "engines that the frontend has, those of other processes included (default the recording's, else --engine-count)")
	flags.IntVar(&o.Limits.MaxModelLen, "max-model-len", 0, "context length in tokens (default the recording's, else 1048576)")
	flags.IntVar(&o.Limits.MaxNumSeqs, "max-num-seqs", 0, "requests that run at once (default the recording's, else 128)")
	flags.IntVar(&o.Limits.MaxNumBatchedTokens, "max-num-batched-tokens", 0, "tokens that a step computes at most (default the recording's, else 2048)")
	flags.IntVar(&o.Limits.LongPrefillTokenThreshold, "long-prefill-token-threshold", 0, "longer prompts are computed in chunks of so many tokens; 0 is any length")
	flags.StringVar(&opts.policy, "scheduling-policy", string(player.PolicyFCFS), "who runs first: fcfs, or priority (the lowest number)")
	flags.IntVar(&o.KVCache.BlockSize, "block-size", 0, "tokens per KV block (default the recording's, else 16)")
	flags.IntVar(&o.KVCache.NumGPUBlocks, "num-gpu-blocks", 0, "KV blocks (default the recording's, else 8192)")
	flags.BoolVar(&opts.noCaching, "no-enable-prefix-caching", false, "compute every prompt anew")
	flags.IntVar(&o.LoRA.MaxLoRAs, "max-loras", 0, "adapters that run at once; 0 is any number")
	flags.IntVar(&o.LoRA.MaxCPULoRAs, "max-cpu-loras", 0, "adapters that are loaded at once (default --max-loras)")
	flags.StringSliceVar(&o.LoRA.Names, "lora-adapters", nil, "names of the adapters that can be loaded (default any)")
	flags.StringVar(&opts.speculative, "speculative-config", "", "tokens guessed in a step, and how many are right: JSON with num_speculative_tokens and\n"+
		"synthetic_acceptance_rates, for each position, or synthetic_acceptance_length, the mean said in a step")
	flags.IntVar(&o.Decoding.TokensPerStep, "output-token-chunk-size", 1, "tokens that a request says in a step, as a diffusion model does")
	flags.StringSliceVar(&o.Pooling.Tasks, "pooling-tasks", nil, "be a pooling model for these: embed, classify, token_embed, token_classify")
	flags.IntVar(&o.Pooling.Size, "pooling-size", 0, "numbers of an embedding (default 1024)")
	flags.IntVar(&o.Pooling.Labels, "pooling-labels", 0, "classes of a classification (default 1)")
	flags.StringVar(&o.ParallelConfigHash, "parallel-config-hash", "", "hash to say READY with, for a Python frontend of a MoE model")
	flags.DurationVar(&o.HandshakeTimeout, "handshake-timeout", 0, "how long to wait for the frontend (default 5m)")
}

// options are the player's as far as these flags say them. learned tells that times, and
// what is said in a step, are learned from a recording.
func (opts *coreOptions) options(flags *pflag.FlagSet, fitted bool) (opt player.Options, err error) {
	if err := opts.check(flags); err != nil {
		return opt, err
	}
	opt = opts.opt
	if opt.SchedulingPolicy, err = chooseOne("--scheduling-policy", player.SchedulingPolicy(opts.policy), player.PolicyFCFS, player.PolicyPriority); err != nil {
		return opt, err
	}
	if opt.VLLMVersion == "auto" {
		opt.VLLMVersion = ""
	}
	opt.KVCache.NoPrefixCaching = opts.noCaching
	if opts.speculative == "" {
		return opt, nil
	}
	if opt.Decoding.TokensPerStep > 1 {
		return opt, errors.New("--speculative-config and --output-token-chunk-size: a model has one of them")
	}
	opt.Decoding.SpeculativeTokens, opt.Decoding.Acceptance, err = speculation(opts.speculative)
	if err == nil && opt.Decoding.Acceptance == nil && !fitted {
		err = errors.New("--speculative-config: say how many are right by synthetic_acceptance_rates or synthetic_acceptance_length, or have it learned by --latency-trace")
	}
	return opt, err
}

// check refuses numbers that no engine starts with.
func (opts *coreOptions) check(flags *pflag.FlagSet) error {
	o := &opts.opt
	for _, n := range []struct {
		flag        string
		value, most int
	}{
		{"engine-count", opts.count, maxEngines},
		{"data-parallel-size", o.DataParallelSize, math.MaxUint16 + 1},
		{"max-model-len", o.Limits.MaxModelLen, math.MaxInt32},
		{"max-num-seqs", o.Limits.MaxNumSeqs, math.MaxInt32},
		{"max-num-batched-tokens", o.Limits.MaxNumBatchedTokens, math.MaxInt32},
		{"block-size", o.KVCache.BlockSize, math.MaxInt32},
		{"num-gpu-blocks", o.KVCache.NumGPUBlocks, kvcache.MostBlocks},
		{"output-token-chunk-size", o.Decoding.TokensPerStep, maxDrafts + 1},
		{"pooling-size", o.Pooling.Size, maxNumbers},
		{"pooling-labels", o.Pooling.Labels, maxNumbers},
	} {
		if flags.Changed(n.flag) && n.value < 1 {
			return fmt.Errorf("--%s %d: want at least 1", n.flag, n.value)
		}
		if n.value > n.most {
			return fmt.Errorf("--%s %d: want at most %d", n.flag, n.value, n.most)
		}
	}
	pooling := flags.Changed("pooling-size") || flags.Changed("pooling-labels")
	switch last := o.EngineIndex + opts.count - 1; {
	case o.EngineIndex < 0 || last > math.MaxUint16:
		return fmt.Errorf("--engine-index %d: want 0 to %d, it is an identity of two bytes", o.EngineIndex, math.MaxUint16-opts.count+1)
	case flags.Changed("num-gpu-blocks") && o.KVCache.NumGPUBlocks < 2:
		return fmt.Errorf("--num-gpu-blocks %d: want at least 2, as one of them is never used", o.KVCache.NumGPUBlocks)
	case o.Limits.LongPrefillTokenThreshold < 0 || o.LoRA.MaxLoRAs < 0 || o.LoRA.MaxCPULoRAs < 0:
		return errors.New("--long-prefill-token-threshold, --max-loras and --max-cpu-loras: want 0 or more")
	case o.LoRA.MaxCPULoRAs > 0 && o.LoRA.MaxCPULoRAs < o.LoRA.MaxLoRAs:
		return fmt.Errorf("--max-cpu-loras %d: want at least the %d of --max-loras", o.LoRA.MaxCPULoRAs, o.LoRA.MaxLoRAs)
	case pooling && len(o.Pooling.Tasks) == 0:
		return errors.New("--pooling-size and --pooling-labels: say by --pooling-tasks what for")
	case flags.Changed("handshake-timeout") && o.HandshakeTimeout <= 0:
		return fmt.Errorf("--handshake-timeout %s: want a time above 0", o.HandshakeTimeout)
	case !strings.HasPrefix(o.Handshake, "tcp://") && !strings.HasPrefix(o.Handshake, "ipc://"):
		return fmt.Errorf("--handshake-address %q: want tcp://HOST:PORT or ipc://PATH", o.Handshake)
	}
	return nil
}

// Bounds of what a process can be, with room to spare.
const (
	maxEngines = 1024
	maxDrafts  = 1023    // guesses of a step
	maxNumbers = 1 << 20 // of an embedding or a classification
)

// speculativeConfig is vLLM's speculative_config, as far as it says what comes out.
type speculativeConfig struct {
	Drafts int       `json:"num_speculative_tokens"`
	Rates  []float64 `json:"synthetic_acceptance_rates"`
	Length *float64  `json:"synthetic_acceptance_length"`
	// What chooses between these two in vLLM, and which drafts: neither matters here.
	Method    string `json:"method"`
	Rejection string `json:"rejection_sample_method"`
	Model     string `json:"model"`
}

// readSpeculation decodes one JSON object.
func readSpeculation(text string) (config speculativeConfig, err error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	err = dec.Decode(&config)
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &other) && other.Field != "":
		return config, fmt.Errorf("%s: a %s cannot be that", other.Field, other.Value)
	case errors.As(err, &other):
		err = fmt.Errorf("it is a JSON %s", other.Value)
	case err == nil && dec.InputOffset() < int64(len(strings.TrimRight(text, " \t\r\n"))):
		err = fmt.Errorf("something follows the object at byte %d", dec.InputOffset())
	}
	if err != nil {
		err = fmt.Errorf(`%w: want a JSON object such as {"num_speculative_tokens":2,"synthetic_acceptance_length":1.8}`, err)
	}
	return config, err
}

// speculation is what --speculative-config says.
func speculation(text string) (drafts int, acceptance *latency.Acceptance, err error) {
	config, err := readSpeculation(text)
	if err != nil {
		return 0, nil, fmt.Errorf("--speculative-config: %w", err)
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
