package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
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
			"Ends on SIGINT or SIGTERM, or when the frontend goes away. SIGHUP rewinds the recording or dataset: what has\n" +
			"answered a request can answer another.",
		Example: "  vllm-rs serve MODEL --data-parallel-size 1 --data-parallel-size-local 0 \\\n" +
			"      --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 --port 8000 &\n" +
			"  vllm-vcr play --handshake-address tcp://127.0.0.1:29550 --replay-tokens trace.jsonl.gz\n" +
			"  vllm-vcr play --time-to-first-token 120ms --inter-token-latency 15ms --max-num-seqs 64\n" +
			"  vllm-vcr play --latency-trace trace.jsonl.gz --engine-count 4",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPlay(cmd.Context(), env, cmd.Flags(), opts) },
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
func (opts *playOptions) prepare(env *environment, flags *pflag.FlagSet) (*played, error) {
	learned := len(opts.timing.traces) > 0
	opt, err := opts.engine.options(flags, learned)
	if err != nil {
		return nil, err
	}
	if err := opts.source.check(flags, learned); err != nil {
		return nil, err
	}
	opt.Log = env.log
	p := &played{}
	if p.found, err = opts.source.source(env, &opt); err != nil {
		return nil, err
	}
	model, err := opts.timing.model(&opt, opts.source.configHash)
	if err != nil {
		return nil, err
	}
	if p.closePeers, err = opts.peers.put(env, &opt, opts.engine.count); err != nil {
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
	p, err := opts.prepare(env, flags)
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
	if p.found != nil && p.found.Told() != "" {
		fmt.Fprintf(env.stderr, "vllm-vcr: %s\n", p.found.Told())
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

// longWait is after how long it is said that no frontend has answered, unless that is more than half of the wait.
const longWait = 10 * time.Second

// logFrontend says when the engines are ready, and that they are not yet after a long wait. ended ends it.
func logFrontend(ctx context.Context, env *environment, group *player.Group, opt *player.Options) (ended func()) {
	ctx, cancel := context.WithCancel(ctx)
	wait := longWait
	if opt.HandshakeTimeout > 0 {
		wait = min(wait, opt.HandshakeTimeout/2)
	}
	var telling sync.WaitGroup
	telling.Go(func() {
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
		telling.Wait()
	}
}

// peerOptions say whom the player talks to beside its frontend, and what goes wrong.
type peerOptions struct {
	kvEvents   string
	hash       string
	kvTransfer string
	faults     string
}

func (opts *peerOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&opts.kvEvents, "kv-events-config", "", "publish KV events, as vLLM with this JSON: enable_kv_cache_events, publisher, endpoint, replay_endpoint,\n"+
		"buffer_steps, hwm, max_queue_size, topic; VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES counts")
	flags.StringVar(&opts.hash, "prefix-caching-hash-algo", "", "how blocks are hashed: sha256, sha256_cbor, xxhash or xxhash_cbor, as KV events tell; PYTHONHASHSEED counts")
	flags.StringVar(&opts.kvTransfer, "kv-transfer-config", "", "be asked for KV caches, and ask for them, as vLLM's NixlConnector with this JSON;\n"+
		"VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT count")
	flags.StringVar(&opts.faults, "faults", "", "what goes wrong, for whom: KIND[:VALUE][@PROBABILITY][~ID-PATTERN],… of the kinds refuse, fail:N,\n"+
		"delay:TIME[:AFTER], stall[:AFTER], drop[:AFTER], wrong-token[:AFTER], kill[:AFTER]")
}

// put puts what the flags say into the options of count engines. close ends what listens.
func (opts *peerOptions) put(env *environment, opt *player.Options, count int) (closeAll func(), err error) {
	if opt.Faults, err = player.ParseFaults(opts.faults); err != nil {
		return nil, fmt.Errorf("--faults: %w", err)
	}
	if err := opts.putKVEvents(env, opt); err != nil {
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

func (opts *peerOptions) putKVEvents(env *environment, opt *player.Options) (err error) {
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
